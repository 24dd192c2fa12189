//! msgpack, read where it lies.
//!
//! A length is never believed beyond the bytes that are there: an element takes at least one byte, so a list can't
//! have more elements than bytes are left, and nothing is allocated for what was only announced.

use rmp::Marker;

/// Nesting that is followed when a value is skipped; events have three levels.
const DEPTH: u32 = 32;

/// Why a value couldn't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The bytes end in the middle of it.
    Short,
    /// It isn't of the kind that was wanted.
    Kind,
    /// It is nested too deeply.
    Deep,
}

/// The bytes that are still to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Fault> {
        let (front, rest) = self.0.split_at_checked(n).ok_or(Fault::Short)?;
        self.0 = rest;
        Ok(front)
    }

    fn be(&mut self, n: usize) -> Result<u64, Fault> {
        Ok(self.take(n)?.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn len(&mut self, n: usize) -> Result<usize, Fault> {
        usize::try_from(self.be(n)?).map_err(|_| Fault::Short)
    }

    fn peek(self) -> Result<Marker, Fault> {
        self.0.first().map(|&byte| Marker::from_u8(byte)).ok_or(Fault::Short)
    }

    fn marker(&mut self) -> Result<Marker, Fault> {
        Ok(Marker::from_u8(*self.take(1)?.first().ok_or(Fault::Short)?))
    }

    /// The number of elements of a list, which are to be read next.
    pub(super) fn list(&mut self) -> Result<usize, Fault> {
        let n = match self.marker()? {
            Marker::FixArray(n) => usize::from(n),
            Marker::Array16 => self.len(2)?,
            Marker::Array32 => self.len(4)?,
            _ => return Err(Fault::Kind),
        };
        if n > self.0.len() { Err(Fault::Short) } else { Ok(n) }
    }

    /// The number of pairs of a map, which are to be read next.
    pub(super) fn map(&mut self) -> Result<usize, Fault> {
        let n = match self.marker()? {
            Marker::FixMap(n) => usize::from(n),
            Marker::Map16 => self.len(2)?,
            Marker::Map32 => self.len(4)?,
            _ => return Err(Fault::Kind),
        };
        if n > self.0.len() / 2 { Err(Fault::Short) } else { Ok(n) }
    }

    pub(super) fn is_list(self) -> bool {
        matches!(self.peek(), Ok(Marker::FixArray(_) | Marker::Array16 | Marker::Array32))
    }

    pub(super) fn is_text(self) -> bool {
        matches!(self.peek(), Ok(Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32))
    }

    /// Takes a nil, if one is next.
    pub(super) fn nil(&mut self) -> bool {
        let nil = self.peek() == Ok(Marker::Null);
        if nil {
            self.0 = &self.0[1..];
        }
        nil
    }

    /// An integer of either sign, as the 64 bits that it has.
    pub(super) fn int(&mut self) -> Result<u64, Fault> {
        let signed = |value: u64, bits: u32| ((value << (64 - bits)) as i64 >> (64 - bits)) as u64;
        Ok(match self.marker()? {
            Marker::FixPos(n) => u64::from(n),
            Marker::FixNeg(n) => i64::from(n) as u64,
            Marker::U8 => self.be(1)?,
            Marker::U16 => self.be(2)?,
            Marker::U32 => self.be(4)?,
            Marker::U64 | Marker::I64 => self.be(8)?,
            Marker::I8 => signed(self.be(1)?, 8),
            Marker::I16 => signed(self.be(2)?, 16),
            Marker::I32 => signed(self.be(4)?, 32),
            _ => return Err(Fault::Kind),
        })
    }

    /// An integer, if one is next; else nothing is taken.
    pub(super) fn int_if(&mut self) -> Result<u64, Fault> {
        let mut ahead = *self;
        let int = ahead.int()?;
        *self = ahead;
        Ok(int)
    }

    /// A number that is to be no more than `most`.
    pub(super) fn small(&mut self, most: u32) -> Result<u32, Fault> {
        u32::try_from(self.int()?).ok().filter(|&n| n <= most).ok_or(Fault::Kind)
    }

    /// A number of any kind.
    pub(super) fn number(&mut self) -> Result<f64, Fault> {
        Ok(match self.peek()? {
            Marker::F64 => {
                self.marker()?;
                f64::from_bits(self.be(8)?)
            }
            Marker::F32 => {
                self.marker()?;
                f64::from(f32::from_bits(self.be(4)? as u32))
            }
            _ => self.int()? as i64 as f64,
        })
    }

    /// Text or bytes.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Fault> {
        let n = match self.marker()? {
            Marker::FixStr(n) => usize::from(n),
            Marker::Str8 | Marker::Bin8 => self.len(1)?,
            Marker::Str16 | Marker::Bin16 => self.len(2)?,
            Marker::Str32 | Marker::Bin32 => self.len(4)?,
            _ => return Err(Fault::Kind),
        };
        self.take(n)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Fault> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Fault::Kind)
    }

    /// Passes over one value, whatever it is. Returns the bytes that it took.
    pub(super) fn skip(&mut self) -> Result<&'a [u8], Fault> {
        let before = self.0;
        self.skip_at(DEPTH)?;
        Ok(&before[..before.len() - self.0.len()])
    }

    fn skip_at(&mut self, depth: u32) -> Result<(), Fault> {
        let depth = depth.checked_sub(1).ok_or(Fault::Deep)?;
        let fixed = match self.peek()? {
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => 1,
            Marker::Reserved => return Err(Fault::Kind),
            Marker::U8 | Marker::I8 => 2,
            Marker::U16 | Marker::I16 | Marker::FixExt1 => 3,
            Marker::FixExt2 => 4,
            Marker::U32 | Marker::I32 | Marker::F32 => 5,
            Marker::FixExt4 => 6,
            Marker::U64 | Marker::I64 | Marker::F64 => 9,
            Marker::FixExt8 => 10,
            Marker::FixExt16 => 18,
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                return self.bytes().map(drop);
            }
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => return self.bytes().map(drop),
            Marker::Ext8 | Marker::Ext16 | Marker::Ext32 => {
                let width = match self.marker()? {
                    Marker::Ext8 => 1,
                    Marker::Ext16 => 2,
                    _ => 4,
                };
                let n = self.len(width)?;
                self.take(1)?;
                return self.take(n).map(drop);
            }
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                let n = self.list()?;
                return (0..n).try_for_each(|_| self.skip_at(depth));
            }
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
                let n = self.map()?;
                return (0..2 * n).try_for_each(|_| self.skip_at(depth));
            }
        };
        self.take(fixed).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_width() {
        let int = |bytes: &[u8]| Reader::new(bytes).int();
        assert_eq!(int(&[0x7f]), Ok(127));
        assert_eq!(int(&[0xff]), Ok(u64::MAX));
        assert_eq!(int(&[0xd0, 0x80]), Ok(-128i64 as u64));
        assert_eq!(int(&[0xd1, 0xff, 0xfe]), Ok(-2i64 as u64));
        assert_eq!(int(&[0xcd, 1, 0]), Ok(256));
        assert_eq!(int(&[0xcf, 0x80, 0, 0, 0, 0, 0, 0, 1]), Ok((1 << 63) + 1));
        assert_eq!(int(&[0xd3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), Ok(u64::MAX));
        assert_eq!(int(&[0xcf, 0x80]), Err(Fault::Short));
        assert_eq!(int(&[0xa1, b'x']), Err(Fault::Kind));
        assert_eq!(Reader::new(&[0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0]).number(), Ok(1.5));
        assert_eq!(Reader::new(&[0xd0, 0xff]).number(), Ok(-1.0));
    }

    #[test]
    fn lengths_are_not_believed() {
        for bytes in [&[0xdd, 0xff, 0xff, 0xff, 0xff][..], &[0xdf, 0x7f, 0xff, 0xff, 0xff, 1, 2]] {
            assert_eq!(Reader::new(bytes).skip().map(<[u8]>::len), Err(Fault::Short));
        }
        assert_eq!(Reader::new(&[0xc6, 0xff, 0xff, 0xff, 0xff, 1]).bytes(), Err(Fault::Short));
        let deep = vec![0x91; 4000];
        assert_eq!(Reader::new(&deep).skip().map(<[u8]>::len), Err(Fault::Deep));
    }
}
