//! Where quotes and backslashes are in the next few bytes: one bit a byte, the first byte lowest.
//!
//! In text with an escape every few dozen bytes, calling a vectorised search for each of them costs more than the search
//! itself. A window answers for all of its bytes at once and without a branch. SSE2 is part of every x86-64; elsewhere
//! the same is done eight bytes at a time in plain integers.

/// The bytes of a window that are a quote, and those that are a backslash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hits<T> {
    pub(super) quotes: T,
    pub(super) backslashes: T,
}

/// The hits in sixteen bytes.
#[inline]
pub(super) fn sixteen(bytes: &[u8; 16]) -> Hits<u16> {
    Hits { quotes: equal(bytes, b'"'), backslashes: equal(bytes, b'\\') }
}

/// The hits in 64 bytes.
#[inline]
pub(super) fn sixty_four(bytes: &[u8; 64]) -> Hits<u64> {
    let mut hits = Hits { quotes: 0, backslashes: 0 };
    let (lanes, _) = bytes.as_chunks::<16>();
    for (i, lane) in lanes.iter().enumerate() {
        let some = sixteen(lane);
        hits.quotes |= u64::from(some.quotes) << (16 * i);
        hits.backslashes |= u64::from(some.backslashes) << (16 * i);
    }
    hits
}

/// The backslashes that begin an escape, and whether the byte after the window is an escaped one. `carried`: the first
/// byte of the window is escaped itself.
///
/// Of a run of backslashes every other one begins an escape, from the first that is not escaped itself. Runs are rarer
/// than single ones by far, so the loop is short: it takes a turn an escape only where two backslashes are neighbours.
#[inline]
pub(super) fn escapes(backslashes: u64, carried: bool) -> (u64, bool) {
    let mut starts = backslashes & !u64::from(carried);
    if starts & (starts << 1) != 0 {
        let mut left = starts;
        starts = 0;
        while left != 0 {
            let first = left & left.wrapping_neg();
            starts |= first;
            left &= !(first | first << 1);
        }
    }
    (starts, starts >> 63 == 1)
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn equal(bytes: &[u8; 16], wanted: u8) -> u16 {
    use safe_arch::{cmp_eq_mask_i8_m128i, load_unaligned_m128i, move_mask_i8_m128i, set_splat_i8_m128i};
    let hits = cmp_eq_mask_i8_m128i(load_unaligned_m128i(bytes), set_splat_i8_m128i(wanted.cast_signed()));
    // The mask of sixteen bytes has sixteen bits.
    move_mask_i8_m128i(hits) as u16
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn equal(bytes: &[u8; 16], wanted: u8) -> u16 {
    portable(bytes, wanted)
}

/// Like `equal`, without vectors.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline]
fn portable(bytes: &[u8; 16], wanted: u8) -> u16 {
    const LOW: u64 = 0x7F7F_7F7F_7F7F_7F7F;
    let eight = |word: u64| {
        let differs = word ^ u64::from_ne_bytes([wanted; 8]);
        // The top bit of each byte that is zero, without carries from one byte to the next.
        let zero = !(((differs & LOW) + LOW) | differs | LOW);
        // Those eight bits, brought together at the top of the product.
        ((zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u16
    };
    let both = u128::from_le_bytes(*bytes);
    eight(both as u64) | eight((both >> 64) as u64) << 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn windows_find_what_a_loop_finds(bytes in prop::array::uniform16(prop::sample::select(&b"\"\\a\x22\x23\xa2\xdc\x5d\x80\x00\xff"[..]))) {
            let slow = |c| (0..16).fold(0u16, |mask, i| mask | u16::from(bytes[i] == c) << i);
            prop_assert_eq!(sixteen(&bytes), Hits { quotes: slow(b'"'), backslashes: slow(b'\\') });
            prop_assert_eq!(portable(&bytes, b'"'), slow(b'"'));
            prop_assert_eq!(portable(&bytes, b'\\'), slow(b'\\'));
        }

        #[test]
        fn every_other_backslash_of_a_run_escapes(a in any::<u64>(), b in any::<u64>(), carried: bool) {
            for backslashes in [a, a | b, a & b, u64::MAX] {
                let (mut want, mut escaped) = (0, carried);
                for i in 0..64 {
                    let starts = !escaped && backslashes >> i & 1 == 1;
                    want |= u64::from(starts) << i;
                    escaped = starts;
                }
                prop_assert_eq!(escapes(backslashes, carried), (want, escaped));
            }
        }
    }

    #[test]
    fn lanes_are_in_order() {
        let mut bytes = [b'x'; 64];
        for (i, c) in [(0, b'"'), (15, b'\\'), (16, b'"'), (40, b'\\'), (63, b'"')] {
            bytes[i] = c;
        }
        let hits = sixty_four(&bytes);
        assert_eq!(hits, Hits { quotes: 1 | 1 << 16 | 1 << 63, backslashes: 1 << 15 | 1 << 40 });
    }
}
