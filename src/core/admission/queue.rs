//! A bounded line of waiting requests, first come first served within a model.
//!
//! Models don't share replicas, so a full fleet of one must not hold up the requests of another: each model has its own
//! head of the line.

use crate::core::ids::{ModelId, RequestId};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// The line is full.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

/// The line.
#[derive(Clone, Debug)]
pub struct Queue {
    waiting: VecDeque<(RequestId, Option<ModelId>)>,
    max: usize,
}

impl Queue {
    /// A line of `max` requests.
    pub fn new(max: usize) -> Self {
        Queue { waiting: VecDeque::new(), max }
    }

    /// From now on so many may wait; those who do stay.
    pub fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    /// Requests in the line.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Is nobody waiting?
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Is it in the line?
    pub fn has(&self, id: RequestId) -> bool {
        self.waiting.iter().any(|w| w.0 == id)
    }

    /// Must a request of `model` that comes now stand behind another? `id` itself doesn't count.
    pub fn behind(&self, id: RequestId, model: Option<ModelId>) -> bool {
        self.waiting.iter().find(|w| w.1 == model).is_some_and(|w| w.0 != id)
    }

    /// Joins the end of the line, or keeps the place that it has.
    pub fn join(&mut self, id: RequestId, model: Option<ModelId>) -> Result<(), Full> {
        if self.waiting.iter().any(|w| w.0 == id) {
            return Ok(());
        }
        if self.waiting.len() >= self.max {
            return Err(Full);
        }
        self.waiting.push_back((id, model));
        Ok(())
    }

    /// Leaves the line; true if it was in it.
    pub fn leave(&mut self, id: RequestId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|w| w.0 != id);
        self.waiting.len() != before
    }

    /// The first in line of each model.
    pub fn heads(&self) -> SmallVec<[RequestId; 4]> {
        let mut models: SmallVec<[Option<ModelId>; 4]> = SmallVec::new();
        let mut heads = SmallVec::new();
        for &(id, model) in &self.waiting {
            if !models.contains(&model) {
                models.push(model);
                heads.push(id);
            }
        }
        heads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Option<ModelId> = Some(ModelId(1));
    const B: Option<ModelId> = Some(ModelId(2));

    #[test]
    fn bounded_and_first_come_first_served_per_model() {
        let mut q = Queue::new(3);
        q.join(RequestId(1), A).unwrap();
        q.join(RequestId(2), A).unwrap();
        q.join(RequestId(3), B).unwrap();
        assert_eq!(q.join(RequestId(4), B), Err(Full));
        assert_eq!(q.join(RequestId(3), B), Ok(()), "it keeps its place");
        assert_eq!(q.heads().as_slice(), [RequestId(1), RequestId(3)]);
        assert!(q.behind(RequestId(2), A) && !q.behind(RequestId(1), A) && !q.behind(RequestId(9), None));
        assert!(q.leave(RequestId(1)) && !q.leave(RequestId(1)));
        assert!(!q.behind(RequestId(2), A));
        assert_eq!(q.len(), 2);
    }
}
