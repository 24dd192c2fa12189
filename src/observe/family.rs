//! One metric: a name, its labels, and a series for each combination of their values; printed in Prometheus' text format.

use super::cap::OTHER;
use super::cells::{Counter, Gauge, Histogram};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// What a series can be.
pub trait Cell: Clone {
    /// The word after `# TYPE`.
    const KIND: &'static str;

    /// Prints the series `name{labels}`; `labels` come without their braces.
    fn print(&self, out: &mut String, name: &str, labels: &str) -> fmt::Result;
}

impl Cell for Counter {
    const KIND: &'static str = "counter";

    fn print(&self, out: &mut String, name: &str, labels: &str) -> fmt::Result {
        writeln!(out, "{name}{} {}", Braced(labels), self.get())
    }
}

impl Cell for Gauge {
    const KIND: &'static str = "gauge";

    fn print(&self, out: &mut String, name: &str, labels: &str) -> fmt::Result {
        match self.get() {
            Some(v) => writeln!(out, "{name}{} {}", Braced(labels), Number(v)),
            None => Ok(()),
        }
    }
}

impl Cell for Histogram {
    const KIND: &'static str = "histogram";

    fn print(&self, out: &mut String, name: &str, labels: &str) -> fmt::Result {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut count = 0;
        for (bound, below) in self.cumulative() {
            writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{}\"}} {below}", Number(bound))?;
            count = below;
        }
        // The count is the last bucket just printed: read again, it might be one more and contradict it.
        writeln!(out, "{name}_sum{} {}", Braced(labels), Number(self.sum()))?;
        writeln!(out, "{name}_count{} {count}", Braced(labels))
    }
}

struct Braced<'a>(&'a str);

impl fmt::Display for Braced<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{{{}}}", self.0) }
    }
}

struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            v if v == f64::INFINITY => f.write_str("+Inf"),
            v if v == f64::NEG_INFINITY => f.write_str("-Inf"),
            v => write!(f, "{v}"),
        }
    }
}

/// Most series of one metric, whatever its labels: the last line of defence behind the caps on labels.
const MAX_SERIES: usize = 16_384;

/// A metric with its series.
#[derive(Debug)]
pub struct Family<T> {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    make: fn() -> T,
    series: RwLock<BTreeMap<Vec<String>, T>>,
}

impl<T: Cell> Family<T> {
    /// A metric without series yet; `make` makes a fresh cell.
    pub fn new(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        make: fn() -> T,
    ) -> Self {
        Family { name, help, labels, make, series: RwLock::default() }
    }

    /// The series with these label values (in the order of the names), made if it wasn't there.
    pub fn get(&self, values: &[&str]) -> T {
        let key: Vec<String> = values.iter().map(|v| (*v).to_owned()).collect();
        if let Some(cell) = self.series.read().get(&key) {
            return cell.clone();
        }
        let mut series = self.series.write();
        let full = series.len() >= MAX_SERIES && !series.contains_key(&key);
        let key = if full { vec![OTHER.to_owned(); self.labels.len()] } else { key };
        series.entry(key).or_insert_with(self.make).clone()
    }

    /// A cell that is never exported.
    pub fn detached(&self) -> T {
        (self.make)()
    }

    /// Forgets the series whose label `label` has the value `value`. Handles to them stay usable, unseen.
    pub fn remove(&self, label: &str, value: &str) {
        if let Some(at) = self.labels.iter().position(|l| *l == label) {
            self.series.write().retain(|key, _| key.get(at).is_none_or(|v| v != value));
        }
    }

    /// How many series there are.
    pub fn len(&self) -> usize {
        self.series.read().len()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the metric in Prometheus' text format; nothing if it has no series.
    pub fn print(&self, out: &mut String) {
        self.print_as(out, self.name, self.labels);
    }

    /// The same numbers under another name, with other names for the labels.
    pub fn print_as(&self, out: &mut String, name: &str, labels: &[&str]) {
        let series = self.series.read();
        if series.is_empty() {
            return;
        }
        // Writing to a String can't fail.
        let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {}", self.help, T::KIND);
        let mut text = String::new();
        for (values, cell) in series.iter() {
            text.clear();
            for (i, (label, value)) in labels.iter().zip(values).enumerate() {
                let comma = if i > 0 { "," } else { "" };
                let _ = write!(text, "{comma}{label}=\"{}\"", Escaped(value));
            }
            let _ = cell.print(out, name, &text);
        }
    }
}

struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<T: Cell>(f: &Family<T>) -> String {
        let mut out = String::new();
        f.print(&mut out);
        out
    }

    #[test]
    fn the_text_format() {
        let c = Family::new("x_total", "Things.", &["model", "code"], Counter::default);
        assert_eq!(text(&c), "", "a metric without series isn't mentioned");
        c.get(&["a\"b\\\n", "200"]).add(3);
        c.get(&["a", "500"]).inc();
        let want = "# HELP x_total Things.\n# TYPE x_total counter\nx_total{model=\"a\",code=\"500\"} 1\n\
                    x_total{model=\"a\\\"b\\\\\\n\",code=\"200\"} 3\n";
        assert_eq!(text(&c), want);

        let h = Family::new("h", "H.", &[], || Histogram::new(&[0.5]));
        h.get(&[]).observe(0.25);
        let want = "# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"0.5\"} 1\nh_bucket{le=\"+Inf\"} 1\nh_sum 0.25\nh_count 1\n";
        assert_eq!(text(&h), want);
        let mut alias = String::new();
        h.print_as(&mut alias, "other_name", &[]);
        assert!(alias.contains("other_name_count 1\n"));

        let g = Family::new("g", "G.", &["replica"], Gauge::default);
        g.get(&["a"]);
        g.get(&["b"]).set(1.5);
        assert!(!text(&g).contains("replica=\"a\""), "unknown is not exported");
        assert!(text(&g).contains("g{replica=\"b\"} 1.5\n"));
    }

    #[test]
    fn the_same_values_are_the_same_series() {
        let c = Family::new("x_total", "", &["a"], Counter::default);
        c.get(&["1"]).inc();
        c.get(&["1"]).inc();
        assert_eq!((c.get(&["1"]).get(), c.len()), (2, 1));
    }

    #[test]
    fn a_removed_series_is_gone_and_its_handle_harmless() {
        let c = Family::new("x_total", "", &["replica", "why"], Counter::default);
        let old = c.get(&["a", "x"]);
        c.get(&["b", "x"]).inc();
        c.remove("replica", "a");
        old.inc();
        assert_eq!(c.len(), 1);
        assert_eq!(c.get(&["a", "x"]).get(), 0);
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let c = Family::new("x_total", "", &["a"], Counter::default);
        for i in 0..MAX_SERIES + 100 {
            c.get(&[&i.to_string()]).inc();
        }
        assert_eq!(c.len(), MAX_SERIES + 1);
        assert_eq!(c.get(&[OTHER]).get(), 100);
    }
}
