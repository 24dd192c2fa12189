//! Durations and sizes as people write them: `500ms`, `5s`, `2m`; `64KiB`, `8MB`.
//!
//! A bare number is seconds, or bytes. Parsing is strict: an unknown unit is an error, never a guess.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A span of time in the configuration; at most ten years, to the nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(Duration);

/// A number of bytes in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(u64);

/// Longest duration accepted: larger ones are slips of the pen, and deadlines of `now + d` must not overflow.
const MAX_SECONDS: f64 = 10.0 * 365.0 * 86_400.0;

impl Seconds {
    /// `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Seconds(Duration::from_millis(ms))
    }

    /// `s` seconds.
    pub const fn from_secs(s: u64) -> Self {
        Seconds(Duration::from_secs(s))
    }

    /// The span as the standard library's type.
    pub const fn get(self) -> Duration {
        self.0
    }

    /// The span in seconds.
    pub fn secs(self) -> f64 {
        self.0.as_secs_f64()
    }

    fn checked(s: f64) -> Result<Self, String> {
        if !s.is_finite() || s < 0.0 {
            return Err("a duration can't be negative or infinite".into());
        }
        if s > MAX_SECONDS {
            return Err("a duration can't be longer than ten years".into());
        }
        Ok(Seconds(Duration::from_secs_f64(s)))
    }
}

impl Size {
    /// `n` bytes.
    pub const fn bytes(n: u64) -> Self {
        Size(n)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number of bytes as a length in memory; saturates on 32-bit machines.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// Splits `12.5 ms` into its number and its unit.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim()))
}

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (n, unit) =
            split(text).ok_or_else(|| format!("`{text}` is not a duration; write 500ms, 5s or 2m"))?;
        let factor = match unit {
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "" | "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(format!("`{text}`: unknown unit `{unit}`; use us, ms, s, m, h or d")),
        };
        Self::checked(n * factor)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (n, unit) =
            split(text).ok_or_else(|| format!("`{text}` is not a size; write 4096, 64KiB or 8MB"))?;
        let factor = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1.0,
            "kb" | "k" => 1e3,
            "mb" | "m" => 1e6,
            "gb" | "g" => 1e9,
            "kib" | "ki" => 1024.0,
            "mib" | "mi" => 1024.0 * 1024.0,
            "gib" | "gi" => 1024.0 * 1024.0 * 1024.0,
            _ => return Err(format!("`{text}`: unknown unit `{unit}`; use B, KB, MB, GB, KiB, MiB or GiB")),
        };
        let bytes = n * factor;
        // 2^53: above it a float no longer tells one byte from the next, and no limit of ours is that large.
        if bytes > 9_007_199_254_740_992.0 {
            return Err(format!("`{text}` is too large"));
        }
        Ok(Size(bytes.round() as u64))
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos.is_multiple_of(1_000_000_000) {
            write!(f, "{}s", self.0.as_secs())
        } else if nanos.is_multiple_of(1_000_000) {
            write!(f, "{}ms", self.0.as_millis())
        } else {
            write!(f, "{}s", self.0.as_secs_f64())
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.iter().find(|(size, _)| self.0 >= *size && self.0.is_multiple_of(*size)) {
            Some((size, unit)) => write!(f, "{}{unit}", self.0 / size),
            None => write!(f, "{}", self.0),
        }
    }
}

struct SecondsVisitor;

impl de::Visitor<'_> for SecondsVisitor {
    type Value = Seconds;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration like 500ms, 5s, 2m, or a number of seconds")
    }

    fn visit_u64<E: de::Error>(self, v: u64) -> Result<Seconds, E> {
        Seconds::checked(v as f64).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Seconds, E> {
        Seconds::checked(v as f64).map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Seconds, E> {
        Seconds::checked(v).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<Seconds, E> {
        v.parse().map_err(E::custom)
    }
}

struct SizeVisitor;

impl de::Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size like 64KiB, 8MB, or a number of bytes")
    }

    fn visit_u64<E: de::Error>(self, v: u64) -> Result<Size, E> {
        Ok(Size(v))
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Size, E> {
        u64::try_from(v).map(Size).map_err(|_| E::custom("a size can't be negative"))
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<Size, E> {
        v.parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(SecondsVisitor)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(SizeVisitor)
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl JsonSchema for Seconds {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "500ms, 5s, 2m, 1h, or a number of seconds",
            "anyOf": [
                { "type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]*)?\s*(us|µs|ms|s|m|min|h|d)?\s*$" },
                { "type": "number", "minimum": 0 }
            ]
        })
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "64KiB, 8MB, or a number of bytes",
            "anyOf": [
                { "type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]*)?\s*([kKmMgG]([iI]?[bB]?)|[bB])?\s*$" },
                { "type": "integer", "minimum": 0 }
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_written() {
        for (text, ms) in
            [("500ms", 500), ("5s", 5000), ("2m", 120_000), ("1.5s", 1500), ("7", 7000), (" 1 h ", 3_600_000)]
        {
            assert_eq!(text.parse::<Seconds>().unwrap(), Seconds::from_millis(ms), "{text}");
        }
        for text in ["", "s", "5 parsecs", "-1s", "1e9s", "4000d", "5s5"] {
            assert!(text.parse::<Seconds>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_read_as_written() {
        for (text, n) in
            [("64KiB", 65_536), ("8MB", 8_000_000), ("1.5 KiB", 1536), ("12", 12), ("1gi", 1 << 30)]
        {
            assert_eq!(text.parse::<Size>().unwrap(), Size::bytes(n), "{text}");
        }
        for text in ["", "KiB", "5 XB", "-1", "99999999999GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_printed_reads_back_the_same() {
        for d in [0, 1, 500, 1000, 61_500, 3_600_000].map(Seconds::from_millis) {
            assert_eq!(d.to_string().parse::<Seconds>().unwrap(), d);
        }
        for s in [0, 1, 1000, 1024, 3 << 20, 5 << 30].map(Size::bytes) {
            assert_eq!(s.to_string().parse::<Size>().unwrap(), s);
        }
    }

    #[test]
    fn numbers_in_the_file_are_seconds_and_bytes() {
        assert_eq!(serde_json::from_str::<Seconds>("0.25").unwrap(), Seconds::from_millis(250));
        assert_eq!(serde_json::from_str::<Size>("4096").unwrap(), Size::bytes(4096));
        assert!(serde_json::from_str::<Seconds>("-1").is_err());
        assert!(serde_json::from_str::<Size>("-1").is_err());
        assert!(serde_json::from_str::<Seconds>("true").is_err());
    }
}
