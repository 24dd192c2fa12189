//! The few fields of Kubernetes objects that are read here.
//!
//! Own types, not the API's full ones: of a pod of 20 KB about ten fields matter, the kinds of the inference extension have no
//! official types for this language, and an object with a field that changed its form must not make a whole list unreadable.

use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// Go writes an empty list or map as null.
fn or_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

/// What every object has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Meta {
    #[serde(deserialize_with = "or_empty")]
    pub(super) name: String,
    #[serde(deserialize_with = "or_empty")]
    pub(super) uid: String,
    #[serde(deserialize_with = "or_empty")]
    pub(super) resource_version: String,
    /// RFC 3339 in UTC: the order of the text is the order of time.
    pub(super) creation_timestamp: Option<String>,
    pub(super) deletion_timestamp: Option<String>,
    #[serde(deserialize_with = "or_empty")]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_empty")]
    pub(super) annotations: BTreeMap<String, String>,
}

/// An object that can be listed and watched.
pub(super) trait Watched: Clone + Send + serde::de::DeserializeOwned + 'static {
    fn meta(&self) -> &Meta;
}

macro_rules! watched {
    ($($name:ident),*) => { $(impl Watched for $name { fn meta(&self) -> &Meta { &self.metadata } })* };
}
watched!(Pool, Pod, Objective, ModelRewrite);

/// One page of a list.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub(super) struct List<T> {
    #[serde(default)]
    pub(super) metadata: ListMeta,
    #[serde(default, deserialize_with = "or_empty")]
    pub(super) items: Vec<T>,
}

/// Where a list stands.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListMeta {
    #[serde(deserialize_with = "or_empty")]
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) more: Option<String>,
}

/// `inference.networking.k8s.io/v1` InferencePool.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pool {
    pub(super) metadata: Meta,
    pub(super) spec: PoolSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PoolSpec {
    pub(super) selector: Selector,
    #[serde(deserialize_with = "or_empty")]
    pub(super) target_ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Selector {
    #[serde(deserialize_with = "or_empty")]
    pub(super) match_labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Port {
    pub(super) number: u16,
}

/// A pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    pub(super) metadata: Meta,
    pub(super) status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodStatus {
    pub(super) phase: Option<String>,
    #[serde(rename = "podIP")]
    pub(super) pod_ip: Option<String>,
    #[serde(deserialize_with = "or_empty")]
    pub(super) conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
}

/// InferenceObjective, v1alpha2.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Objective {
    pub(super) metadata: Meta,
    pub(super) spec: ObjectiveSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ObjectiveSpec {
    pub(super) priority: Option<i32>,
    pub(super) pool_ref: Reference,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Reference {
    pub(super) name: String,
}

/// InferenceModelRewrite, v1alpha2.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ModelRewrite {
    pub(super) metadata: Meta,
    pub(super) spec: RewriteSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RewriteSpec {
    pub(super) pool_ref: Reference,
    #[serde(deserialize_with = "or_empty")]
    pub(super) rules: Vec<Rule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Rule {
    #[serde(deserialize_with = "or_empty")]
    pub(super) matches: Vec<Match>,
    #[serde(deserialize_with = "or_empty")]
    pub(super) targets: Vec<Target>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Match {
    pub(super) model: Option<ModelMatch>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ModelMatch {
    pub(super) value: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Target {
    pub(super) weight: Option<u32>,
    pub(super) model_rewrite: String,
}
