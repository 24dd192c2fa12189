//! Values that must not be seen: keys and tokens.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;
use std::fmt;

/// A key or token. `Debug`, `Display` and `Serialize` print `***`, so that a configuration can be shown and logged.
#[derive(Clone, PartialEq, Eq, JsonSchema)]
#[schemars(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Secret(value.into())
    }

    /// The value itself: for the header it goes into, and nothing else.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Is `candidate` this secret? The time taken depends on the lengths alone, not on how much of it was right.
    pub fn matches(&self, candidate: &str) -> bool {
        let (a, b) = (self.0.as_bytes(), candidate.as_bytes());
        a.len() == b.len() && a.iter().zip(b).fold(0u8, |diff, (x, y)| diff | (x ^ y)) == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

// By hand because the derived errors would quote the value.
impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match Value::deserialize(d)? {
            Value::String(s) => Ok(Secret(s)),
            _ => Err(de::Error::custom("must be text; put it in quotes")),
        }
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_printed() {
        let s = Secret::new("sk-very-private");
        for shown in
            [format!("{s:?}"), format!("{s}"), serde_json::to_string(&s).unwrap(), format!("{:?}", Some(&s))]
        {
            assert!(!shown.contains("private"), "{shown}");
            assert!(shown.contains("***"));
        }
        assert_eq!(s.expose(), "sk-very-private");
    }

    #[test]
    fn a_secret_of_the_wrong_type_is_not_quoted_in_the_error() {
        let e = serde_json::from_str::<Secret>("778899").unwrap_err().to_string();
        assert!(e.contains("quotes") && !e.contains("778899"), "{e}");
    }

    #[test]
    fn only_the_whole_secret_matches() {
        let s = Secret::new("abc");
        assert!(s.matches("abc"));
        for wrong in ["", "ab", "abd", "abcd", "ABC"] {
            assert!(!s.matches(wrong), "{wrong}");
        }
    }
}
