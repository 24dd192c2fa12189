//! A map with few keys, in the order in which they were put: templates that print one show its order.

use minijinja::value::Value;

/// Keys and values, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields(Vec<(Value, Value)>);

impl Fields {
    /// Sets a key; one that is there already keeps its place.
    pub(super) fn insert(&mut self, key: impl Into<Value>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        match self.0.iter_mut().find(|(k, _)| *k == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key, value)),
        }
    }

    /// Sets a key unless it is there.
    pub(super) fn or_insert(&mut self, key: &str, value: impl Into<Value>) {
        if self.get(key).is_none() {
            self.0.push((key.into(), value.into()));
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(k, _)| k.as_str() == Some(key)).map(|(_, v)| v)
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.0.retain(|(k, _)| k.as_str() != Some(key));
    }

    /// All of `other`, in order; what both have is `other`'s.
    pub(super) fn extend(&mut self, other: Fields) {
        for (key, value) in other.0 {
            self.insert(key, value);
        }
    }

    pub(super) fn into_value(self) -> Value {
        Value::from_pairs(self.0)
    }
}
