//! The text format of metrics pages, a line at a time.
//!
//! Only what a scan needs: the name, the labels, the value. Borrowed, no allocation; a line that isn't well formed gives
//! `None`.

/// Calls `each` with every line that isn't empty or a comment, without its line end.
pub(super) fn lines<'a>(page: &'a [u8], mut each: impl FnMut(&'a [u8])) {
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', page).chain(std::iter::once(page.len())) {
        let line = page[start..end].strip_suffix(b"\r").unwrap_or(&page[start..end]);
        start = end + 1;
        if line.first().is_some_and(|b| *b != b'#') {
            each(line);
        }
    }
}

/// Splits a line into the name of its series and the rest (labels and value).
pub(super) fn name(line: &[u8]) -> (&[u8], &[u8]) {
    let end = line.iter().position(|b| matches!(b, b'{' | b' ' | b'\t')).unwrap_or(line.len());
    line.split_at(end)
}

/// The labels of one line: pairs of a name and a value that is still escaped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Labels<'a>(&'a [u8]);

/// Splits what follows a name into its labels and its value. `None` if a quote or bracket isn't closed, or the value is
/// no number; NaN counts as none.
pub(super) fn labels_and_value(rest: &[u8]) -> Option<(Labels<'_>, f64)> {
    let (labels, tail) = match rest.strip_prefix(b"{") {
        Some(inside) => {
            let end = closing(inside)?;
            (&inside[..end], &inside[end + 1..])
        }
        None => (&rest[..0], rest),
    };
    // A time stamp or an exemplar may follow the value.
    let number = tail.trim_ascii_start().split(|b| matches!(b, b' ' | b'\t')).next()?;
    let value: f64 = std::str::from_utf8(number).ok()?.parse().ok()?;
    (!value.is_nan()).then_some((Labels(labels), value))
}

/// Where the `}` of the labels is: not one inside quotes.
fn closing(inside: &[u8]) -> Option<usize> {
    let mut quoted = false;
    let mut i = 0;
    while let Some(b) = inside.get(i) {
        match b {
            b'\\' if quoted => i += 1,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(i),
            _ => {}
        }
        i += 1;
    }
    None
}

impl<'a> Labels<'a> {
    /// The value of the label `wanted`, still escaped; the labels may come in any order.
    pub(super) fn get(self, wanted: &[u8]) -> Option<&'a [u8]> {
        self.find(|(name, value)| (name == wanted).then_some(value))
    }

    fn find<T>(self, mut each: impl FnMut((&'a [u8], &'a [u8])) -> Option<T>) -> Option<T> {
        let mut rest = self.0;
        loop {
            rest = rest.trim_ascii_start();
            let eq = memchr::memchr(b'=', rest)?;
            let name = rest[..eq].trim_ascii();
            let quoted = rest[eq + 1..].trim_ascii_start().strip_prefix(b"\"")?;
            let end = end_of_value(quoted)?;
            if let Some(found) = each((name, &quoted[..end])) {
                return Some(found);
            }
            rest = quoted[end + 1..].trim_ascii_start();
            rest = rest.strip_prefix(b",").unwrap_or(rest);
        }
    }

    /// The value of a label as a whole number; `None`, `"None"` and everything else that isn't one: unknown.
    pub(super) fn number(self, wanted: &[u8]) -> Option<u64> {
        std::str::from_utf8(self.get(wanted)?).ok()?.parse().ok()
    }
}

fn end_of_value(quoted: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        match memchr::memchr2(b'"', b'\\', &quoted[from..])? + from {
            at if quoted[at] == b'"' => return Some(at),
            at if at + 2 <= quoted.len() => from = at + 2,
            _ => return None,
        }
    }
}

/// A label's value without its escapes (`\\`, `\"`, `\n`). Bytes that aren't UTF-8 are replaced.
pub(super) fn unescape(value: &[u8]) -> String {
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = value.iter();
    while let Some(b) = bytes.next() {
        match (b, b == &b'\\') {
            (_, true) => match bytes.next() {
                Some(b'n') => out.push(b'\n'),
                Some(other) => out.push(*other),
                None => {}
            },
            (b, false) => out.push(*b),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(line: &str) -> Option<f64> {
        labels_and_value(name(line.as_bytes()).1).map(|(_, v)| v)
    }

    #[test]
    fn lines_skip_comments_and_bear_any_line_end() {
        let mut seen = Vec::new();
        lines(b"# HELP a b\na 1\r\n\nb 2\n#\nc 3", |l| seen.push(l));
        assert_eq!(seen, [b"a 1", b"b 2", b"c 3"]);
    }

    #[test]
    fn values_with_and_without_labels_time_stamps_and_exemplars() {
        for (line, want) in [
            ("a 1", Some(1.0)),
            ("a{x=\"1\"} 2.5e3 1700000000", Some(2500.0)),
            ("a{} 3", Some(3.0)),
            ("a{x=\"} 9\"} 4", Some(4.0)),
            ("a{x=\"\\\"} 9\"}5", Some(5.0)),
            ("a 6 # {trace=\"1\"} 1.0", Some(6.0)),
            ("a +Inf", Some(f64::INFINITY)),
            ("a NaN", None),
            ("a", None),
            ("a ", None),
            ("a{x=\"1\" 7", None),
            ("a{x=\"1} 7", None),
            ("a one", None),
        ] {
            assert_eq!(value(line), want, "{line}");
        }
    }

    #[test]
    fn labels_are_found_in_any_order_and_with_escapes() {
        let line = br#"a{x="q\"u,o=te",b="",block_size = "16", n="None",last="\\",} 1"#;
        let (labels, _) = labels_and_value(name(line).1).unwrap();
        assert_eq!(unescape(labels.get(b"x").unwrap()), "q\"u,o=te");
        assert_eq!(labels.get(b"b"), Some(&b""[..]));
        assert_eq!(labels.number(b"block_size"), Some(16));
        assert_eq!(labels.number(b"n"), None);
        assert_eq!(unescape(labels.get(b"last").unwrap()), "\\");
        assert_eq!(labels.get(b"te"), None);
        assert_eq!(labels.get(b"o"), None);
    }
}
