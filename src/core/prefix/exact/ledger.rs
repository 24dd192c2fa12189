//! Who refers to a block: a count for each tier and attention group.
//!
//! An engine may compute a block twice (two requests at once, or a prompt that is cached to its last block) and then
//! announces it twice and removes it twice. A block is *held* while some tier has it in every group that attends to
//! the whole prefix.

use super::event::Tier;
use smallvec::SmallVec;

/// A place where a copy can lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) tier: Tier,
    pub(super) group: u8,
}

/// Attention groups, as the stores told them.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    whole: SmallVec<[u8; 4]>,
    other: SmallVec<[u8; 4]>,
}

impl Groups {
    /// Learns of what kind a group is.
    pub(super) fn note(&mut self, group: u8, whole: bool) {
        let list = if whole { &mut self.whole } else { &mut self.other };
        if !list.contains(&group) {
            list.push(group);
        }
    }

    /// Is it known to say nothing about prefixes?
    pub(super) fn is_other(&self, group: u8) -> bool {
        self.other.contains(&group) && !self.whole.contains(&group)
    }

    /// The place of nearly all copies, whose count has a field of its own.
    pub(super) fn usual(&self, place: Place) -> bool {
        place.tier == Tier::Gpu && self.whole.first().is_none_or(|&first| first == place.group)
    }
}

/// Counts of one block; what isn't usual is kept in a list beside.
pub(super) type Counts = SmallVec<[(Place, u16); 2]>;

/// Is the block held? `usual` is the count of the usual place.
pub(super) fn held(groups: &Groups, usual: u16, more: Option<&Counts>) -> bool {
    let Some(more) = more.filter(|more| !more.is_empty() || groups.whole.len() > 1) else {
        return usual > 0 && groups.whole.len() < 2;
    };
    let has = |tier: Tier, group: u8| {
        let place = Place { tier, group };
        groups.usual(place) && usual > 0 || more.iter().any(|&(at, n)| at == place && n > 0)
    };
    [Tier::Gpu, Tier::Cpu, Tier::Storage]
        .into_iter()
        .any(|tier| !groups.whole.is_empty() && groups.whole.iter().all(|&group| has(tier, group)))
}

/// One more copy at `place`; returns the count before.
pub(super) fn add(more: &mut Counts, place: Place) -> u16 {
    if let Some((_, n)) = more.iter_mut().find(|(at, _)| *at == place) {
        *n = n.saturating_add(1);
        return *n - 1;
    }
    more.push((place, 1));
    0
}

/// One copy less; the count before, 0 if there was none.
pub(super) fn sub(more: &mut Counts, place: Place) -> u16 {
    let Some(at) = more.iter().position(|(other, _)| *other == place) else { return 0 };
    let before = more[at].1;
    if before <= 1 {
        more.swap_remove(at);
    } else {
        more[at].1 -= 1;
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_where_every_whole_group_has_it_in_one_tier() {
        let mut groups = Groups::default();
        groups.note(0, true);
        assert!(held(&groups, 1, None) && !held(&groups, 0, None));
        let cpu = Place { tier: Tier::Cpu, group: 0 };
        let mut more = Counts::new();
        assert_eq!((add(&mut more, cpu), add(&mut more, cpu)), (0, 1));
        assert!(held(&groups, 0, Some(&more)));
        groups.note(2, true);
        groups.note(1, false);
        assert!(groups.is_other(1) && !groups.is_other(2));
        assert!(!held(&groups, 1, None), "the second group hasn't got it");
        add(&mut more, Place { tier: Tier::Gpu, group: 2 });
        assert!(held(&groups, 1, Some(&more)) && !held(&groups, 0, Some(&more)));
        assert_eq!((sub(&mut more, cpu), sub(&mut more, cpu), sub(&mut more, cpu)), (2, 1, 0));
    }
}
