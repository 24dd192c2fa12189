//! Does a template want a message's content as one text, or as a list of parts?
//!
//! vLLM decides by looking for a loop over a message's content in the template; so this does the same, on the
//! statements of the template: which names stand for the messages, which for one message, and is there a loop over the
//! content of one, directly or through a macro's parameter?

/// The form of a message's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Format {
    /// A string; the texts of several parts are joined by line ends.
    #[default]
    Text,
    /// A list of parts, each with its type.
    Parts,
}

/// The form that `template` wants.
pub(super) fn detect(template: &str) -> Format {
    let tags = tags(template);
    let mut lists = vec!["messages"];
    let mut at = 0;
    while let Some(&list) = lists.get(at) {
        for tag in &tags {
            if let Some((name, value)) = assignment(tag)
                && refers(value, list, None)
                && !lists.contains(&name)
            {
                lists.push(name);
            }
        }
        at += 1;
    }
    let loops: Vec<(usize, &str, &str)> =
        tags.iter().enumerate().filter_map(|(i, t)| each(t).map(|(n, e)| (i, n, e))).collect();
    let messages: Vec<&str> = loops
        .iter()
        .filter(|(_, _, over)| lists.iter().any(|list| refers(over, list, None)))
        .map(|(_, name, _)| *name)
        .collect();
    let content = |e: &str| messages.iter().any(|m| refers(e, m, Some("content")));
    let macros = macros(&tags);
    let found = loops.iter().any(|(i, _, over)| {
        let inside = macros.iter().find(|m| (m.from..m.to).contains(i));
        content(over)
            || match inside {
                Some(m) => m.given(template, over, &content),
                None => *over == "content",
            }
    });
    if found { Format::Parts } else { Format::Text }
}

/// The insides of all statement tags.
fn tags(template: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = template;
    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{#")).min() {
        let comment = rest[at..].starts_with("{#");
        let Some(end) = rest[at..].find(if comment { "#}" } else { "%}" }) else { break };
        if !comment {
            out.push(rest[at + 2..at + end].trim_matches(['-', '+']).trim());
        }
        rest = &rest[at + end + 2..];
    }
    out
}

/// `set NAME = VALUE`.
fn assignment(tag: &str) -> Option<(&str, &str)> {
    let (name, value) = tag.strip_prefix("set ")?.split_once('=')?;
    let name = name.trim();
    is_name(name).then_some((name, value.trim()))
}

/// `for NAME in VALUE`, without what may follow the value.
fn each(tag: &str) -> Option<(&str, &str)> {
    let (name, over) = tag.strip_prefix("for ")?.split_once(" in ")?;
    let over = over.split(" if ").next()?.trim();
    let over = over.strip_suffix("recursive").unwrap_or(over).trim();
    is_name(name.trim()).then_some((name.trim(), over))
}

fn is_name(s: &str) -> bool {
    !s.is_empty() && s.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Is `expression` the variable `name` (or its `key`), perhaps sliced, filtered or tested?
fn refers(expression: &str, name: &str, key: Option<&str>) -> bool {
    let Some(mut rest) = expression.trim().strip_prefix(name) else { return false };
    if let Some(key) = key {
        let taken = rest.strip_prefix('.').and_then(|r| r.strip_prefix(key)).or_else(|| {
            let inner = rest.strip_prefix('[')?.trim_start();
            let quote = inner.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
            inner[1..].strip_prefix(key)?.strip_prefix(quote)?.trim_start().strip_prefix(']')
        });
        match taken {
            Some(taken) => rest = taken,
            None => return false,
        }
    }
    loop {
        rest = rest.trim_start();
        if rest.is_empty() || rest.starts_with("is ") {
            return true;
        }
        if let Some(filter) = rest.strip_prefix('|') {
            let filter = filter.trim_start();
            let end = filter.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(filter.len());
            rest = &filter[end..];
            if rest.starts_with('(') {
                let Some(close) = closing(rest) else { return false };
                rest = &rest[close + 1..];
            }
        } else if rest.starts_with('[') {
            match closing(rest) {
                Some(close) if rest[..close].contains(':') => rest = &rest[close + 1..],
                _ => return false,
            }
        } else {
            return false;
        }
    }
}

/// Where the bracket that `text` starts with is closed.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// The pieces of `list` between commas outside of brackets and quotes.
fn pieces(list: &str) -> Vec<&str> {
    let (mut out, mut from, mut depth, mut quote) = (Vec::new(), 0, 0i32, None);
    for (at, c) in list.char_indices() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth -= 1,
            (None, ',') if depth == 0 => {
                out.push(list[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    out.push(list[from..].trim());
    out
}

struct Macro<'a> {
    name: &'a str,
    parameters: Vec<&'a str>,
    from: usize,
    to: usize,
}

fn macros<'a>(tags: &[&'a str]) -> Vec<Macro<'a>> {
    let mut out = Vec::new();
    for (from, tag) in tags.iter().enumerate() {
        let Some(head) = tag.strip_prefix("macro ") else { continue };
        let Some((name, list)) = head.split_once('(') else { continue };
        let list = list.trim_end().strip_suffix(')').unwrap_or(list);
        let parameters = pieces(list).into_iter().map(|p| p.split('=').next().unwrap_or(p).trim()).collect();
        let length = tags[from..].iter().position(|t| t.starts_with("endmacro")).unwrap_or(tags.len() - from);
        out.push(Macro { name: name.trim(), parameters, from, to: from + length });
    }
    out
}

impl Macro<'_> {
    /// Is the parameter `name` given a message's content in some call?
    fn given(&self, template: &str, name: &str, content: &dyn Fn(&str) -> bool) -> bool {
        let Some(place) = self.parameters.iter().position(|p| *p == name) else { return false };
        template.match_indices(self.name).any(|(at, _)| {
            let rest = &template[at + self.name.len()..];
            let Some(close) = rest.starts_with('(').then(|| closing(rest)).flatten() else { return false };
            pieces(&rest[1..close]).iter().enumerate().any(|(i, argument)| match argument.split_once('=') {
                Some((key, value)) if is_name(key.trim()) => key.trim() == name && content(value),
                _ => i == place && content(argument),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_over_content_tell_the_form() {
        let parts = [
            "{%- for m in messages -%}{% for p in m['content'] %}{{ p }}{% endfor %}{% endfor %}",
            "{% for m in messages %}{% for p in m.content | selectattr('type', 'equalto', 'text') %}{% endfor %}{% endfor %}",
            "{% set rest = messages[1:] %}{% set all = rest %}{% for m in all %}{% for c in m[\"content\"] if c %}{% endfor %}{% endfor %}",
            "{% for m in messages %}{% set content = m.content %}{% for c in content %}{% endfor %}{% endfor %}",
            "{% macro show(c, n=1) %}{% for x in c %}{{ x }}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(m.content, true) }}{% endfor %}",
            "{% macro show(n, c) %}{% for x in c %}{{ x }}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(1, c=m['content']) }}{% endfor %}",
        ];
        for template in parts {
            assert_eq!(detect(template), Format::Parts, "{template}");
        }
        let text = [
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% for m in messages %}{% for t in m.tool_calls %}{{ t }}{% endfor %}{% endfor %}",
            "{# for p in m.content #}{% for m in messages %}{{ m['content'] | trim }}{% endfor %}",
            "{% for m in other %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "{% macro show(content) %}{% for x in content %}{% endfor %}{% endmacro %}{% for m in messages %}{{ m.content }}{% endfor %}",
        ];
        for template in text {
            assert_eq!(detect(template), Format::Text, "{template}");
        }
    }
}
