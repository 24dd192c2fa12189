//! How many tokens an answer says it took, in the three spellings there are.
//!
//! OpenAI counts cached tokens as part of `prompt_tokens` (or `input_tokens`). Anthropic's `input_tokens` are only what
//! was neither read from a cache nor written to it: there the parts are added up.

use super::completions::number_u32;
use super::content::NAME;
use super::json::{Cursor, Step, Type};
use super::text::Short;
use memchr::memmem;

/// Tokens of one request, as its replica counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The whole prompt, cached part included.
    pub prompt_tokens: u32,
    /// What was generated so far.
    pub completion_tokens: u32,
    /// The part of the prompt that came from the prefix cache; `None` if the replica doesn't tell.
    pub cached_tokens: Option<u32>,
}

/// What was read of one or several `usage` objects: later ones add to and replace earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    prompt: Option<u32>,
    completion: Option<u32>,
    cached: Option<u32>,
    cache_read: Option<u32>,
    cache_written: Option<u32>,
}

impl Tally {
    /// Read the value that comes next; is it an object?
    pub(super) fn read(&mut self, c: &mut Cursor<'_>) -> Step<bool> {
        if c.peek()? != Type::Object {
            c.value()?;
            return Ok(false);
        }
        let mut walk = c.object()?;
        while let Some(key) = c.key(&mut walk)? {
            let mut buf = Short::<NAME>::new();
            let slot = match buf.of(c.body(), key) {
                b"prompt_tokens" | b"input_tokens" => &mut self.prompt,
                b"completion_tokens" | b"output_tokens" => &mut self.completion,
                b"cache_read_input_tokens" => &mut self.cache_read,
                b"cache_creation_input_tokens" => &mut self.cache_written,
                b"prompt_tokens_details" | b"input_tokens_details" => {
                    self.details(c)?;
                    continue;
                }
                _ => {
                    c.value()?;
                    continue;
                }
            };
            *slot = count(c)?.or(*slot);
        }
        Ok(true)
    }

    fn details(&mut self, c: &mut Cursor<'_>) -> Step<()> {
        if c.peek()? != Type::Object {
            return c.value().map(drop);
        }
        let mut walk = c.object()?;
        while let Some(key) = c.key(&mut walk)? {
            if Short::<NAME>::new().of(c.body(), key) == b"cached_tokens" {
                self.cached = count(c)?.or(self.cached);
            } else {
                c.value()?;
            }
        }
        Ok(())
    }

    /// What `later` knows, and what only `self` knows.
    pub(super) fn merge(self, later: Tally) -> Tally {
        Tally {
            prompt: later.prompt.or(self.prompt),
            completion: later.completion.or(self.completion),
            cached: later.cached.or(self.cached),
            cache_read: later.cache_read.or(self.cache_read),
            cache_written: later.cache_written.or(self.cache_written),
        }
    }

    /// The sum; `None` while the length of the prompt is unknown.
    pub(super) fn usage(self) -> Option<Usage> {
        let beside = self.cache_read.unwrap_or(0).saturating_add(self.cache_written.unwrap_or(0));
        Some(Usage {
            prompt_tokens: self.prompt?.saturating_add(beside),
            completion_tokens: self.completion.unwrap_or(0),
            cached_tokens: self.cached.or(self.cache_read),
        })
    }
}

fn count(c: &mut Cursor<'_>) -> Step<Option<u32>> {
    let v = c.value()?;
    Ok(c.body().get(v.start..v.end).and_then(number_u32))
}

impl Usage {
    /// Read a `usage` object; `None` if it isn't one, or doesn't tell the prompt's length.
    pub fn parse(object: &[u8]) -> Option<Usage> {
        let mut tally = Tally::default();
        tally.read(&mut Cursor::new(object)).ok()?;
        tally.usage()
    }
}

/// The last `usage` object in a piece of JSON that may begin and end anywhere.
///
/// A quote inside a string is always escaped, so `"usage"` after a brace, a comma or white space, and before a colon, is
/// a key and never text.
pub(super) fn find(piece: &[u8]) -> Option<Tally> {
    let key = b"\"usage\"";
    memmem::rfind_iter(piece, key).find_map(|at| {
        let before = piece.get(at.checked_sub(1)?)?;
        if !matches!(before, b'{' | b',' | b' ' | b'\n' | b'\t' | b'\r') {
            return None;
        }
        let rest = piece.get(at + key.len()..)?.trim_ascii_start().strip_prefix(b":")?;
        let mut tally = Tally::default();
        let object = tally.read(&mut Cursor::new(rest)).ok()?;
        (object && tally.usage().is_some()).then_some(tally)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(prompt_tokens: u32, completion_tokens: u32, cached_tokens: Option<u32>) -> Option<Usage> {
        Some(Usage { prompt_tokens, completion_tokens, cached_tokens })
    }

    #[test]
    fn three_spellings() {
        for (json, want) in [
            (r#"{"prompt_tokens":9,"total_tokens":12,"completion_tokens":3}"#, usage(9, 3, None)),
            (r#"{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":8}}"#, usage(9, 0, Some(8))),
            (r#"{"prompt_tokens":9,"prompt_tokens_details":null,"completion_tokens":1}"#, usage(9, 1, None)),
            (
                r#"{"input_tokens":9,"input_tokens_details":{"cached_tokens":0},"output_tokens":2}"#,
                usage(9, 2, Some(0)),
            ),
            (
                r#"{"input_tokens":1,"cache_read_input_tokens":7,"cache_creation_input_tokens":2,"output_tokens":4}"#,
                usage(10, 4, Some(7)),
            ),
            (r#"{"output_tokens":4}"#, None),
            ("null", None),
            ("{\"prompt_tokens\":", None),
        ] {
            assert_eq!(Usage::parse(json.as_bytes()), want, "{json}");
        }
    }

    #[test]
    fn text_about_usage_is_not_usage() {
        let real = r#""usage": {"prompt_tokens":5,"completion_tokens":1}}"#;
        let text = r#"{"content":"say ,\"usage\":{\"prompt_tokens\":1}"#;
        let find = |s: String| find(s.as_bytes()).and_then(Tally::usage);
        assert_eq!(find(format!("{text}\",{real}")), usage(5, 1, None));
        assert_eq!(find(format!("{{{real},{text}\"}}")), usage(5, 1, None));
        assert_eq!(find(format!("{text}\"}}")), None);
        assert_eq!(find(r#"["usage",{"prompt_tokens":1}]"#.into()), None);
        assert_eq!(find(r#"{"of \"usage":{"prompt_tokens":1}}"#.into()), None);
        assert_eq!(find(real.into()), None);
    }
}
