//! `/v1/models`: what a replica serves.

use serde::Deserialize;

/// One model or adapter of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ModelEntry {
    /// Name that requests ask for.
    pub id: String,
    /// Longest context in tokens, prompt and output together (vLLM).
    #[serde(default)]
    pub max_model_len: Option<u32>,
    /// The base model, if this is an adapter.
    #[serde(default)]
    pub parent: Option<String>,
    /// Where its weights come from: a path or a name.
    #[serde(default)]
    pub root: Option<String>,
}

/// Most models taken from one replica: a server with more isn't a model server.
const MAX_MODELS: usize = 4096;

/// The models of a page, in its order; entries that can't be read are left out. The error says why the page as a whole
/// can't be.
pub fn models(page: &[u8]) -> Result<Vec<ModelEntry>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Page {
        data: Vec<serde_json::Value>,
    }
    let page: Page = serde_json::from_slice(page)?;
    Ok(page.data.into_iter().take(MAX_MODELS).filter_map(entry).collect())
}

/// One entry of the page. A longest context of zero is one that isn't known.
fn entry(value: serde_json::Value) -> Option<ModelEntry> {
    let mut entry = ModelEntry::deserialize(value).ok()?;
    entry.max_model_len = entry.max_model_len.filter(|tokens| *tokens > 0);
    Some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_models_and_adapters() {
        let page = br#"{"object":"list","data":[
            {"id":"base","object":"model","created":1,"owned_by":"vllm","root":"/models/base","parent":null,
             "max_model_len":4096,"permission":[{"id":"x"}]},
            {"id":"ada","object":"model","root":"/lora/ada","parent":"base"},
            {"object":"model"}, 7]}"#;
        let list = models(page).unwrap();
        assert_eq!(list.len(), 2);
        assert_eq!((list[0].id.as_str(), list[0].max_model_len), ("base", Some(4096)));
        assert_eq!(list[0].root.as_deref(), Some("/models/base"));
        assert_eq!((list[1].parent.as_deref(), list[1].max_model_len), (Some("base"), None));
    }

    #[test]
    fn a_context_of_zero_is_unknown() {
        let list = models(br#"{"data":[{"id":"m","max_model_len":0}]}"#).unwrap();
        assert_eq!(list[0].max_model_len, None);
    }

    #[test]
    fn what_is_no_list_is_an_error() {
        for page in ["", "{}", "<html>", "{\"data\": 3}", "{\"data\": [{\"id\":"] {
            assert!(models(page.as_bytes()).is_err(), "{page}");
        }
    }

    #[test]
    fn their_number_is_bounded() {
        let entries = vec!["{\"id\":\"m\"}"; MAX_MODELS + 10].join(",");
        assert_eq!(models(format!("{{\"data\":[{entries}]}}").as_bytes()).unwrap().len(), MAX_MODELS);
    }
}
