//! A chat template, rendered as Transformers renders it: Jinja with trimmed blocks, Python's methods on strings, lists
//! and maps, and the few functions that templates may count on.

use super::clock;
use super::fields::Fields;
use super::format::{self, Format};
use super::python::{self, Style};
use super::{LoadError, Unrendered};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The templates of a model, compiled.
#[derive(Debug)]
pub(super) struct Templates {
    env: Environment<'static>,
    formats: BTreeMap<String, Format>,
    /// Does the text of the default template name the developer role?
    developer: bool,
    specials: Vec<(String, String)>,
}

/// What a template is rendered with.
#[derive(Debug)]
pub(super) struct Input {
    /// The conversation, normalised for this template.
    pub(super) messages: Vec<Value>,
    /// Tool definitions, if any.
    pub(super) tools: Option<Value>,
    /// Everything else: `add_generation_prompt`, `documents`, the request's `chat_template_kwargs`.
    pub(super) others: Fields,
}

impl Templates {
    /// Compiles `templates`; `specials` are the named special tokens.
    pub(super) fn new(
        templates: BTreeMap<String, String>,
        specials: Vec<(String, String)>,
    ) -> Result<Self, LoadError> {
        let mut env = environment();
        let developer = templates.values().any(|t| t.contains("\"developer\"") || t.contains("'developer'"));
        let formats = templates.iter().map(|(name, text)| (name.clone(), format::detect(text))).collect();
        for (name, text) in templates {
            let text = without_generation(&text);
            env.add_template_owned(name.clone(), text)
                .map_err(|e| LoadError::Template { name, detail: reason(&e) })?;
        }
        Ok(Templates { env, formats, developer, specials })
    }

    /// The template for a request with or without tools; `None` if the model has none.
    pub(super) fn pick(&self, tools: bool) -> Option<&str> {
        let name =
            if tools && self.formats.contains_key("tool_use") { "tool_use" } else { super::files::DEFAULT };
        self.formats.get_key_value(name).map(|(name, _)| name.as_str())
    }

    /// How the template `name` wants the content of messages.
    pub(super) fn format(&self, name: &str) -> Format {
        self.formats.get(name).copied().unwrap_or(Format::Text)
    }

    /// Are developer messages understood as such?
    pub(super) fn knows_developer(&self) -> bool {
        self.developer
    }

    /// Renders the template `name`.
    pub(super) fn render(&self, name: &str, input: Input) -> Result<String, Unrendered> {
        let mut context = Fields::default();
        for (key, token) in &self.specials {
            context.insert(key.as_str(), token.as_str());
        }
        context.extend(input.others);
        context.insert("messages", Value::from(input.messages));
        let tools = input.tools.unwrap_or_else(|| Value::from(()));
        context.or_insert("tools", tools);
        context.or_insert("documents", Value::from(()));
        let failed = |e: Error| Unrendered::Template(reason(&e));
        self.env.get_template(name).map_err(failed)?.render(context.into_value()).map_err(failed)
    }
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        env.set_syntax(syntax);
    }
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_formatter(|out, _, value| match value.as_str() {
        Some(s) => Ok(out.write_str(s)?),
        None => Ok(out.write_str(&python::text(value))?),
    });
    env.add_filter("tojson", tojson);
    env.add_filter("string", |value: Value| python::text(&value));
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_function("strftime_now", |form: String| clock::strftime(&form, clock::now()));
    env
}

fn tojson(value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<Value> = kwargs.get("indent")?;
    let indent = indent.filter(|v| !v.is_none()).map(|v| match v.as_usize() {
        Some(n) => " ".repeat(n.min(64)),
        None => python::text(&v),
    });
    let mut style = Style::new(indent);
    let separators: Option<Value> = kwargs.get("separators")?;
    if let Some(pair) = separators.filter(|v| !v.is_none()) {
        style.item = python::text(&pair.get_item_by_index(0)?);
        style.key = python::text(&pair.get_item_by_index(1)?);
    }
    style.ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    style.sorted = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    Ok(Value::from(python::json(&value, &style)))
}

/// The error in a line, without the template's source.
fn reason(error: &Error) -> String {
    let detail = error.detail().map(str::to_owned).unwrap_or_else(|| error.kind().to_string());
    match error.line() {
        Some(line) => format!("{detail} (line {line})"),
        None => detail,
    }
}

/// Turns `{% generation %}` blocks, which mark the assistant's tokens for training, into blocks without meaning.
fn without_generation(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else { break };
        let inner = &tag[2..end];
        let left = if inner.starts_with(['-', '+']) { &inner[..1] } else { "" };
        let right =
            if inner.len() > 1 && inner.ends_with(['-', '+']) { &inner[inner.len() - 1..] } else { "" };
        let word = inner[left.len()..inner.len() - right.len()].trim();
        let other = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        match other {
            Some(other) => {
                // Writing to a string can't fail.
                let _ = write!(out, "{{%{left} {other} {right}%}}");
            }
            None => out.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str, json: &str) -> Result<String, Unrendered> {
        let templates = Templates::new(
            BTreeMap::from([("default".to_owned(), text.to_owned())]),
            vec![("bos_token".to_owned(), "<s>".to_owned())],
        )
        .unwrap();
        let others: Value = serde_json::from_str(json).unwrap();
        let mut map = Fields::default();
        for key in others.try_iter().unwrap() {
            let item = others.get_item(&key).unwrap();
            map.insert(key, item);
        }
        templates.render("default", Input { messages: Vec::new(), tools: None, others: map })
    }

    #[test]
    fn it_renders_as_transformers_does() {
        for (template, want) in [
            (
                "{{ bos_token }}{{ missing }}{{ none }}|{{ true }}|{{ x }}|{{ l }}",
                "<s>None|True|1.0|['a', None]",
            ),
            ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
            ("{{ s.strip().split('b')[0] }}{{ s | trim | length }}", "a3"),
            ("{{ l | tojson }}{{ m | tojson(indent=2) }}", "[\"a\", null]{\n  \"k\": \"<é>\"\n}"),
            ("{% for k, v in m.items() %}{{ k ~ '=' ~ v }}{% endfor %}", "k=<é>"),
            (
                "{%- set ns = namespace(n=0) %}{% for i in l %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
                "2",
            ),
            ("a {%- generation %} b {% endgeneration -%} c", "a b c"),
            ("{% for i in [1,2,3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
            ("{{ l[::-1] }}{{ l[1:] }}{{ 'abc'[:-1] }}", "[None, 'a'][None]ab"),
            (
                "{{ tools is none }}{{ tools is defined }}{{ zzz is defined }}{{ m.k is string }}{{ m is mapping }}",
                "TrueTrueFalseTrueTrue",
            ),
            ("{% macro f(a, b='x') %}{{ a }}{{ b }}{% endmacro %}{{ f('1') }}{{ f(1, b=2) }}", "1x12"),
            ("{{ '%s' % 'q' if false else 'n' }}", "n"),
            ("{% if 'k' in m and m['k'] is not none %}y{% endif %}{{ s.startswith(' ') }}", "yTrue"),
        ] {
            let got = render(template, r#"{"x": 1.0, "l": ["a", null], "m": {"k": "<é>"}, "s": " abc "}"#);
            assert_eq!(got.unwrap(), want, "{template}");
        }
    }

    #[test]
    fn a_template_that_refuses_says_why() {
        let error = render("{{ raise_exception('roles must alternate') }}", "{}").unwrap_err();
        assert!(error.to_string().contains("roles must alternate"), "{error}");
    }
}
