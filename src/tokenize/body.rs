//! The keys of a body that say what its prompt is. Everything else is skipped, not kept.

use minijinja::value::Value;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::fmt;

/// A chat or completion body, as far as its prompt goes. Of duplicated keys the last counts, as in engines.
#[derive(Debug, Default)]
pub(super) struct Body {
    pub(super) messages: Option<Value>,
    pub(super) tools: Option<Value>,
    pub(super) tool_choice: Option<Value>,
    pub(super) documents: Option<Value>,
    pub(super) template_kwargs: Option<Value>,
    pub(super) reasoning_effort: Option<Value>,
    pub(super) add_generation_prompt: Option<bool>,
    pub(super) continue_final_message: bool,
    pub(super) add_special_tokens: Option<bool>,
    pub(super) prompt: Option<Prompt>,
    /// A key that changes the prompt in a way that is not followed here.
    pub(super) strange: Option<&'static str>,
}

/// The first prompt of `/v1/completions`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    /// Neither of both: the engine will refuse it.
    Other,
}

/// Keys that make another prompt of the same messages, or another way to make it.
const STRANGE: [&str; 3] = ["chat_template", "truncate_prompt_tokens", "prompt_embeds"];

impl Body {
    /// Reads a body. `None`: it is no JSON object.
    pub(super) fn read(body: &[u8]) -> Option<Body> {
        serde_json::from_slice(body).ok()
    }
}

impl<'de> Deserialize<'de> for Body {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_map(Keys)
    }
}

struct Keys;

impl<'de> Visitor<'de> for Keys {
    type Value = Body;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request body")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Body, A::Error> {
        let mut body = Body::default();
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            match &*key {
                "messages" => body.messages = given(map.next_value()?),
                "tools" => body.tools = given(map.next_value()?),
                "tool_choice" => body.tool_choice = given(map.next_value()?),
                "documents" => body.documents = given(map.next_value()?),
                "chat_template_kwargs" => body.template_kwargs = given(map.next_value()?),
                "reasoning_effort" => body.reasoning_effort = given(map.next_value()?),
                "add_generation_prompt" => body.add_generation_prompt = flag(&map.next_value()?),
                "add_special_tokens" => body.add_special_tokens = flag(&map.next_value()?),
                "continue_final_message" => {
                    body.continue_final_message = flag(&map.next_value()?).unwrap_or(false);
                }
                "prompt" => body.prompt = Some(map.next_value()?),
                other => match STRANGE.iter().find(|s| **s == other) {
                    Some(strange) => {
                        if given(map.next_value()?).is_some() {
                            body.strange = Some(strange);
                        }
                    }
                    None => {
                        map.next_value::<IgnoredAny>()?;
                    }
                },
            }
        }
        Ok(body)
    }
}

fn given(value: Value) -> Option<Value> {
    (!value.is_none()).then_some(value)
}

fn flag(value: &Value) -> Option<bool> {
    given(value.clone()).map(|v| v.is_true())
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(First)
    }
}

struct First;

impl<'de> Visitor<'de> for First {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a prompt")
    }

    fn visit_str<E>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Prompt, E> {
        Ok(Prompt::Text(text))
    }

    fn visit_unit<E>(self) -> Result<Prompt, E> {
        Ok(Prompt::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Prompt, E> {
        Ok(Prompt::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Prompt, E> {
        Ok(Prompt::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Prompt, E> {
        Ok(Prompt::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Prompt, E> {
        Ok(Prompt::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Prompt, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Prompt::Other)
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Prompt, A::Error> {
        let first = match seq.next_element::<Element>()? {
            None => Prompt::Other,
            Some(Element::Prompt(prompt)) => {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                prompt
            }
            Some(Element::Id(first)) => {
                let mut ids = vec![first];
                while let Some(Element::Id(id)) = seq.next_element()? {
                    ids.push(id);
                }
                let whole = seq.next_element::<IgnoredAny>()?.is_none();
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                if whole { Prompt::Ids(ids) } else { Prompt::Other }
            }
        };
        Ok(first)
    }
}

/// An element of an array of prompts, or of ids.
enum Element {
    Id(u32),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token id, a text or an array of ids")
            }

            fn visit_u64<E>(self, id: u64) -> Result<Element, E> {
                Ok(u32::try_from(id).map_or(Element::Prompt(Prompt::Other), Element::Id))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Element, E> {
                Ok(Element::Prompt(Prompt::Other))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Element, E> {
                Ok(Element::Prompt(Prompt::Other))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Element, E> {
                Ok(Element::Prompt(Prompt::Other))
            }

            fn visit_unit<E>(self) -> Result<Element, E> {
                Ok(Element::Prompt(Prompt::Other))
            }

            fn visit_str<E>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Prompt(Prompt::Text(text.to_owned())))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, seq: A) -> Result<Element, A::Error> {
                First.visit_seq(seq).map(Element::Prompt)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Element, A::Error> {
                First.visit_map(map).map(Element::Prompt)
            }
        }
        d.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(json: &str) -> Prompt {
        Body::read(format!("{{\"prompt\": {json}, \"model\": \"m\"}}").as_bytes()).unwrap().prompt.unwrap()
    }

    #[test]
    fn the_first_of_several_prompts_counts() {
        let text = |s: &str| Prompt::Text(s.to_owned());
        assert_eq!(prompt("\"a\\n\""), text("a\n"));
        assert_eq!(prompt("[\"a\", \"b\"]"), text("a"));
        assert_eq!(prompt("[1, 2, 3]"), Prompt::Ids(vec![1, 2, 3]));
        assert_eq!(prompt("[[1, 2], [3], []]"), Prompt::Ids(vec![1, 2]));
        for odd in ["[]", "{}", "1", "null", "[-1]", "[1, \"a\", 2]", "[1.5]", "[{\"a\": [1]}]", "true"] {
            assert_eq!(prompt(odd), Prompt::Other, "{odd}");
        }
    }

    #[test]
    fn the_last_of_duplicated_keys_counts() {
        let body = Body::read(br#"{"tools": [1], "tools": null, "add_generation_prompt": false}"#).unwrap();
        assert!(body.tools.is_none());
        assert_eq!(body.add_generation_prompt, Some(false));
        assert_eq!(Body::read(br#"{"chat_template": "x"}"#).unwrap().strange, Some("chat_template"));
        assert_eq!(Body::read(br#"{"chat_template": null}"#).unwrap().strange, None);
        assert!(Body::read(b"[1]").is_none());
    }
}
