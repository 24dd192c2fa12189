//! How important requests are, by the name of the objective that they carry; and which model is meant by a name.
//!
//! Both tables are written by discovery (from Kubernetes objects) and read by the doors, once a request. They are replaced as a
//! whole, so a reader sees one state of them.

use std::collections::HashMap;

/// Most objectives, and most rules, that are kept: bounds what a cluster full of objects can cost here.
pub const MAX_ENTRIES: usize = 4096;

/// Priorities by the name of an objective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objectives {
    by_name: HashMap<String, i32>,
}

impl Objectives {
    /// A table of the first [`MAX_ENTRIES`] of these names and priorities. A name that comes twice keeps its first priority.
    pub fn new(entries: impl IntoIterator<Item = (String, i32)>) -> Self {
        let mut by_name = HashMap::new();
        for (name, priority) in entries.into_iter().take(MAX_ENTRIES) {
            by_name.entry(name).or_insert(priority);
        }
        Objectives { by_name }
    }

    /// The priority of an objective: higher goes first, below 0 may be shed. `None` for a name that isn't known; such a request
    /// has priority 0, as one without an objective.
    pub fn priority(&self, name: &str) -> Option<i32> {
        self.by_name.get(name).copied()
    }

    /// All names and priorities, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i32)> {
        self.by_name.iter().map(|(name, priority)| (name.as_str(), *priority))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

/// One rule: a request for one of these models is for one of those.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Names that it holds for; empty: every name that no other rule names, and requests without one.
    pub models: Vec<String>,
    /// Models to ask for instead, with their weights. Weight 0 is never chosen.
    pub targets: Vec<(String, u32)>,
}

/// Which model is meant by a name, in the order in which rules win.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrites {
    rules: Vec<Rewrite>,
    exact: HashMap<String, usize>,
    general: Option<usize>,
}

impl Rewrites {
    /// A table of the first [`MAX_ENTRIES`] of these rules. Of two rules for the same name the first one counts. A rule without a
    /// target that can be chosen says nothing.
    pub fn new(rules: impl IntoIterator<Item = Rewrite>) -> Self {
        let mut table = Rewrites::default();
        for rule in rules.into_iter().filter(|r| r.targets.iter().any(|t| t.1 > 0)).take(MAX_ENTRIES) {
            let at = table.rules.len();
            for model in &rule.models {
                table.exact.entry(model.clone()).or_insert(at);
            }
            if rule.models.is_empty() {
                table.general.get_or_insert(at);
            }
            table.rules.push(rule);
        }
        table
    }

    /// The model to ask for when a request names `model`. `dice` is any number, the same for all attempts of a request; it
    /// decides between weighted targets. `None`: the request stays as it is.
    pub fn target(&self, model: Option<&str>, dice: u64) -> Option<&str> {
        let at = model.and_then(|m| self.exact.get(m).copied()).or(self.general)?;
        let targets = &self.rules.get(at)?.targets;
        let sum: u64 = targets.iter().map(|t| u64::from(t.1)).sum();
        let mut left = dice.checked_rem(sum)?;
        for (name, weight) in targets {
            match left.checked_sub(u64::from(*weight)) {
                Some(rest) => left = rest,
                None => return Some(name),
            }
        }
        None
    }

    /// The rules, in the order in which they win within their kind.
    pub fn rules(&self) -> &[Rewrite] {
        &self.rules
    }

    /// Is there no rule?
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.rules.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(models: &[&str], targets: &[(&str, u32)]) -> Rewrite {
        Rewrite {
            models: models.iter().map(|m| (*m).to_owned()).collect(),
            targets: targets.iter().map(|(m, w)| ((*m).to_owned(), *w)).collect(),
        }
    }

    #[test]
    fn objectives_by_name_and_bounded() {
        let o = Objectives::new([("a".into(), 5), ("b".into(), -1), ("a".into(), 9)]);
        assert_eq!((o.priority("a"), o.priority("b"), o.priority("c")), (Some(5), Some(-1), None));
        let many = Objectives::new((0..10_000).map(|n| (n.to_string(), n)));
        assert_eq!(many.len(), MAX_ENTRIES);
        assert!(Objectives::default().is_empty());
        let mut all: Vec<_> = o.iter().collect();
        all.sort_unstable();
        assert_eq!(all, [("a", 5), ("b", -1)]);
    }

    #[test]
    fn exact_rules_win_over_general_ones_and_first_over_later() {
        let r = Rewrites::new([
            rule(&[], &[("any", 1)]),
            rule(&["a", "b"], &[("a1", 1)]),
            rule(&["a"], &[("a2", 1)]),
            rule(&[], &[("never", 1)]),
        ]);
        assert_eq!(r.target(Some("a"), 7), Some("a1"));
        assert_eq!(r.target(Some("b"), 7), Some("a1"));
        assert_eq!(r.target(Some("x"), 7), Some("any"));
        assert_eq!(r.target(None, 7), Some("any"));
        assert_eq!(Rewrites::default().target(Some("a"), 0), None);
    }

    #[test]
    fn weights_share_exactly_and_zero_is_never_chosen() {
        let r = Rewrites::new([rule(&["m"], &[("old", 9), ("off", 0), ("new", 1)])]);
        let count = |name| (0..100).filter(|d| r.target(Some("m"), *d) == Some(name)).count();
        assert_eq!((count("old"), count("off"), count("new")), (90, 0, 10));
        let none = Rewrites::new([rule(&["m"], &[("a", 0)]), rule(&["m"], &[]), rule(&["m"], &[("b", 1)])]);
        assert_eq!((none.len(), none.target(Some("m"), 3)), (1, Some("b")));
        assert_eq!(none.rules()[0].models, ["m"]);
    }
}
