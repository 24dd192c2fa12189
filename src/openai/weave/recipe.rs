//! Which requests can be continued exactly, and what of them a continuation repeats.

use super::super::content::NAME;
use super::super::json::Cursor;
use super::super::scan::{Scan, Shape, says};
use super::super::text::Short;

/// Parameters that mean the same at each token whatever came before: repeated as they are.
const STATELESS: [&[u8]; 17] = [
    b"model",
    b"temperature",
    b"top_p",
    b"top_k",
    b"min_p",
    b"ignore_eos",
    b"stop_token_ids",
    b"include_stop_str_in_output",
    b"skip_special_tokens",
    b"spaces_between_special_tokens",
    b"logit_bias",
    b"allowed_token_ids",
    b"cache_salt",
    b"priority",
    b"user",
    b"session_id",
    b"safety_identifier",
];
/// Parameters that have had their effect once the prompt's tokens are known, or that the continuation sets itself.
const SPENT: [&[u8]; 22] = [
    b"messages",
    b"prompt",
    b"stream",
    b"stream_options",
    b"return_token_ids",
    b"max_tokens",
    b"max_completion_tokens",
    b"n",
    b"chat_template",
    b"chat_template_kwargs",
    b"add_generation_prompt",
    b"continue_final_message",
    b"add_special_tokens",
    b"documents",
    b"reasoning_effort",
    b"metadata",
    b"store",
    b"service_tier",
    b"prompt_cache_key",
    b"tool_choice",
    b"parallel_tool_calls",
    b"request_id",
];
/// A client's own parameters are kept up to this size.
const MAX_KEPT: usize = 16 * 1024;

/// What a continuation repeats of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Members of a JSON object, each with a comma behind it.
    kept: Box<[u8]>,
    /// Is it a chat (and not a completion)?
    pub(super) chat: bool,
    /// The client's bound on output tokens.
    pub(super) max_tokens: Option<u32>,
    /// The client asked for token ids itself.
    pub(super) wants_ids: bool,
    /// The client asked for usage.
    pub(super) wants_usage: bool,
}

impl Recipe {
    /// How to continue the answer to `body`; `None` if that can't be exact.
    ///
    /// Left out is whatever depends on more than the tokens so far (several choices, log probabilities, tools, grammars,
    /// penalties, stop strings, seeds, a least length), media (their tokens can't be given as ids), and every parameter
    /// that isn't known here.
    pub fn read(scan: &Scan<'_>, body: &[u8]) -> Option<Self> {
        let chat = match scan.shape {
            Shape::Chat => true,
            Shape::Completions => false,
            Shape::Responses | Shape::Messages => return None,
        };
        let continuous = scan.stream_options.as_ref().is_some_and(|o| o.continuous);
        if !scan.stream || scan.n != 1 || scan.prompts != 1 || scan.media > 0 || continuous {
            return None;
        }
        // What a completion makes by default is the engine's own idea.
        if !scan.features.is_empty() || (!chat && scan.max_tokens.is_none()) {
            return None;
        }
        let mut recipe = Recipe {
            kept: Box::default(),
            chat,
            max_tokens: scan.max_tokens,
            wants_ids: false,
            wants_usage: scan.include_usage,
        };
        recipe.walk(body)?;
        Some(recipe)
    }

    fn walk(&mut self, body: &[u8]) -> Option<()> {
        let mut kept = Vec::new();
        let mut c = Cursor::new(body);
        let mut walk = c.object().ok()?;
        while let Some(key) = c.key(&mut walk).ok()? {
            let v = c.value().ok()?;
            let mut buf = Short::<NAME>::new();
            let name = buf.of(body, key);
            let value = body.get(v.start..v.end)?;
            match name {
                b"return_token_ids" if value == b"true" => self.wants_ids = true,
                // It could be changed, but nobody who writes it out as false would gain by it.
                b"return_token_ids" => return None,
                _ if STATELESS.contains(&name) => {
                    kept.push(b'"');
                    kept.extend_from_slice(name);
                    kept.extend_from_slice(b"\":");
                    kept.extend_from_slice(value);
                    kept.push(b',');
                }
                _ if SPENT.contains(&name) || !says(body, v) => {}
                _ => return None,
            }
        }
        self.kept = kept.into();
        (self.kept.len() <= MAX_KEPT).then_some(())
    }

    /// Must the engine be asked to tell token ids?
    pub fn asks_for_ids(&self) -> bool {
        !self.wants_ids
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.kept.len()
    }

    /// The body of a request to `/v1/completions` that goes on behind `ids` with at most `max_tokens` more.
    pub(super) fn body(&self, ids: &[u32], max_tokens: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.kept.len() + ids.len() * 7 + 128);
        out.push(b'{');
        out.extend_from_slice(&self.kept);
        out.extend_from_slice(b"\"stream\":true,\"stream_options\":{\"include_usage\":true},\"return_token_ids\":true,\"max_tokens\":");
        decimal(&mut out, max_tokens);
        out.extend_from_slice(b",\"prompt\":[");
        for (i, id) in ids.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            decimal(&mut out, *id);
        }
        out.extend_from_slice(b"]}");
        out
    }
}

/// Appends a number's digits.
pub(super) fn decimal(out: &mut Vec<u8>, mut n: u32) {
    let mut digits = [0u8; 10];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::{Ignore, Scratch, scan};

    fn read(shape: Shape, body: &str) -> Option<Recipe> {
        let scan = scan(shape, body.as_bytes(), &mut Ignore, &mut Scratch::default()).unwrap();
        Recipe::read(&scan, body.as_bytes())
    }

    #[test]
    fn what_is_stateless_is_repeated_and_nothing_else() {
        let body = r#"{"messages":[{"role":"user","content":"x"}],"model":"m","temperature":0.70,"stream":true,"max_tokens":9,"tools":[],"seed":null,"logit_bias":{"7":-1e2}}"#;
        let recipe = read(Shape::Chat, body).unwrap();
        assert!(recipe.asks_for_ids() && !recipe.wants_usage && recipe.chat);
        assert_eq!(
            String::from_utf8(recipe.body(&[0, 17, 4_294_967_295], 5)).unwrap(),
            r#"{"model":"m","temperature":0.70,"logit_bias":{"7":-1e2},"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true,"max_tokens":5,"prompt":[0,17,4294967295]}"#
        );
    }

    #[test]
    fn what_cannot_be_exact_is_not_tried() {
        let with =
            |more: &str| format!(r#"{{"messages":[{{"role":"user","content":"x"}}],"stream":true,{more}}}"#);
        for more in [
            r#""n":2"#,
            r#""logprobs":true"#,
            r#""tools":[{"type":"function"}]"#,
            r#""response_format":{"type":"json_object"}"#,
            r#""frequency_penalty":0.1"#,
            r#""stop":["\n"]"#,
            r#""seed":1"#,
            r#""min_tokens":3"#,
            r#""thinking_token_budget":100"#,
            r#""bad_words":["x"]"#,
            r#""something_new":1"#,
            r#""return_token_ids":false"#,
            r#""stream":false"#,
            r#""stream_options":{"continuous_usage_stats":true}"#,
            r#""messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]"#,
        ] {
            assert_eq!(read(Shape::Chat, &with(more)), None, "{more}");
        }
        assert!(read(Shape::Chat, &with(r#""return_token_ids":true"#)).is_some_and(|r| !r.asks_for_ids()));
        assert!(read(Shape::Chat, &with(r#""something_new":null"#)).is_some());
        assert_eq!(read(Shape::Completions, r#"{"prompt":"x","stream":true}"#), None, "no bound");
        assert!(read(Shape::Completions, r#"{"prompt":"x","stream":true,"max_tokens":3}"#).is_some());
        assert_eq!(read(Shape::Completions, r#"{"prompt":["x","y"],"stream":true,"max_tokens":3}"#), None);
        assert_eq!(read(Shape::Messages, r#"{"messages":[],"stream":true,"max_tokens":3}"#), None);
    }
}
