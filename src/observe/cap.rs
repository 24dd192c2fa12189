//! A bound on the values of a label.

use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// The value that all names beyond the cap share.
pub const OTHER: &str = "other";

/// Handles by name, for the first `max` names; all further ones share one handle under the label `other`. A name that is
/// given back makes room for another.
#[derive(Debug)]
pub struct LabelCap<T> {
    max: usize,
    known: RwLock<HashMap<String, Arc<T>>>,
    other: OnceLock<Arc<T>>,
}

impl<T> LabelCap<T> {
    /// Room for `max` names.
    pub fn new(max: usize) -> Self {
        LabelCap { max, known: RwLock::default(), other: OnceLock::new() }
    }

    /// The handle of `name`; `make` makes it from the label, which is `name` or `other`.
    pub fn get(&self, name: &str, make: impl Fn(&str) -> T) -> Arc<T> {
        if let Some(known) = self.known.read().get(name) {
            return known.clone();
        }
        let mut known = self.known.write();
        if let Some(known) = known.get(name) {
            return known.clone();
        }
        if known.len() >= self.max {
            return self.other.get_or_init(|| Arc::new(make(OTHER))).clone();
        }
        let made = Arc::new(make(name));
        known.insert(name.to_owned(), made.clone());
        made
    }

    /// Gives `name` back. False if it had no handle of its own.
    pub fn remove(&self, name: &str) -> bool {
        self.known.write().remove(name).is_some()
    }

    /// The names that have handles of their own, in no order.
    pub fn names(&self) -> Vec<String> {
        self.known.read().keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_cap_share_one_handle() {
        let cap = LabelCap::new(2);
        let get = |name: &str| cap.get(name, str::to_owned);
        assert_eq!(
            [get("a"), get("b"), get("c"), get("d"), get("a")].map(|l| l.to_string()),
            ["a", "b", OTHER, OTHER, "a"]
        );
        assert!(Arc::ptr_eq(&get("c"), &get("d")));
        assert!(cap.remove("a") && !cap.remove("c"));
        assert_eq!(get("c").as_str(), "c");
        assert_eq!(cap.names().len(), 2);
    }
}
