//! `${VAR}` and `${VAR:-default}` in values.
//!
//! Replaced in the parsed tree, not in the text: a value can't change the structure of the file around it, and a `${…}`
//! in a comment is a comment. `$${` stands for a literal `${`.

use super::validate::Problem;
use serde_json::Value;
use std::collections::BTreeSet;

/// Replaces variables in all string values of `tree`. Gives the paths whose value changed (their type is no longer
/// what the file said: `"${N}"` may now be a number), and a problem for each variable that is not set or not closed.
pub(super) fn substitute(
    tree: &mut Value,
    env: &dyn Fn(&str) -> Option<String>,
    problems: &mut Vec<Problem>,
) -> BTreeSet<String> {
    let mut changed = BTreeSet::new();
    walk(tree, "", env, problems, &mut changed);
    changed
}

fn walk(
    value: &mut Value,
    path: &str,
    env: &dyn Fn(&str) -> Option<String>,
    problems: &mut Vec<Problem>,
    changed: &mut BTreeSet<String>,
) {
    match value {
        Value::Object(map) => {
            for (key, v) in map {
                walk(v, &join(path, key), env, problems, changed);
            }
        }
        Value::Array(items) => {
            for (i, v) in items.iter_mut().enumerate() {
                walk(v, &format!("{path}[{i}]"), env, problems, changed);
            }
        }
        Value::String(s) if s.contains("${") => match expand(s, env) {
            Ok(text) => {
                *s = text;
                changed.insert(path.to_owned());
            }
            Err(message) => problems.push(Problem::error(path, message)),
        },
        _ => {}
    }
}

/// `path.key`, in the notation of the error messages.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn expand(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, after) = (&rest[..at], &rest[at + 2..]);
        if let Some(literal) = before.strip_suffix('$') {
            out.push_str(literal);
            out.push_str("${");
            rest = after;
            continue;
        }
        out.push_str(before);
        let end = after.find('}').ok_or("a `${` without its `}`")?;
        let (name, default) = match after[..end].split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (&after[..end], None),
        };
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(format!("`{name}` is not the name of a variable"));
        }
        // As in a shell, `:-` also stands in for a variable that is set to nothing.
        let value = match default {
            Some(default) => env(name).filter(|v| !v.is_empty()).unwrap_or_else(|| default.to_owned()),
            None => env(name).ok_or_else(|| format!("the variable `{name}` is not set"))?,
        };
        out.push_str(&value);
        rest = &after[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "HOST" => Some("10.0.0.1".into()),
            "EMPTY" => Some(String::new()),
            "SLY" => Some("${HOST}: {a: b}".into()),
            _ => None,
        }
    }

    #[test]
    fn variables_defaults_and_literals() {
        for (text, want) in [
            ("http://${HOST}:8000", "http://10.0.0.1:8000"),
            ("${NOPE:-fallback}", "fallback"),
            ("${EMPTY:-fallback}", "fallback"),
            ("a${EMPTY}b", "ab"),
            ("${NOPE:-}", ""),
            ("$${HOST} ${HOST}", "${HOST} 10.0.0.1"),
            // A value is not expanded a second time.
            ("${SLY}", "${HOST}: {a: b}"),
            ("cost $5", "cost $5"),
        ] {
            assert_eq!(expand(text, &env).unwrap(), want, "{text}");
        }
        for text in ["${NOPE}", "${HOST", "${}", "${a b}"] {
            assert!(expand(text, &env).is_err(), "{text}");
        }
    }

    #[test]
    fn all_missing_variables_are_told_with_their_paths() {
        let mut tree =
            serde_json::json!({"replicas": [{"url": "${A}"}, {"url": "${HOST}"}], "listen": "${B}"});
        let mut problems = Vec::new();
        let changed = substitute(&mut tree, &env, &mut problems);
        let mut paths: Vec<_> = problems.iter().map(|p| p.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["listen", "replicas[0].url"]);
        assert!(changed.contains("replicas[1].url"));
    }
}
