//! Bodies: held until it is decided where they go, and cut into pieces that Envoy takes.

use bytes::Bytes;
use std::borrow::Cow;
use std::collections::VecDeque;

/// Longest piece that is sent back. Envoy's limit is 64 KiB a message, with its frame around it.
pub(super) const PIECE: usize = 62_000;

/// A body as far as it has come.
#[derive(Debug, Default)]
pub(super) struct Held {
    pieces: VecDeque<Bytes>,
    len: usize,
}

impl Held {
    pub(super) fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        if !piece.is_empty() {
            self.pieces.push_back(piece);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// All of it in one stretch; a copy only if it came in several pieces.
    pub(super) fn text(&self) -> Cow<'_, [u8]> {
        match self.pieces.len() {
            0 => Cow::Borrowed(&[]),
            1 => Cow::Borrowed(&self.pieces[0]),
            _ => {
                let mut all = Vec::with_capacity(self.len);
                self.pieces.iter().for_each(|p| all.extend_from_slice(p));
                Cow::Owned(all)
            }
        }
    }

    /// Holds this instead.
    pub(super) fn replace(&mut self, text: Vec<u8>) {
        *self = Held::default();
        self.push(text.into());
    }

    /// Gives everything out, cut; the last piece is marked if `end`.
    pub(super) fn drain(&mut self, end: bool, mut emit: impl FnMut(Bytes, bool)) {
        let pieces = std::mem::take(self).pieces;
        if pieces.is_empty() {
            cut(Bytes::new(), end, &mut emit);
        }
        let last = pieces.len().saturating_sub(1);
        for (i, piece) in pieces.into_iter().enumerate() {
            cut(piece, end && i == last, &mut emit);
        }
    }
}

/// Cuts `data` into pieces; the last one is marked if `end`. An empty piece is only worth sending if it is the end.
pub(super) fn cut(mut data: Bytes, end: bool, mut emit: impl FnMut(Bytes, bool)) {
    while data.len() > PIECE {
        emit(data.split_to(PIECE), false);
    }
    if end || !data.is_empty() {
        emit(data, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(held: &mut Held, end: bool) -> Vec<(usize, bool)> {
        let mut out = Vec::new();
        held.drain(end, |piece, end| out.push((piece.len(), end)));
        out
    }

    #[test]
    fn pieces_are_small_and_the_end_is_told_once() {
        let mut held = Held::default();
        assert_eq!(out(&mut held, true), [(0, true)]);
        assert_eq!(out(&mut held, false), []);
        held.push(Bytes::from(vec![1; 2 * PIECE + 1]));
        held.push(Bytes::new());
        held.push(Bytes::from(vec![1; PIECE]));
        assert_eq!(held.len(), 3 * PIECE + 1);
        assert_eq!(out(&mut held, true), [(PIECE, false), (PIECE, false), (1, false), (PIECE, true)]);
        assert_eq!((held.len(), out(&mut held, false)), (0, vec![]));
    }

    #[test]
    fn one_piece_is_read_where_it_lies() {
        let mut held = Held::default();
        held.push(Bytes::from_static(b"abc"));
        assert!(matches!(held.text(), Cow::Borrowed(b"abc")));
        held.push(Bytes::from_static(b"d"));
        assert_eq!(held.text(), &b"abcd"[..]);
        held.replace(b"xy".to_vec());
        assert_eq!(held.text(), &b"xy"[..]);
    }
}
