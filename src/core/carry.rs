//! What of a fleet lives on: other settings while it runs, and what was learned, for another process or another life.

use super::cost::Weights;
use super::fleet::{Fleet, Settings};
use super::ids::{ModelId, ReplicaId};
use super::learn::{Fit, Scale};
use super::model::ModelStats;
use super::time::Time;

impl Fleet {
    /// Other weights, rules, slow start and line from now on. What was learned stays, and who waits goes on waiting,
    /// also beyond a line that became shorter. Priors and bounds of tables stay as they were.
    pub fn reconfigure(&mut self, new: Settings) {
        let old = &mut self.settings;
        old.weights = Weights { reuse: old.weights.reuse, ..new.weights };
        (old.rules, old.slow_start, old.queue) = (new.rules, new.slow_start, new.queue);
        old.lanes = new.lanes;
        self.queue.set_max(new.queue);
    }

    /// The pool's fit of prefills, to be saved.
    pub fn fit(&self) -> &Fit {
        &self.fit
    }

    /// An earlier router's fit.
    pub fn set_fit(&mut self, fit: Fit) {
        self.fit = fit;
    }

    /// What an earlier router learned of a replica's speed.
    pub fn set_speeds(&mut self, now: Time, id: ReplicaId, prefill: Scale, decode: Scale) {
        if let Some(r) = self.get_mut(id) {
            (r.prefill, r.decode) = (prefill, decode);
        }
        self.take_medians(now);
    }

    /// What an earlier router learned of a model's traffic; counts unless something was learned since.
    pub fn set_model(&mut self, id: ModelId, stats: ModelStats) {
        if self.models.len() < self.settings.max_models {
            self.models.entry(id).or_insert(stats);
        }
    }

    /// `new` is the same machine as `old`: its speed is known.
    pub fn inherit(&mut self, now: Time, old: ReplicaId, new: ReplicaId) {
        if let Some((prefill, decode)) = self.get(old).map(|r| (r.prefill.clone(), r.decode.clone())) {
            self.set_speeds(now, new, prefill, decode);
        }
    }
}
