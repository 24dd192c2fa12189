//! What a terminal shows, and what a program reads.

use super::{Bench, Cell, Found};
use crate::sim::histogram::Quantiles;
use crate::sim::replay::Measures;
use crate::sim::replay::cells::Capacity;
use crate::sim::replay::measure::StageMeasures;
use serde_json::{Value, json};
use std::fmt::Write;

fn spread(q: Quantiles) -> Value {
    json!({"mean": q.mean, "p50": q.p50, "p90": q.p90, "p99": q.p99})
}

fn stage(s: &StageMeasures) -> Value {
    json!({
        "stage": s.name, "requests": s.requests, "seconds": s.seconds, "output_tokens_per_second": s.output_rate,
        "ttft_s": spread(s.ttft), "tpot_s": spread(s.tpot), "in_slo": s.in_slo,
    })
}

fn object(bench: &Bench<'_>, cell: &Cell, found: &Found) -> Value {
    let fleet = &bench.fleets[cell.fleet];
    let mut line = json!({
        "trace": bench.workloads[cell.trace].name, "policy": cell.policy, "engine": fleet.engine,
        "replicas": fleet.replicas, "routers": cell.routers,
    });
    let rest = match found {
        Found::Measures(m) => json!({
            "speedup": cell.speedup, "requests": m.requests, "failed": m.failed,
            "cached_share": m.cached_share, "infinite_share": m.infinite_share(), "pooled_share": m.pooled_share(),
            "infinite_bound": m.infinite_bound, "pooled_bound": m.pooled_bound,
            "ttft_s": spread(m.ttft), "tpot_s": spread(m.tpot), "e2e_s": spread(m.e2e),
            "in_slo": m.in_slo, "balance": m.balance, "prefill_tokens": m.prefill_tokens,
            "output_tokens": m.output_tokens, "seconds": m.seconds, "gpu_seconds": m.gpu_seconds(fleet.replicas),
        }),
        Found::Capacity(c) => match c {
            Capacity::Found(load) => json!({"capacity": load, "goal": bench.args.goal}),
            Capacity::Beyond(load) => json!({"capacity": load, "goal": bench.args.goal, "beyond": true}),
            Capacity::Nothing => json!({"capacity": 0.0, "goal": bench.args.goal}),
        },
    };
    if let (Value::Object(line), Value::Object(rest)) = (&mut line, rest) {
        line.extend(rest);
        if let Some(what) = &fleet.what_if {
            line.insert("what_if".into(), what.clone().into());
        }
        if let Found::Measures(m) = found
            && !m.stages.is_empty()
        {
            line.insert("stages".into(), m.stages.iter().map(stage).collect());
        }
    }
    line
}

/// A JSON object for each cell, one a line.
pub(super) fn json(bench: &Bench<'_>, results: &[(&Cell, Found)]) -> String {
    results.iter().map(|(cell, found)| format!("{}\n", object(bench, cell, found))).collect()
}

/// Seconds in three digits.
fn secs(s: f64) -> String {
    if s >= 99.95 {
        format!("{s:.0}")
    } else if s >= 9.995 {
        format!("{s:.1}")
    } else {
        format!("{s:.2}")
    }
}

/// Columns after load and policy, each in two lines.
const HEAD: [(&str, &str); 14] = [
    ("in SLO", "%"),
    ("cached", "%"),
    ("% of", "pooled"),
    ("% of", "infin."),
    ("TTFT s", "mean"),
    ("", "p50"),
    ("", "p90"),
    ("", "p99"),
    ("TPOT ms", "p50"),
    ("", "p99"),
    ("e2e s", "p50"),
    ("", "p99"),
    ("prefill", "tokens"),
    ("load", "balance"),
];

fn line(load: &str, policy: &str, columns: impl Iterator<Item = impl std::fmt::Display>) -> String {
    let columns: String = columns.map(|c| format!(" {c:>7}")).collect();
    format!("{load:>7} {policy:<26}{columns}\n")
}

fn row(cell: &Cell, m: &Measures) -> String {
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    let columns = [
        percent(m.in_slo),
        percent(m.cached_share),
        percent(m.pooled_share()),
        percent(m.infinite_share()),
        secs(m.ttft.mean),
        secs(m.ttft.p50),
        secs(m.ttft.p90),
        secs(m.ttft.p99),
        format!("{:.1}", m.tpot.p50 * 1e3),
        format!("{:.1}", m.tpot.p99 * 1e3),
        secs(m.e2e.p50),
        secs(m.e2e.p99),
        format!("{:.2}M", m.prefill_tokens as f64 / 1e6),
        format!("{:.2}", m.balance),
    ];
    line(&format!("×{}", cell.speedup.unwrap_or(0.0)), &cell.policy, columns.iter())
}

/// A table for each trace, fleet and number of routers.
pub(super) fn table(bench: &Bench<'_>, results: &[(&Cell, Found)]) -> String {
    let mut out = String::new();
    let mut before: Option<&Cell> = None;
    for (cell, found) in results {
        let same = |b: &Cell| (b.trace, b.fleet, b.routers) == (cell.trace, cell.fleet, cell.routers);
        let new = !before.is_some_and(same);
        if new {
            let w = &bench.workloads[cell.trace];
            let routers =
                if cell.routers > 1 { format!(", {} routers", cell.routers) } else { String::new() };
            // Writing to a string can't fail.
            let _ = writeln!(
                out,
                "{}{}: {} requests on {}{routers}; SLO: TTFT ≤ {} s, TPOT ≤ {} ms",
                if before.is_some() { "\n" } else { "" },
                w.name,
                w.requests(),
                bench.fleets[cell.fleet].label(),
                bench.args.slo.ttft,
                bench.args.slo.tpot * 1e3,
            );
            if let Found::Measures(m) = found {
                let _ = writeln!(
                    out,
                    "bounds: one infinite cache {:.1}%, one pooled LRU cache {:.1}%\n",
                    m.infinite_bound * 100.0,
                    m.pooled_bound * 100.0
                );
                out.push_str(&line("", "", HEAD.iter().map(|h| h.0)));
                out.push_str(&line("load", "policy", HEAD.iter().map(|h| h.1)));
            }
        } else if before.is_some_and(|b| b.speedup != cell.speedup) {
            out.push('\n');
        }
        match found {
            Found::Measures(m) => {
                out.push_str(&row(cell, m));
                for s in &m.stages {
                    let _ = writeln!(
                        out,
                        "          {:>8}: {:>5} requests, {:>6.0} tok/s, TTFT p50 {} p90 {} p99 {} s, in SLO {:.1}%",
                        s.name,
                        s.requests,
                        s.output_rate,
                        secs(s.ttft.p50),
                        secs(s.ttft.p90),
                        secs(s.ttft.p99),
                        s.in_slo * 100.0
                    );
                }
            }
            Found::Capacity(c) => {
                let load = match c {
                    Capacity::Found(load) => format!("×{load:.2}"),
                    Capacity::Beyond(load) => format!("more than ×{load:.2}"),
                    Capacity::Nothing => "none".to_owned(),
                };
                let goal = bench.args.goal * 100.0;
                let _ = writeln!(out, "capacity {:<24} {load} ({goal}% inside the SLO)", cell.policy);
            }
        }
        before = Some(cell);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::replay::{Args, policies};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn with_results<R>(line: &str, then: impl FnOnce(&Bench<'_>, &[(&Cell, Found)]) -> R) -> R {
        let args = Line::parse_from(line.split(' ')).args;
        let bench = Bench::new(&args).unwrap();
        let cells = bench.cells(&policies::chosen(&args.policy).unwrap());
        let results: Vec<_> = cells.iter().map(|cell| (cell, bench.run(cell))).collect();
        then(&bench, &results)
    }

    #[test]
    fn a_line_for_each_cell_with_the_promised_fields() {
        let text = with_results("r bursts --replicas 2,3 --speedup 1,2 --engine moe", json);
        let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let cells: Vec<_> = lines.iter().map(|l| (l["replicas"].as_u64(), l["speedup"].as_f64())).collect();
        assert_eq!(
            cells,
            [(Some(2), Some(1.0)), (Some(2), Some(2.0)), (Some(3), Some(1.0)), (Some(3), Some(2.0))]
        );
        for line in &lines {
            assert_eq!(line["requests"], 3600);
            for key in ["cached_share", "infinite_share", "pooled_share", "in_slo", "balance"] {
                assert!(line[key].as_f64().is_some_and(|v| v > 0.0), "{key}: {line}");
            }
            for key in ["ttft_s", "tpot_s", "e2e_s"] {
                let q = |name: &str| line[key][name].as_f64().unwrap();
                assert!(q("mean") > 0.0 && q("p50") <= q("p90") && q("p90") <= q("p99"), "{line}");
            }
        }
        assert!(lines[0]["stages"].is_null() && lines[0]["what_if"].is_null());
        let text = with_results("r bursts --replicas 2 --what-if speed=0.5", json);
        let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let ttft = |i: usize| lines[i]["ttft_s"]["p50"].as_f64().unwrap();
        assert!(lines[1]["what_if"] == "speed=0.5" && ttft(1) > 1.5 * ttft(0), "{text}");
    }

    #[test]
    fn the_table_has_heads_rows_and_capacities() {
        let text = with_results("r bursts --replicas 2,3 --capacity", table);
        assert_eq!(text.matches("bounds: one infinite").count(), 2, "{text}");
        assert_eq!(text.lines().filter(|l| l.trim_start().starts_with('×')).count(), 2, "{text}");
        assert_eq!(text.matches("\ncapacity ").count(), 2, "{text}");
        // The heads stand over their columns: both end where rows end.
        let widths: Vec<usize> = text
            .lines()
            .filter(|l| l.ends_with("balance") || l.trim_start().starts_with('×'))
            .map(|l| l.chars().count())
            .collect();
        assert!(widths.windows(2).all(|w| w[0] == w[1]), "{widths:?}\n{text}");
    }
}
