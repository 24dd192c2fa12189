//! What the first part of a body says, when the whole is too long to be read.

use super::completions::number_u32;
use super::content::NAME;
use super::json::{Cursor, Step, Type};
use super::scan::Shape;
use super::text::{Short, whole};

/// The parameters that come before the cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The model asked for.
    pub model: Option<String>,
    /// Is the answer to be streamed?
    pub stream: bool,
    /// Bound on output tokens.
    pub max_tokens: Option<u32>,
}

/// Reads `part` as far as it goes. Nothing is refused: the replica sees the whole.
pub fn scan_start(shape: Shape, part: &[u8]) -> Start {
    let mut start = Start::default();
    // It ends with a fault at the cut, wherever that is.
    let _ = start.read(shape, &mut Cursor::new(part));
    start
}

impl Start {
    fn read(&mut self, shape: Shape, c: &mut Cursor<'_>) -> Step<()> {
        let mut walk = c.object()?;
        while let Some(key) = c.key(&mut walk)? {
            let mut buf = Short::<NAME>::new();
            let name = buf.of(c.body(), key);
            let v = c.value()?;
            match name {
                b"model" => self.model = v.string().map(|s| whole(c.body(), s).into_owned()),
                b"stream" => self.stream = v.ty == Type::True,
                b"max_tokens" | b"max_completion_tokens" | b"max_output_tokens"
                    if v.ty == Type::Number && shape_takes(shape, name) =>
                {
                    self.max_tokens = c.body().get(v.start..v.end).and_then(number_u32).or(self.max_tokens);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Is `name` the bound on output in bodies of this shape?
fn shape_takes(shape: Shape, name: &[u8]) -> bool {
    match shape {
        Shape::Responses => name == b"max_output_tokens",
        Shape::Chat => name != b"max_output_tokens",
        Shape::Completions | Shape::Messages => name == b"max_tokens",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_before_the_cut_is_known() {
        let body = br#"{"model":"a\u0062","stream":true,"max_tokens":7,"messages":[{"role":"user","content":"long, long"}],"model":"z"}"#;
        let known = Start { model: Some("ab".into()), stream: true, max_tokens: Some(7) };
        assert_eq!(scan_start(Shape::Chat, &body[..70]), known);
        assert_eq!(scan_start(Shape::Chat, body).model.as_deref(), Some("z"), "of duplicated keys the last");
        assert_eq!(scan_start(Shape::Chat, &body[..12]), Start::default());
        assert_eq!(scan_start(Shape::Responses, &body[..70]).max_tokens, None);
        assert_eq!(scan_start(Shape::Chat, b"not json"), Start::default());
    }
}
