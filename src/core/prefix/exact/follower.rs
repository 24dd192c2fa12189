//! One holder's table from the engine's hashes to our chain.

use super::super::chain::Root;
use super::super::hash::{ByBlock, map_bytes};
use super::super::token_chain::{link, root};
use super::bridge::{End, Span, cross};
use super::event::{KvEvent, Removed, Stored};
use super::ledger::{self, Counts, Groups, Place};
use super::orphans::Orphans;
use smallvec::SmallVec;

/// What a follower needs to know.
#[derive(Clone, Debug)]
pub struct FollowerConfig {
    /// Seed of our hashes.
    pub seed: u64,
    /// Tokens in one of our blocks.
    pub block: u32,
    /// Model under which our chains are rooted.
    pub model: String,
    /// Most blocks of the engine that are known at once; more are counted, and not followed.
    pub max_blocks: usize,
    /// Most token ids kept of blocks whose beginning isn't known.
    pub max_orphan_tokens: usize,
}

/// A change to what the holder has, in our hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has `blocks`, one after the other, behind `after` (`None`: from the start).
    Hold {
        /// The block before.
        after: Option<u64>,
        /// What follows it.
        blocks: Vec<u64>,
    },
    /// It has these no longer.
    Drop(Vec<u64>),
    /// It has nothing.
    Clear,
}

/// What a follower has seen, in blocks; all but the first four are totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Known now.
    pub known: u64,
    /// Waiting for their beginning now.
    pub orphans: u64,
    /// With a copy in the accelerator's memory, in the host's, in a store now.
    pub tiers: [u64; 3],
    /// Heap bytes now, estimated.
    pub bytes: u64,
    /// Announced.
    pub stored: u64,
    /// Taken back.
    pub removed: u64,
    /// Taken back, though never heard of: stored before we listened.
    pub unknown_removals: u64,
    /// Once waiting, then joined.
    pub joined: u64,
    /// Given up because too many waited.
    pub orphans_dropped: u64,
    /// Not followed because too many are known.
    pub refused: u64,
    /// Announced under a hash that stands for something else, or in a size that has nothing to do with ours.
    pub conflicts: u64,
    /// Resets of the whole cache.
    pub resets: u64,
}

/// A block of the engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Our last full block at or before its end, or the root.
    pub(super) tip: u64,
    /// Copies at the usual place.
    pub(super) usual: u16,
    pub(super) rooted: bool,
    /// Is its content known? An engine may name a block in another tier without telling what is in it.
    content: bool,
    /// Is there more in `rare`?
    pub(super) rare: bool,
}

/// What few blocks have.
#[derive(Clone, Debug, Default)]
pub(super) struct Rare {
    pub(super) counts: Counts,
    pub(super) span: Option<Box<Span>>,
}

/// Follows one holder. See the module.
#[derive(Debug)]
pub struct Follower {
    cfg: FollowerConfig,
    pub(super) known: ByBlock<Entry>,
    pub(super) rare: ByBlock<Rare>,
    /// Of our blocks that are smaller than the engine's: how many of the engine's make each. Two prompts that part in
    /// the middle of an engine's block share what is before.
    pub(super) shared: ByBlock<u32>,
    groups: Groups,
    orphans: Orphans,
    reports: bool,
    tally: Tally,
}

/// A run that is being placed.
struct Cursor {
    run: Stored,
    at: usize,
    /// The engine's block before `at`, and where that ends.
    before: Option<u64>,
    end: End,
    /// Removals that came while it waited.
    gone: Vec<u64>,
}

impl Follower {
    /// Knows nothing yet.
    pub fn new(cfg: FollowerConfig) -> Self {
        Follower {
            orphans: Orphans::new(cfg.max_orphan_tokens),
            cfg,
            known: ByBlock::default(),
            rare: ByBlock::default(),
            shared: ByBlock::default(),
            groups: Groups::default(),
            reports: false,
            tally: Tally::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn config(&self) -> FollowerConfig {
        self.cfg.clone()
    }

    /// Are requests under way that make the engine announce cached blocks again? Then a run from a prompt's start that
    /// is known already is such a report, and no second copy.
    pub fn expect_reports(&mut self, yes: bool) {
        self.reports = yes;
    }

    /// Forgets all: another life of the engine begins.
    pub fn reset(&mut self, out: &mut Vec<Change>) {
        self.known.clear();
        self.rare.clear();
        self.shared.clear();
        self.orphans.clear();
        self.groups = Groups::default();
        self.tally.tiers = [0; 3];
        out.push(Change::Clear);
    }

    /// What it has seen.
    pub fn tally(&self) -> Tally {
        Tally {
            known: self.known.len() as u64,
            orphans: self.orphans.len() as u64,
            bytes: (map_bytes(self.known.capacity(), 8 + size_of::<Entry>())
                + map_bytes(self.rare.capacity(), 8 + size_of::<Rare>())) as u64,
            ..self.tally
        }
    }

    /// Does it miss what was there before it listened?
    pub fn joined_late(&self) -> bool {
        self.orphans.len() > 0
    }

    /// Takes an event in; what follows for the index is appended to `out`.
    pub fn apply(&mut self, event: KvEvent, out: &mut Vec<Change>) {
        match event {
            KvEvent::Stored(run) => self.stored(run, out),
            KvEvent::Removed(removed) => self.removed(&removed, out),
            KvEvent::Cleared => {
                self.tally.resets += 1;
                self.reset(out);
            }
        }
    }

    fn stored(&mut self, run: Stored, out: &mut Vec<Change>) {
        self.groups.note(run.group, run.whole);
        if !run.whole {
            return;
        }
        self.tally.stored += run.hashes.len() as u64;
        if run.tokens.is_empty() {
            return self.moved(&run, out);
        }
        let ours = self.cfg.block.max(1);
        let fits = run.block > 0 && (run.block.is_multiple_of(ours) || ours.is_multiple_of(run.block));
        if !fits || run.tokens.len() != run.hashes.len() * run.block as usize {
            self.tally.conflicts += run.hashes.len() as u64;
            return;
        }
        match self.begin(run, Vec::new()) {
            Ok(cursor) => self.place(cursor, out),
            Err((parent, run)) => self.tally.orphans_dropped += self.orphans.keep(parent, *run) as u64,
        }
    }

    /// Where a run goes on from; or, if that isn't known, what it waits for.
    fn begin(&self, run: Stored, gone: Vec<u64>) -> Result<Cursor, (u64, Box<Stored>)> {
        let end = match run.parent {
            None => {
                let keys = Root {
                    model: &self.cfg.model,
                    lora: run.lora.as_deref(),
                    cache_salt: run.salt.as_deref(),
                };
                End { tip: root(self.cfg.seed, self.cfg.block, &keys), rooted: true, tail: Vec::new() }
            }
            Some(parent) => match self.end_of(parent) {
                Some(end) => end,
                None => return Err((parent, Box::new(run))),
            },
        };
        Ok(Cursor { before: run.parent, run, at: 0, end, gone })
    }

    fn end_of(&self, hash: u64) -> Option<End> {
        let entry = self.known.get(&hash).filter(|entry| entry.content)?;
        let span = if entry.rare { self.rare.get(&hash).and_then(|rare| rare.span.as_ref()) } else { None };
        let tail = span.map_or_else(Vec::new, |span| span.tail.clone());
        Some(End { tip: entry.tip, rooted: entry.rooted, tail })
    }

    /// Places a run block by block; runs that waited for one of them are placed first, so that a report of what is
    /// cached finds them there.
    fn place(&mut self, cursor: Cursor, out: &mut Vec<Change>) {
        let mut work = vec![cursor];
        while let Some(cursor) = work.last_mut() {
            let Some(&hash) = cursor.run.hashes.get(cursor.at) else {
                let gone = std::mem::take(&mut cursor.gone);
                let place = Place { tier: cursor.run.tier, group: cursor.run.group };
                work.pop();
                gone.into_iter().for_each(|hash| self.remove(hash, place, out));
                continue;
            };
            if !self.one(cursor, hash, out) {
                work.pop();
                continue;
            }
            cursor.at += 1;
            cursor.before = Some(hash);
            for (run, gone) in self.orphans.take(hash) {
                self.tally.joined += run.hashes.len() as u64;
                if let Ok(next) = self.begin(run, gone) {
                    work.push(next);
                }
            }
        }
    }

    /// Enters the block at the cursor. False if that can't be.
    fn one(&mut self, cursor: &mut Cursor, hash: u64, out: &mut Vec<Change>) -> bool {
        let size = cursor.run.block as usize;
        let tokens = &cursor.run.tokens[cursor.at * size..(cursor.at + 1) * size];
        let extra: SmallVec<[&[u8]; 2]> = cursor
            .run
            .extra
            .iter()
            .filter(|(at, _)| *at as usize == cursor.at)
            .map(|(_, key)| &**key)
            .collect();
        let fits = size == self.cfg.block as usize && cursor.end.tail.is_empty();
        let (blocks, end) = if fits {
            let tip = link(self.cfg.seed, cursor.end.tip, tokens, &extra);
            (SmallVec::from_slice(&[tip]), End { tip, rooted: false, tail: Vec::new() })
        } else {
            cross(self.cfg.seed, self.cfg.block as usize, &cursor.end, tokens, &extra)
        };
        let from = std::mem::replace(&mut cursor.end, end);
        let known = self.known.get(&hash).copied();
        if known.is_none() && self.known.len() >= self.cfg.max_blocks {
            self.tally.refused += (cursor.run.hashes.len() - cursor.at) as u64;
            return false;
        }
        let end = &cursor.end;
        let other = |k: Entry| {
            (k.tip, k.rooted) != (end.tip, end.rooted)
                || !self.is_same_span(hash, (!fits).then_some((cursor.before, &from, &*end.tail)))
        };
        if known.is_some_and(|k| k.content && other(k)) {
            // One name for two contents: whichever was first stays, and nothing is made of the other.
            self.tally.conflicts += 1;
            return false;
        }
        let again = known.is_some_and(|k| k.content && self.is_held(hash, &k));
        let entry = self.known.entry(hash).or_insert(Entry {
            tip: 0,
            usual: 0,
            rooted: false,
            content: false,
            rare: false,
        });
        (entry.tip, entry.rooted, entry.content) = (end.tip, end.rooted, true);
        if !(again && self.reports && cursor.run.parent.is_none()) {
            self.add(hash, Place { tier: cursor.run.tier, group: cursor.run.group });
        }
        if fits {
            self.hold_if_held(hash, from.after(), &blocks, out);
        } else {
            self.enter_span(hash, cursor.before, from, blocks, cursor.end.tail.clone(), out);
        }
        true
    }

    fn hold_if_held(&self, hash: u64, after: Option<u64>, blocks: &[u64], out: &mut Vec<Change>) {
        if self.known.get(&hash).is_some_and(|entry| self.is_held(hash, entry)) {
            hold(after, blocks, out);
        }
    }

    pub(super) fn is_held(&self, hash: u64, entry: &Entry) -> bool {
        let more = if entry.rare { self.rare.get(&hash).map(|rare| &rare.counts) } else { None };
        ledger::held(&self.groups, entry.usual, more)
    }

    fn add(&mut self, hash: u64, place: Place) {
        let Some(entry) = self.known.get_mut(&hash) else { return };
        let before = if self.groups.usual(place) {
            entry.usual = entry.usual.saturating_add(1);
            entry.usual - 1
        } else {
            entry.rare = true;
            ledger::add(&mut self.rare.entry(hash).or_default().counts, place)
        };
        if before == 0 {
            self.tally.tiers[place.tier as usize] += 1;
        }
    }

    /// Blocks named in a tier, without content: they count for what is known of them.
    fn moved(&mut self, run: &Stored, out: &mut Vec<Change>) {
        let place = Place { tier: run.tier, group: run.group };
        for &hash in &run.hashes {
            match self.known.get(&hash) {
                Some(entry) if entry.content && !self.is_held(hash, entry) => {
                    self.add(hash, place);
                    self.restore(hash, out);
                }
                Some(_) => self.add(hash, place),
                None if self.known.len() >= self.cfg.max_blocks => self.tally.refused += 1,
                None => {
                    let entry = Entry { tip: 0, usual: 0, rooted: false, content: false, rare: false };
                    self.known.insert(hash, entry);
                    self.add(hash, place);
                }
            }
        }
    }

    fn removed(&mut self, removed: &Removed, out: &mut Vec<Change>) {
        if self.groups.is_other(removed.group) {
            return;
        }
        let place = Place { tier: removed.tier, group: removed.group };
        for &hash in &removed.hashes {
            self.remove(hash, place, out);
        }
    }

    fn remove(&mut self, hash: u64, place: Place, out: &mut Vec<Change>) {
        self.tally.removed += 1;
        let Some(entry) = self.known.get(&hash).copied() else {
            if !self.orphans.removed(hash) {
                self.tally.unknown_removals += 1;
            }
            return;
        };
        let before = self.sub(hash, entry, place);
        if before == 0 {
            self.tally.unknown_removals += 1;
            return;
        }
        if before == 1 {
            self.tally.tiers[place.tier as usize] -= 1;
        }
        let Some(entry) = self.known.get(&hash).copied() else { return };
        let rare = if entry.rare { self.rare.get(&hash) } else { None };
        let copies = entry.usual > 0 || rare.is_some_and(|rare| !rare.counts.is_empty());
        let span = rare.is_some_and(|rare| rare.span.is_some());
        // Also when it wasn't held before: a group that was learned of later may have changed that without a removal.
        if !self.is_held(hash, &entry) && entry.content {
            match span {
                false => dropped(entry.tip, out),
                true => self.drop_span(hash, out),
            }
        }
        if !copies {
            match span {
                false => self.forget(hash),
                true => self.prune(hash),
            }
        }
    }

    fn sub(&mut self, hash: u64, entry: Entry, place: Place) -> u16 {
        if self.groups.usual(place) {
            if let Some(known) = self.known.get_mut(&hash) {
                known.usual = known.usual.saturating_sub(1);
            }
            return entry.usual;
        }
        self.rare.get_mut(&hash).map_or(0, |rare| ledger::sub(&mut rare.counts, place))
    }

    pub(super) fn forget(&mut self, hash: u64) {
        if self.known.remove(&hash).is_some_and(|entry| entry.rare) {
            self.rare.remove(&hash);
        }
    }
}

/// Appends to what is held; goes on with the last change where it can.
pub(super) fn hold(after: Option<u64>, blocks: &[u64], out: &mut Vec<Change>) {
    if blocks.is_empty() {
        return;
    }
    if let Some(Change::Hold { blocks: last, .. }) = out.last_mut()
        && last.last().copied() == after
        && after.is_some()
    {
        last.extend_from_slice(blocks);
        return;
    }
    out.push(Change::Hold { after, blocks: blocks.to_vec() });
}

pub(super) fn dropped(block: u64, out: &mut Vec<Change>) {
    match out.last_mut() {
        Some(Change::Drop(list)) => list.push(block),
        _ => out.push(Change::Drop(vec![block])),
    }
}
