//! The index as bytes, so that a restarted router knows what the caches hold.
//!
//! Written are the runs of the tree and, for each holder by *name* (numbers are given anew in each process), the ends of
//! what it has for sure, the one used longest ago first. Read back, they are entered in that order, so that recency is
//! kept. Left out is what can't be known later: live speculations, and what lies behind a hole and can't be matched.
//!
//! ```text
//! "HOMINGPX" version:u32 seed:u64 block_bytes:u32 written:u64
//! runs:u32   { parent:u32 len:u32 hash:u64 × len }
//! holders:u16 { name_len:u16 name entries:u32 { run:u32 blocks:u32 output:u32 } }
//! extra:u32 bytes
//! checksum:u64   xxh3 of all before
//! ```
//!
//! All numbers are little-endian; a run's parent is an earlier run, or `u32::MAX`. A file that isn't exactly so is refused
//! as a whole: half an index would look like a cold fleet.

use super::super::ids::Holder;
use super::super::time::Time;
use super::hold::NIL;
use super::index::PrefixIndex;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"HOMINGPX";
const VERSION: u32 = 1;

/// What a snapshot says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Seed of the block hashes: with another one the hashes mean nothing.
    pub seed: u64,
    /// Bytes of text in a block.
    pub block_bytes: u32,
    /// When it was taken, in seconds since 1970.
    pub written: u64,
}

/// Why bytes are no snapshot that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// It doesn't begin as one.
    #[error("it is no snapshot of a prefix index")]
    Foreign,
    /// Of another version of the format.
    #[error("it has format {0}, this version reads format {VERSION}")]
    Version(u32),
    /// Cut off, or changed since it was written.
    #[error("its checksum is wrong: it was cut off or changed")]
    Checksum,
    /// The checksum is right, what it protects contradicts itself.
    #[error("it contradicts itself")]
    Inconsistent,
}

/// The end of something that a holder has: so many blocks of a run, and all runs above.
#[derive(Clone, Copy, Debug)]
struct Entry {
    run: u32,
    blocks: u32,
    /// Blocks of generated output behind it.
    output: u32,
}

/// A snapshot, read and checked.
#[derive(Debug)]
pub struct Saved {
    header: Header,
    /// Parent, and where its hashes are.
    runs: Vec<(u32, std::ops::Range<usize>)>,
    hashes: Vec<u64>,
    holders: BTreeMap<String, Vec<Entry>>,
    extra: Vec<u8>,
}

/// A snapshot that lacks its checksum: taken while the index stands still, sealed while it goes on.
#[derive(Debug)]
pub struct Draft(Vec<u8>);

impl Draft {
    /// The snapshot.
    pub fn seal(self) -> Vec<u8> {
        let Draft(mut out) = self;
        let sum = checksum(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }
}

impl PrefixIndex {
    /// The index as bytes. Holders without a name are left out; `extra` comes back with the rest.
    pub fn snapshot(&self, header: Header, name: impl Fn(Holder) -> Option<String>, extra: &[u8]) -> Draft {
        let mut out = Vec::with_capacity(self.nodes.blocks as usize * 9 + 4096 + extra.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&header.seed.to_le_bytes());
        out.extend_from_slice(&header.block_bytes.to_le_bytes());
        out.extend_from_slice(&header.written.to_le_bytes());
        let number = self.write_runs(&mut out);
        let named: Vec<(Holder, String)> = (0..self.holds.members.len() as Holder)
            .filter(|&h| self.holds.member(h).is_some())
            .filter_map(|h| Some((h, name(h).filter(|n| n.len() <= usize::from(u16::MAX))?)))
            .collect();
        out.extend_from_slice(&(named.len() as u16).to_le_bytes());
        let mut covered = vec![0; self.nodes.slab.len()];
        for (i, (h, name)) in named.iter().enumerate() {
            out.extend_from_slice(&(name.len() as u16).to_le_bytes());
            out.extend_from_slice(name.as_bytes());
            let entries = self.entries(*h, &mut covered, i as u32 + 1);
            out.extend_from_slice(&(entries.len() as u32).to_le_bytes());
            for e in entries {
                for n in [number[e.run as usize], e.blocks, e.output] {
                    out.extend_from_slice(&n.to_le_bytes());
                }
            }
        }
        out.extend_from_slice(&(extra.len() as u32).to_le_bytes());
        out.extend_from_slice(extra);
        Draft(out)
    }

    /// Writes all runs, parents first; returns the number of each node.
    fn write_runs(&self, out: &mut Vec<u8>) -> Vec<u32> {
        let mut number = vec![NIL; self.nodes.slab.len()];
        out.extend_from_slice(&(self.nodes.live() as u32).to_le_bytes());
        let (mut next, mut above) = (0, Vec::new());
        for (id, node) in self.nodes.slab.iter().enumerate() {
            let mut at = id as u32;
            while !node.run.is_empty() && at != NIL && number[at as usize] == NIL {
                above.push(at);
                at = self.nodes.get(at).parent;
            }
            while let Some(id) = above.pop() {
                let node = self.nodes.get(id);
                let parent = if node.parent == NIL { NIL } else { number[node.parent as usize] };
                out.extend_from_slice(&parent.to_le_bytes());
                out.extend_from_slice(&node.len().to_le_bytes());
                node.run.iter().for_each(|hash| out.extend_from_slice(&hash.to_le_bytes()));
                number[id as usize] = next;
                next += 1;
            }
        }
        number
    }

    /// The ends of what `h` has for sure, the one used longest ago first. `covered` (a number for each node) and
    /// `stamp` (another one for each holder) find those below which it has more.
    fn entries(&self, h: Holder, covered: &mut [u32], stamp: u32) -> Vec<Entry> {
        let mut found = Vec::new();
        let mut at = self.holds.member(h).map_or(NIL, |m| m.oldest);
        while at != NIL {
            let hold = self.holds.get(at);
            at = hold.newer;
            let sure = hold.holes.as_ref().and_then(|holes| holes.first_from(0)).unwrap_or(hold.confirmed);
            if hold.node == NIL || sure == 0 || !self.has_all_above(hold.node, h) {
                continue;
            }
            let parent = self.nodes.get(hold.node).parent;
            if parent != NIL {
                covered[parent as usize] = stamp;
            }
            let output = if hold.tail == NIL { 0 } else { self.holds.get(hold.tail).confirmed };
            found.push(Entry { run: hold.node, blocks: sure, output });
        }
        found.retain(|e| covered[e.run as usize] != stamp);
        found
    }

    /// Has `h` for sure all blocks of all runs above `node`?
    fn has_all_above(&self, node: u32, h: Holder) -> bool {
        let mut at = self.nodes.get(node).parent;
        while at != NIL {
            let above = self.nodes.get(at);
            let whole = above.hold_of(h).map(|id| self.holds.get(id));
            if !whole.is_some_and(|hold| hold.confirmed == above.len() && hold.holes.is_none()) {
                return false;
            }
            at = above.parent;
        }
        true
    }

    /// Whatever `from` has for sure, `to` has as well: the same cache under another number.
    pub fn copy(&mut self, now: Time, from: Holder, to: Holder) {
        let mut covered = vec![0; self.nodes.slab.len()];
        let chains: Vec<(Vec<u64>, u32)> = self
            .entries(from, &mut covered, 1)
            .into_iter()
            .map(|e| {
                let mut runs: Vec<&[u64]> = vec![&self.nodes.get(e.run).run[..e.blocks as usize]];
                let mut at = self.nodes.get(e.run).parent;
                while at != NIL {
                    runs.push(&self.nodes.get(at).run);
                    at = self.nodes.get(at).parent;
                }
                runs.reverse();
                (runs.concat(), e.output)
            })
            .collect();
        for (chain, output) in chains {
            self.insert(now, &chain, to);
            self.output(now, &chain, to, output);
        }
    }
}

impl Saved {
    /// Reads a snapshot.
    ///
    /// # Errors
    /// See [`Corrupt`]; nothing of it is used then.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        let mut rest = bytes.strip_prefix(MAGIC).ok_or(Corrupt::Foreign)?;
        let version = u32(&mut rest).ok_or(Corrupt::Checksum)?;
        if version != VERSION {
            return Err(Corrupt::Version(version));
        }
        let (body, sum) = bytes.split_last_chunk::<8>().ok_or(Corrupt::Checksum)?;
        if checksum(body) != u64::from_le_bytes(*sum) || body.len() < MAGIC.len() + 4 {
            return Err(Corrupt::Checksum);
        }
        let mut body = &body[MAGIC.len() + 4..];
        let saved = Self::read(&mut body).ok_or(Corrupt::Inconsistent)?;
        if body.is_empty() { Ok(saved) } else { Err(Corrupt::Inconsistent) }
    }

    fn read(at: &mut &[u8]) -> Option<Self> {
        let header = Header { seed: u64(at)?, block_bytes: u32(at)?, written: u64(at)? };
        let mut saved = Saved {
            header,
            runs: Vec::new(),
            hashes: Vec::new(),
            holders: BTreeMap::new(),
            extra: Vec::new(),
        };
        for n in 0..u32(at)? {
            let (parent, len) = (u32(at)?, u32(at)?);
            if len == 0 || (parent != NIL && parent >= n) {
                return None;
            }
            let bytes = take(at, (len as usize).checked_mul(8)?)?;
            let start = saved.hashes.len();
            saved.hashes.extend(bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)));
            saved.runs.push((parent, start..saved.hashes.len()));
        }
        for _ in 0..u16(at)? {
            let len = usize::from(u16(at)?);
            let name = std::str::from_utf8(take(at, len)?).ok()?.to_owned();
            let mut entries = Vec::new();
            for _ in 0..u32(at)? {
                let e = Entry { run: u32(at)?, blocks: u32(at)?, output: u32(at)? };
                let (_, run) = saved.runs.get(e.run as usize)?;
                if e.blocks == 0 || e.blocks as usize > run.len() {
                    return None;
                }
                entries.push(e);
            }
            saved.holders.insert(name, entries);
        }
        let len = u32(at)? as usize;
        saved.extra = take(at, len)?.to_vec();
        Some(saved)
    }

    /// What it says of itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What was given along.
    pub fn extra(&self) -> &[u8] {
        &self.extra
    }

    /// Holders that haven't been restored yet.
    pub fn waiting(&self) -> impl Iterator<Item = &str> {
        self.holders.keys().map(String::as_str)
    }

    /// Enters what the holder of that name had for `h`, which must have joined, once. Returns how many blocks `h` has
    /// now; `None` if the name isn't known.
    pub fn restore(&mut self, index: &mut PrefixIndex, now: Time, name: &str, h: Holder) -> Option<u64> {
        let entries = self.holders.remove(name)?;
        let (mut chain, mut path) = (Vec::new(), Vec::new());
        for e in entries {
            path.clear();
            let mut at = e.run;
            while let Some((parent, _)) = self.runs.get(at as usize) {
                path.push(at);
                at = *parent;
            }
            chain.clear();
            for (i, run) in path.iter().rev().enumerate() {
                let Some((_, place)) = self.runs.get(*run as usize) else { continue };
                let run = &self.hashes[place.clone()];
                let last = i + 1 == path.len();
                chain.extend_from_slice(if last { &run[..e.blocks as usize] } else { run });
            }
            index.insert(now, &chain, h);
            index.output(now, &chain, h, e.output);
        }
        Some(index.held(h))
    }
}

/// The checksum that ends a snapshot.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

fn take<'a>(at: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (front, rest) = at.split_at_checked(n)?;
    *at = rest;
    Some(front)
}

fn u16(at: &mut &[u8]) -> Option<u16> {
    let (front, rest) = at.split_first_chunk()?;
    *at = rest;
    Some(u16::from_le_bytes(*front))
}

fn u32(at: &mut &[u8]) -> Option<u32> {
    let (front, rest) = at.split_first_chunk()?;
    *at = rest;
    Some(u32::from_le_bytes(*front))
}

fn u64(at: &mut &[u8]) -> Option<u64> {
    let (front, rest) = at.split_first_chunk()?;
    *at = rest;
    Some(u64::from_le_bytes(*front))
}
