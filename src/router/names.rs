//! Model names, interned.

use crate::core::ModelId;
use std::collections::HashMap;
use std::sync::Arc;

/// A model that no replica lists: only those whose list isn't known yet may have it.
pub(super) const UNLISTED: ModelId = ModelId(0);

/// Names that are interned at most; a fleet that lists more serves the rest as unlisted ones.
const MAX_NAMES: usize = 4096;

/// Names that replicas listed. Names that only clients said never enter.
#[derive(Debug, Default)]
pub(super) struct Names {
    ids: HashMap<Arc<str>, ModelId>,
    /// An id is given once, also when its name is forgotten: what was learned of it isn't the next one's.
    last: u32,
}

impl Names {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn get(&self, name: &str) -> Option<ModelId> {
        self.ids.get(name).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, ModelId)> {
        self.ids.iter().map(|(name, &id)| (name, id))
    }

    pub(super) fn intern(&mut self, name: &Arc<str>) -> ModelId {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        if self.ids.len() >= MAX_NAMES {
            return UNLISTED;
        }
        self.last += 1;
        let id = ModelId(self.last);
        self.ids.insert(name.clone(), id);
        id
    }

    /// Is it time to forget names that nobody lists any more? Adapters come and go for as long as the process lives.
    pub(super) fn crowded(&self) -> bool {
        self.ids.len() > MAX_NAMES / 8
    }

    /// Forgets all names but those that are listed; returns the ids that are left, sorted.
    pub(super) fn keep(&mut self, listed: impl Fn(&str) -> bool) -> Vec<ModelId> {
        self.ids.retain(|name, _| listed(name));
        let mut left: Vec<ModelId> = self.ids.values().copied().collect();
        left.sort_unstable();
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_and_stable() {
        let mut n = Names::new();
        let a = n.intern(&"a".into());
        for i in 0..10_000 {
            n.intern(&format!("m{i}").into());
        }
        assert_eq!(n.intern(&"a".into()), a);
        assert_eq!(n.get("m1"), Some(ModelId(3)));
        assert_eq!(n.intern(&"one too many".into()), UNLISTED);
        assert_eq!(n.ids.len(), MAX_NAMES);
        assert!(n.crowded());
        assert_eq!(n.keep(|name| name == "a"), [a]);
        let new = n.intern(&"new".into());
        assert!(new != UNLISTED && new.0 > MAX_NAMES as u32, "{new:?}");
        assert!(!n.crowded());
    }
}
