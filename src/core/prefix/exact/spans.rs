//! What a follower does with blocks that don't coincide with ours. See `bridge`.

use super::bridge::{End, Span};
use super::follower::{Change, Follower, dropped, hold};
use smallvec::SmallVec;

impl Follower {
    pub(super) fn enter_span(
        &mut self,
        hash: u64,
        parent: Option<u64>,
        from: End,
        blocks: SmallVec<[u64; 4]>,
        tail: Vec<u32>,
        out: &mut Vec<Change>,
    ) {
        if let Some(entry) = self.known.get_mut(&hash) {
            entry.rare = true;
        }
        let rare = self.rare.entry(hash).or_default();
        let span = rare.span.get_or_insert_default();
        (span.from, span.blocks, span.tail, span.parent) = (from, blocks, tail, parent);
        if let Some(before) = parent.and_then(|parent| self.span_mut(parent))
            && before.is_part()
            && !before.kids.contains(&hash)
        {
            before.kids.push(hash);
        }
        self.restore(hash, out);
    }

    fn span(&self, hash: u64) -> Option<&Span> {
        self.rare.get(&hash)?.span.as_deref()
    }

    fn span_mut(&mut self, hash: u64) -> Option<&mut Span> {
        self.rare.get_mut(&hash)?.span.as_deref_mut()
    }

    /// Is the block known to begin and end just there? `None`: it coincides with one of ours.
    pub(super) fn is_same_span(&self, hash: u64, now: Option<(Option<u64>, &End, &[u32])>) -> bool {
        match (self.span(hash), now) {
            (None, None) => true,
            (Some(span), Some((parent, from, tail))) => {
                span.parent == parent && span.from == *from && span.tail == tail
            }
            _ => false,
        }
    }

    /// Does `kid` go on where the part `on` ends? Names alone don't say: one that was forgotten may come back for
    /// something else. From a part to what leans on it the tokens behind our last block grow, so no walk goes round.
    fn leans(&self, kid: u64, on: u64) -> bool {
        let (Some(kid), Some(part), Some(entry)) = (self.span(kid), self.span(on), self.known.get(&on))
        else {
            return false;
        };
        kid.parent == Some(on)
            && part.is_part()
            && (kid.from.tip, kid.from.rooted) == (entry.tip, entry.rooted)
            && kid.from.tail == part.tail
    }

    fn kids(&self, part: u64) -> SmallVec<[u64; 4]> {
        let kids = self.span(part).filter(|span| span.is_part()).map(|span| &span.kids);
        kids.into_iter().flatten().copied().filter(|&kid| self.leans(kid, part)).collect()
    }

    /// Are all parts there on which this block leans?
    fn stands(&self, hash: u64) -> bool {
        let mut at = Some(hash);
        while let Some(hash) = at {
            if !self.known.get(&hash).is_some_and(|entry| self.is_held(hash, entry)) {
                return false;
            }
            let before = self.span(hash).and_then(|span| span.parent);
            at = before.filter(|&before| self.leans(hash, before));
        }
        true
    }

    /// A block is held (again): so is what it makes of ours, and what leans on it.
    pub(super) fn restore(&mut self, hash: u64, out: &mut Vec<Change>) {
        if !self.stands(hash) {
            return;
        }
        let mut work = vec![hash];
        while let Some(hash) = work.pop() {
            let Some(entry) = self.known.get(&hash) else { continue };
            if !self.is_held(hash, entry) {
                continue;
            }
            match self.span(hash) {
                Some(span) if span.is_part() => work.extend(self.kids(hash)),
                Some(span) => {
                    hold(span.from.after(), &span.blocks, out);
                    self.count(hash);
                }
                // A block that coincides with ours is announced with its content, and held then.
                None => {}
            }
        }
    }

    /// A block isn't held any more: neither is what it made of ours, nor what leans on it.
    pub(super) fn drop_span(&mut self, hash: u64, out: &mut Vec<Change>) {
        let mut work = vec![hash];
        while let Some(hash) = work.pop() {
            work.extend(self.kids(hash));
            let Some(span) = self.rare.get_mut(&hash).and_then(|rare| rare.span.as_mut()) else { continue };
            if !std::mem::take(&mut span.counted) {
                continue;
            }
            for block in &span.blocks {
                let Some(n) = self.shared.get_mut(block) else { continue };
                *n -= 1;
                if *n == 0 {
                    self.shared.remove(block);
                    dropped(*block, out);
                }
            }
        }
    }

    fn count(&mut self, hash: u64) {
        let Some(span) = self.rare.get_mut(&hash).and_then(|rare| rare.span.as_mut()) else { return };
        if !std::mem::replace(&mut span.counted, true) {
            span.blocks.iter().for_each(|&block| *self.shared.entry(block).or_default() += 1);
        }
    }

    /// Forgets a block without copies, unless others lean on it; and then those that it leaned on, if they were only
    /// kept for that.
    pub(super) fn prune(&mut self, hash: u64) {
        let mut at = Some(hash);
        while let Some(hash) = at.take() {
            let Some(span) = self.span(hash) else { return };
            let copies = self.known.get(&hash).is_some_and(|entry| entry.usual > 0)
                || self.rare.get(&hash).is_some_and(|rare| !rare.counts.is_empty());
            if copies || !span.kids.is_empty() {
                return;
            }
            let parent = span.parent;
            self.forget(hash);
            if let Some(before) = parent.and_then(|parent| self.span_mut(parent)) {
                before.kids.retain(|kid| *kid != hash);
                at = parent;
            }
        }
    }
}
