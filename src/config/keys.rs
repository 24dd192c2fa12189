//! Unknown keys: all of them at once, each with the key that was probably meant.
//!
//! The typed parser would stop at the first one. The JSON schema, which is derived from the same types, knows every key
//! there is and where it belongs; so a known key in the wrong section is told its right place.

use super::validate::Problem;
use super::vars::join;
use serde_json::{Map, Value};

/// Reports each key of `tree` that `schema` (a JSON schema with `$defs`) doesn't have.
pub(super) fn unknown(tree: &Value, schema: &Value, problems: &mut Vec<Problem>) {
    let mut walker = Walker { root: schema, places: Vec::new(), problems };
    walker.collect(schema, "", 0);
    walker.check(tree, schema, "");
}

struct Walker<'a> {
    root: &'a Value,
    /// Path of each key there is.
    places: Vec<String>,
    problems: &'a mut Vec<Problem>,
}

/// Sections nest three deep; the bound only stops a schema that refers to itself.
const MAX_DEPTH: usize = 8;

impl<'a> Walker<'a> {
    /// The schema behind references and `null` alternatives.
    fn resolve(&self, schema: &'a Value, depth: usize) -> Option<&'a Map<String, Value>> {
        let map = schema.as_object()?;
        if depth > MAX_DEPTH {
            return None;
        }
        if let Some(name) = map.get("$ref").and_then(Value::as_str) {
            return self.resolve(self.root.pointer(name.strip_prefix('#')?)?, depth + 1);
        }
        if let Some(choices) = map.get("anyOf").and_then(Value::as_array) {
            return choices
                .iter()
                .filter_map(|c| self.resolve(c, depth + 1))
                .find(|m| m.contains_key("properties") || m.contains_key("items"));
        }
        Some(map)
    }

    fn collect(&mut self, schema: &'a Value, path: &str, depth: usize) {
        let Some(map) = self.resolve(schema, depth) else { return };
        if let Some(items) = map.get("items") {
            self.collect(items, &format!("{path}[]"), depth + 1);
        }
        for (key, sub) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let place = join(path, key);
            self.collect(sub, &place, depth + 1);
            self.places.push(place);
        }
    }

    fn check(&mut self, value: &Value, schema: &'a Value, path: &str) {
        let Some(map) = self.resolve(schema, 0) else { return };
        match value {
            Value::Array(items) => {
                if let Some(sub) = map.get("items") {
                    for (i, item) in items.iter().enumerate() {
                        self.check(item, sub, &format!("{path}[{i}]"));
                    }
                }
            }
            Value::Object(object) => {
                // A map with free keys (headers) has no properties, and any key is right.
                let Some(known) = map.get("properties").and_then(Value::as_object) else { return };
                for (key, item) in object {
                    let place = join(path, key);
                    match known.get(key) {
                        Some(sub) => self.check(item, sub, &place),
                        None => {
                            let hint = self.hint(key, known);
                            self.problems.push(Problem::error(place, format!("unknown key; {hint}")));
                        }
                    }
                }
            }
            _ => {}
        }
    }

    fn hint(&self, key: &str, known: &Map<String, Value>) -> String {
        let folded = key.to_ascii_lowercase().replace('-', "_");
        // Half of the letters right: `hedaer_bytes` is a slip, `colour` is not `cost`.
        let near = known
            .keys()
            .map(|k| (strsim::normalized_damerau_levenshtein(&folded, k), k))
            .filter(|(score, _)| *score >= 0.5)
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let last = |place: &str| place.rsplit('.').next().map(str::to_owned);
        let elsewhere = || self.places.iter().find(|p| last(p).as_deref() == Some(folded.as_str()));
        match near {
            Some((score, k)) if score > 0.8 => format!("did you mean `{k}`?"),
            near => match (elsewhere(), near) {
                (Some(place), _) => format!("did you mean `{place}`?"),
                (None, Some((_, k))) => format!("did you mean `{k}`?"),
                (None, None) => {
                    let all: Vec<_> = known.keys().map(String::as_str).collect();
                    format!("known here: {}", all.join(", "))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema_json;
    use serde_json::json;

    fn problems(tree: Value) -> Vec<String> {
        let mut out = Vec::new();
        unknown(&tree, &schema_json(), &mut out);
        out.iter().map(Problem::to_string).collect()
    }

    #[test]
    fn a_typo_is_told_the_nearest_key_with_its_path() {
        let p = problems(
            json!({"limits": {"hedaer_bytes": 1}, "replicas": [{"url": "x", "api-key": "y"}], "listn": 1}),
        );
        assert_eq!(p.len(), 3, "{p:?}");
        assert!(p.iter().any(|m| m.contains("limits.hedaer_bytes") && m.contains("`header_bytes`")), "{p:?}");
        assert!(p.iter().any(|m| m.contains("replicas[0].api-key") && m.contains("`api_key`")), "{p:?}");
        assert!(p.iter().any(|m| m.contains("listn") && m.contains("`listen`")), "{p:?}");
    }

    #[test]
    fn a_key_in_the_wrong_section_is_told_its_place() {
        let p = problems(json!({"block_bytes": 128}));
        assert!(p[0].contains("`index.block_bytes`"), "{p:?}");
    }

    #[test]
    fn a_key_like_no_other_gets_the_list() {
        let p = problems(json!({"drain": {"xyzzy": 1}}));
        assert!(p[0].contains("delay") && p[0].contains("grace"), "{p:?}");
    }

    #[test]
    fn header_names_are_free() {
        assert!(problems(json!({"replicas": [{"url": "x", "headers": {"x-anything": "y"}}]})).is_empty());
    }
}
