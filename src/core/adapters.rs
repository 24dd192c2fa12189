//! Which LoRA adapters a replica has at hand.
//!
//! An engine holds a few adapters on the GPU and swaps them least recently used first; a request for another one waits for
//! it to be loaded. The metrics page names only adapters with requests running or waiting, so what was used last is
//! remembered here, as many as the engine has room for.

use super::ids::ModelId;

/// Seconds to load an adapter: 100 to 500 MB from disk or from host memory. It only has to tip the scale between replicas
/// that are otherwise about equal.
const LOAD: f64 = 0.3;
/// Adapters remembered at most, whatever the engine says.
const MAX: usize = 64;

/// The adapters of one replica.
#[derive(Clone, Debug, Default)]
pub struct Adapters {
    /// Names that are adapters, sorted.
    listed: Vec<ModelId>,
    /// How many fit at once; 0: not known.
    slots: usize,
    /// Used last, the latest first.
    recent: Vec<ModelId>,
}

impl Adapters {
    /// Its list of models came: these of them are adapters.
    pub fn listed(&mut self, mut adapters: Vec<ModelId>) {
        adapters.sort_unstable();
        self.listed = adapters;
    }

    /// A metrics page came: so many fit, and these have requests.
    pub fn page(&mut self, slots: usize, active: impl IntoIterator<Item = ModelId>) {
        self.slots = slots.min(MAX);
        for model in active {
            self.used(model);
        }
        self.recent.truncate(self.slots);
    }

    /// The engine has restarted.
    pub fn clear(&mut self) {
        self.recent.clear();
    }

    /// A request for `model` goes there.
    pub fn used(&mut self, model: ModelId) {
        if self.listed.binary_search(&model).is_err() {
            return;
        }
        self.recent.retain(|m| *m != model);
        self.recent.insert(0, model);
        self.recent.truncate(self.slots.max(1));
    }

    /// Seconds that a request for `model` waits for its adapter. Zero for base models, and while nothing is known.
    pub fn load_seconds(&self, model: Option<ModelId>) -> f64 {
        let missing = |m: ModelId| self.listed.binary_search(&m).is_ok() && !self.recent.contains(&m);
        if self.slots > 0 && model.is_some_and(missing) { LOAD } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Option<ModelId> = Some(ModelId(1));

    #[test]
    fn the_last_used_are_at_hand_as_many_as_fit() {
        let mut a = Adapters::default();
        a.listed(vec![ModelId(4), ModelId(2), ModelId(3)]);
        assert_eq!(a.load_seconds(Some(ModelId(2))), 0.0, "nothing is known of its slots");
        a.page(2, [ModelId(2)]);
        assert_eq!((a.load_seconds(Some(ModelId(2))), a.load_seconds(Some(ModelId(3)))), (0.0, LOAD));
        assert_eq!((a.load_seconds(BASE), a.load_seconds(None)), (0.0, 0.0));
        a.used(ModelId(3));
        a.used(ModelId(4));
        assert_eq!(a.load_seconds(Some(ModelId(2))), LOAD, "pushed out");
        a.used(ModelId(1));
        assert_eq!(a.load_seconds(Some(ModelId(3))), 0.0, "a base model needs no slot");
        a.clear();
        assert_eq!(a.load_seconds(Some(ModelId(4))), LOAD);
    }
}
