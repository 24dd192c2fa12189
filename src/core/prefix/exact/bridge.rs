//! Blocks of another size than ours.
//!
//! An engine's block may make several of ours (1:n), or several of its blocks one of ours (n:1). Sizes of which neither
//! is a multiple of the other aren't followed: a block of ours would lean on halves of two. A block of ours belongs to the engine's block in which it ends. An engine's block in
//! which none of ours ends is a *part*: without it, what its children complete isn't there either, so parts know their
//! children.

use super::super::token_chain::link;
use smallvec::SmallVec;

/// Where a block of the engine ends, in our terms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct End {
    /// Our last full block at or before that place, or the root.
    pub(super) tip: u64,
    /// Is that the root, so that no block of ours is complete?
    pub(super) rooted: bool,
    /// Tokens behind our last full block.
    pub(super) tail: Vec<u32>,
}

impl End {
    /// The block after which the next of ours is held; `None`: it is a prompt's first.
    pub(super) fn after(&self) -> Option<u64> {
        (!self.rooted).then_some(self.tip)
    }
}

/// What is kept of a block that doesn't coincide with one of ours.
#[derive(Clone, Debug, Default)]
pub(super) struct Span {
    /// Where it begins.
    pub(super) from: End,
    /// Our blocks that end in it.
    pub(super) blocks: SmallVec<[u64; 4]>,
    /// Tokens behind them.
    pub(super) tail: Vec<u32>,
    /// The engine's block before it.
    pub(super) parent: Option<u64>,
    /// Are they counted as held on account of this block?
    pub(super) counted: bool,
    /// Of a part: the engine's blocks that go on from it.
    pub(super) kids: SmallVec<[u64; 4]>,
}

impl Span {
    /// None of ours ends in it.
    pub(super) fn is_part(&self) -> bool {
        self.blocks.is_empty()
    }
}

/// Goes on from `from` with `tokens`: our blocks of `size` that end there, and where that ends.
pub(super) fn cross(
    seed: u64,
    size: usize,
    from: &End,
    tokens: &[u32],
    extra: &[&[u8]],
) -> (SmallVec<[u64; 4]>, End) {
    let mut end = from.clone();
    end.tail.extend_from_slice(tokens);
    let mut blocks = SmallVec::new();
    let full = end.tail.len() / size * size;
    for ids in end.tail[..full].chunks_exact(size) {
        end.tip = link(seed, end.tip, ids, extra);
        end.rooted = false;
        blocks.push(end.tip);
    }
    end.tail.drain(..full);
    (blocks, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crossing_gives_the_same_blocks_whatever_the_engine_cuts() {
        let ids: Vec<u32> = (0..96).collect();
        let root = End { tip: 9, rooted: true, tail: Vec::new() };
        let (want, _) = cross(7, 16, &root, &ids, &[]);
        assert_eq!(want.len(), 6);
        for cut in [1, 8, 16, 32, 48, 96] {
            let (mut end, mut got) = (root.clone(), Vec::new());
            for piece in ids.chunks(cut) {
                let (blocks, next) = cross(7, 16, &end, piece, &[]);
                got.extend(blocks);
                end = next;
            }
            assert_eq!(got, want.to_vec(), "blocks of {cut}");
            assert_eq!((end.after(), end.tail.len()), (want.last().copied(), 0));
        }
    }
}
