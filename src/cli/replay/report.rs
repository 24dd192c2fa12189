//! The page of a comparison: plots as SVG inside one HTML file that loads nothing.

use super::{Bench, Cell, Found, output};
use crate::sim::replay::Measures;
use std::fmt::Write;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 36.0;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1000px;padding:0 1em;color:#222;background:#fff}\
 pre{overflow-x:auto;background:#f5f5f5;padding:.8em;font-size:12px}svg{margin:4px}\
 .key span{display:inline-block;margin-right:1.2em}.key i{display:inline-block;width:1.6em;height:.25em;margin-right:.4em;vertical-align:middle}\
 text{font:11px system-ui,sans-serif;fill:#444}.title{font-size:13px;fill:#222}";

/// A line of a plot.
struct Line {
    name: String,
    color: String,
    points: Vec<(f64, f64)>,
}

/// Text that is safe between tags and in attributes.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Colours far from each other, the first the strongest.
fn color(i: usize, n: usize) -> String {
    let hue = (i * 360) / n.max(1);
    let light = if i.is_multiple_of(2) { 40 } else { 55 };
    format!("hsl({hue},70%,{light}%)")
}

/// A round number at or above `least`: 1, 2, 2.5 or 5 times a power of ten.
fn round_up(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|f| f * power)
        .into_iter()
        .find(|v| *v >= least * (1.0 - 1e-9))
        .unwrap_or(least)
}

/// A plot with axes from 0 (y) and over the range of the points (x).
fn plot(title: &str, x_name: &str, lines: &[Line], dots: bool) -> String {
    let points = || lines.iter().flat_map(|l| l.points.iter().copied());
    let (low, high) = points().fold((f64::MAX, f64::MIN), |(a, b), (x, _)| (a.min(x), b.max(x)));
    let (low, high) = if low < high { (low, high) } else { (low - 0.5, low + 0.5) };
    let step = round_up(points().map(|(_, y)| y).fold(0.0, f64::max) / 5.0);
    let top = step * 5.0;
    let x = |v: f64| LEFT + (v - low) / (high - low) * (WIDTH - LEFT - RIGHT);
    let y = |v: f64| HEIGHT - BOTTOM - v / top * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\
         <text class=\"title\" x=\"{LEFT}\" y=\"18\">{}</text>",
        escaped(title)
    );
    // Writing to a string can't fail.
    for k in 0..=5 {
        let v = step * f64::from(k);
        let at = y(v);
        let _ = write!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            (v * 1e6).round() / 1e6
        );
    }
    for k in 0..=4 {
        let v = low + (high - low) * f64::from(k) / 4.0;
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x(v),
            HEIGHT - BOTTOM + 15.0,
            (v * 100.0).round() / 100.0
        );
    }
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        WIDTH - RIGHT,
        HEIGHT - 6.0,
        escaped(x_name)
    );
    for line in lines {
        let path: Vec<String> =
            line.points.iter().map(|&(a, b)| format!("{:.1} {:.1}", x(a), y(b))).collect();
        let name = escaped(&line.name);
        let _ = write!(
            svg,
            "<path d=\"M{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"><title>{name}</title></path>",
            path.join("L"),
            line.color
        );
        for &(a, b) in line.points.iter().filter(|_| dots) {
            let _ = write!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{}\"><title>{name}: {b:.3} at {a}</title></circle>",
                x(a),
                y(b),
                line.color
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// One value of a cell.
type Pick = fn(&Measures) -> f64;

/// What is plotted over load.
const OVER_LOAD: [(&str, Pick); 6] = [
    ("Requests inside the SLO, %", |m| m.in_slo * 100.0),
    ("Cached share of prompt tokens, %", |m| m.cached_share * 100.0),
    ("TTFT p50, seconds", |m| m.ttft.p50),
    ("TTFT p90, seconds", |m| m.ttft.p90),
    ("TTFT p99, seconds", |m| m.ttft.p99),
    ("TPOT p90, milliseconds", |m| m.tpot.p90 * 1e3),
];

/// The plots of one trace, fleet and number of routers.
fn section(bench: &Bench<'_>, group: &[(&Cell, &Measures)]) -> String {
    let Some((first, _)) = group.first() else { return String::new() };
    let mut policies: Vec<&str> = Vec::new();
    for (cell, _) in group {
        if !policies.contains(&cell.policy.as_str()) {
            policies.push(&cell.policy);
        }
    }
    let mut out = format!(
        "<h2>{}: {}, {} router{}</h2>\n<p class=\"key\">",
        escaped(&bench.workloads[first.trace].name),
        escaped(&bench.fleets[first.fleet].label()),
        first.routers,
        if first.routers == 1 { "" } else { "s" },
    );
    for (i, policy) in policies.iter().enumerate() {
        let color = color(i, policies.len());
        let _ = write!(out, "<span><i style=\"background:{color}\"></i>{}</span>", escaped(policy));
    }
    out.push_str("</p>\n");
    for (title, pick) in OVER_LOAD {
        let lines = policies.iter().enumerate().map(|(i, &policy)| {
            let own = group.iter().filter(|(cell, _)| cell.policy == policy);
            let mut points: Vec<(f64, f64)> =
                own.filter_map(|(cell, m)| cell.speedup.map(|load| (load, pick(m)))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Line { name: policy.to_owned(), color: color(i, policies.len()), points }
        });
        out.push_str(&plot(title, "load ×", &lines.collect::<Vec<_>>(), true));
    }
    let heaviest = group.iter().filter_map(|(cell, _)| cell.speedup).fold(0.0, f64::max);
    let _ = writeln!(out, "<h3>Requests in flight on each replica, over time, at ×{heaviest}</h3>");
    for (cell, m) in group.iter().filter(|(cell, _)| cell.speedup == Some(heaviest)) {
        let replicas = bench.fleets[cell.fleet].replicas;
        let lines = (0..replicas).map(|r| Line {
            name: format!("replica {r}"),
            color: color(r, replicas),
            points: m
                .timeline
                .loads
                .iter()
                .enumerate()
                .filter_map(|(i, loads)| loads.get(r).map(|n| (i as f64 * m.timeline.every, f64::from(*n))))
                .collect(),
        });
        out.push_str(&plot(&cell.policy, "seconds", &lines.collect::<Vec<_>>(), false));
    }
    out
}

/// The page. `command` is what made it.
pub(super) fn page(bench: &Bench<'_>, results: &[(&Cell, Found)], command: &str) -> String {
    let measured: Vec<(&Cell, &Measures)> = results
        .iter()
        .filter_map(|(cell, found)| match found {
            Found::Measures(m) => Some((*cell, &**m)),
            Found::Capacity(_) => None,
        })
        .collect();
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Homing: replay</title>\
         <style>{STYLE}</style></head><body>\n<h1>Replay</h1>\n<p>Made by homing {} with</p>\n<pre>{}</pre>\n",
        env!("CARGO_PKG_VERSION"),
        escaped(command)
    );
    for group in
        measured.chunk_by(|(a, _), (b, _)| (a.trace, a.fleet, a.routers) == (b.trace, b.fleet, b.routers))
    {
        out.push_str(&section(bench, group));
    }
    let _ = write!(
        out,
        "<h2>Figures</h2>\n<pre>{}</pre>\n</body></html>\n",
        escaped(&output::table(bench, results))
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        for (least, want) in [(0.0, 1.0), (0.19, 0.2), (0.2, 0.2), (21.0, 25.0), (3.0, 5.0), (f64::NAN, 1.0)]
        {
            assert!((round_up(least) - want).abs() < 1e-9, "{least}: {}", round_up(least));
        }
    }

    #[test]
    fn a_plot_places_points_between_its_axes() {
        let line = Line { name: "a<b".into(), color: color(0, 1), points: vec![(1.0, 0.0), (3.0, 10.0)] };
        let svg = plot("t & u", "x", &[line], true);
        // 10 is the top of an axis of five steps of 2.
        let want = format!("M{LEFT:.1} {:.1}L{:.1} {TOP:.1}", HEIGHT - BOTTOM, WIDTH - RIGHT);
        assert!(svg.contains(&want), "{want}: {svg}");
        assert!(svg.contains("t &amp; u") && svg.contains("a&lt;b") && !svg.contains("a<b"));
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(
            !plot(
                "one",
                "x",
                &[Line { name: String::new(), color: color(1, 2), points: vec![(2.0, 1.0)] }],
                true
            )
            .contains("NaN")
        );
    }
}
