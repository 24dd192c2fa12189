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
}

impl Names {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn get(&self, name: &str) -> Option<ModelId> {
        self.ids.get(name).copied()
    }

    pub(super) fn intern(&mut self, name: &Arc<str>) -> ModelId {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        if self.ids.len() >= MAX_NAMES {
            return UNLISTED;
        }
        let id = ModelId(self.ids.len() as u32 + 1);
        self.ids.insert(name.clone(), id);
        id
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
    }
}
