//! What a source can't find out now, told once: an API server that is gone is one trouble, not one for each kind that is followed.

use crate::observe::{Flag, Loud};
use std::collections::BTreeMap;

/// Failures in a row after which it is told: one is what any restart of an API server costs.
const TELL_AFTER: u32 = 2;

/// The parts of a source that can't be read, behind one flag.
#[derive(Debug)]
pub(super) struct Trouble {
    flag: Flag,
    parts: BTreeMap<String, String>,
    /// The one whose reason was told.
    told: Option<String>,
}

impl Trouble {
    /// `what` is the word of the metric's label.
    pub(super) fn new(loud: &Loud, what: &'static str) -> Self {
        Trouble { flag: loud.flag(what, ""), parts: BTreeMap::new(), told: None }
    }

    /// This part can't be read, the `failures`th time in a row.
    pub(super) fn bad(&mut self, part: &str, why: &str, failures: u32) {
        if failures >= TELL_AFTER {
            self.parts
                .entry(part.to_owned())
                .or_insert_with(|| format!("{part}: {why}; what is known stays"));
            self.tell();
        }
    }

    /// This part is read, or isn't needed.
    pub(super) fn good(&mut self, part: &str) {
        if self.parts.remove(part).is_some() {
            if self.told.as_deref() == Some(part) {
                self.told = None;
            }
            self.tell();
        }
    }

    fn tell(&mut self) {
        match self.parts.iter().next() {
            None => {
                self.flag.clear();
            }
            Some((part, why)) if self.told.is_none() => {
                self.told = Some(part.clone());
                self.flag.raise_for(why);
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Metrics;
    use std::sync::Arc;

    #[test]
    fn several_parts_are_one_trouble() {
        let loud = Loud::new(Arc::new(Metrics::new()));
        let mut t = Trouble::new(&loud, "kubernetes");
        let told = || loud.degradations().into_iter().map(|d| d.detail).collect::<Vec<_>>();
        t.bad("pods", "refused", 1);
        assert!(told().is_empty(), "once is nothing");
        t.bad("pods", "refused", 2);
        t.bad("pool", "refused", 2);
        t.bad("pods", "something else", 3);
        assert_eq!(told(), ["pods: refused; what is known stays"]);
        t.good("objectives");
        t.good("pods");
        assert_eq!(told(), ["pool: refused; what is known stays"], "the next one");
        t.good("pool");
        assert!(told().is_empty());
    }
}
