//! Values as Python writes them. Chat templates are written for Jinja on Python, so what they print of a value that is
//! no string, and what `tojson` makes of one, must be Python's `str` and `json.dumps` to the letter.

use minijinja::value::{Value, ValueKind};
use std::fmt::Write;

/// How `json.dumps` is to write.
#[derive(Clone, Debug)]
pub(super) struct Style {
    pub(super) indent: Option<String>,
    pub(super) item: String,
    pub(super) key: String,
    pub(super) ascii: bool,
    pub(super) sorted: bool,
}

impl Style {
    /// Separators follow from the indent, unless given.
    pub(super) fn new(indent: Option<String>) -> Self {
        let item = if indent.is_some() { "," } else { ", " };
        Style { item: item.to_owned(), key: ": ".to_owned(), indent, ascii: false, sorted: false }
    }
}

/// `json.dumps(value)`; values that JSON doesn't know (undefined ones) become null.
pub(super) fn json(value: &Value, style: &Style) -> String {
    let mut out = String::new();
    write_json(value, style, 0, &mut out);
    out
}

fn write_json(value: &Value, style: &Style, depth: usize, out: &mut String) {
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => number(value, out),
        ValueKind::Map => {
            let Ok(keys) = value.try_iter() else { return out.push_str("{}") };
            let mut keys: Vec<Value> = keys.collect();
            if style.sorted {
                keys.sort();
            }
            let pairs = keys.into_iter().map(|k| {
                let v = value.get_item(&k).unwrap_or_default();
                (k, v)
            });
            let mut empty = true;
            out.push('{');
            for (key, item) in pairs {
                separate(style, depth, &mut empty, out);
                match key.as_str() {
                    Some(key) => quote(key, style.ascii, out),
                    None => quote(&text(&key), style.ascii, out),
                }
                out.push_str(&style.key);
                write_json(&item, style, depth + 1, out);
            }
            close(style, depth, empty, out);
            out.push('}');
        }
        _ => match value.as_str() {
            Some(s) => quote(s, style.ascii, out),
            None => {
                out.push('[');
                let mut empty = true;
                for item in value.try_iter().into_iter().flatten() {
                    separate(style, depth, &mut empty, out);
                    write_json(&item, style, depth + 1, out);
                }
                close(style, depth, empty, out);
                out.push(']');
            }
        },
    }
}

fn separate(style: &Style, depth: usize, empty: &mut bool, out: &mut String) {
    if !std::mem::take(empty) {
        out.push_str(&style.item);
    }
    if let Some(indent) = &style.indent {
        out.push('\n');
        (0..=depth).for_each(|_| out.push_str(indent));
    }
}

fn close(style: &Style, depth: usize, empty: bool, out: &mut String) {
    if let (Some(indent), false) = (&style.indent, empty) {
        out.push('\n');
        (0..depth).for_each(|_| out.push_str(indent));
    }
}

fn quote(s: &str, ascii: bool, out: &mut String) {
    out.push('"');
    let mut plain = 0;
    for (at, c) in s.char_indices() {
        let special = matches!(c, '"' | '\\' | '\0'..='\x1f') || ascii && !c.is_ascii();
        // DEL is printable to json.dumps.
        if !special {
            continue;
        }
        out.push_str(&s[plain..at]);
        plain = at + c.len_utf8();
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push_str(&s[plain..]);
    out.push('"');
}

/// `str(value)`. An undefined value prints as nothing, as in Jinja.
pub(super) fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        _ => {
            let mut out = String::new();
            repr(value, &mut out);
            out
        }
    }
}

fn repr(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, out),
        ValueKind::String => repr_str(value.as_str().unwrap_or_default(), out),
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, out);
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), out);
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&item, out);
            }
            out.push(']');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

fn repr_str(s: &str, out: &mut String) {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c < ' ' || c == '\x7f' => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn number(value: &Value, out: &mut String) {
    if value.is_integer() {
        let _ = write!(out, "{value}");
    } else {
        out.push_str(&float(f64::try_from(value.clone()).unwrap_or(f64::NAN)));
    }
}

/// `repr(float)`: the shortest digits that give the number again; exponents below -4 and from 16 on.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{x:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{x}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(json: &str) -> Value {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn json_is_written_as_python_does() {
        let v = value(
            r#"{"b": [1, 2.0, 1e20, 0.00001, true, null], "a": {"é": "\"\\\n\u0001</ü"}, "e": [], "f": {}}"#,
        );
        let want =
            r#"{"b": [1, 2.0, 1e+20, 1e-05, true, null], "a": {"é": "\"\\\n\u0001</ü"}, "e": [], "f": {}}"#;
        assert_eq!(json(&v, &Style::new(None)), want);
        let ascii = Style { ascii: true, ..Style::new(None) };
        assert_eq!(json(&value(r#""é😀""#), &ascii), r#""\u00e9\ud83d\ude00""#);
        let tight = Style { item: ",".into(), key: ":".into(), sorted: true, ..Style::new(None) };
        assert_eq!(json(&value(r#"{"b": 1, "a": [1, 2]}"#), &tight), r#"{"a":[1,2],"b":1}"#);
        let indented = "{\n    \"a\": [\n        1\n    ],\n    \"e\": []\n}";
        assert_eq!(json(&value(r#"{"a": [1], "e": []}"#), &Style::new(Some("    ".into()))), indented);
    }

    #[test]
    fn values_print_as_python_prints_them() {
        let v = value(r#"{"a": [1, "x", "it's", "\"q\"'", null, true, 1.5, "n\n"]}"#);
        assert_eq!(text(&v), r#"{'a': [1, 'x', "it's", '"q"\'', None, True, 1.5, 'n\n']}"#);
        assert_eq!(text(&Value::UNDEFINED), "");
        assert_eq!(text(&value("\"plain\"")), "plain");
        for (x, want) in
            [(1.0, "1.0"), (123456789.25, "123456789.25"), (1e15, "1000000000000000.0"), (1e16, "1e+16")]
        {
            assert_eq!(float(x), want);
        }
    }
}
