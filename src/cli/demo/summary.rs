//! What came out of it, in words and as JSON.

use crate::sim::driver::Snapshot;
use serde_json::{Value, json};

/// The summary for people.
pub(super) fn words(homing: &Snapshot, plain: &Snapshot) -> String {
    let share = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
    let computed = |s: &Snapshot| s.prompt_tokens - s.cached_tokens.min(s.prompt_tokens);
    let mut text = format!(
        "\nWith Homing the first token came after {:.0} ms on average, with round robin after {:.0} ms: {}.\n\
         {:.1}% of all prompt tokens were found in a cache, with round robin {:.1}%; one infinite cache\n\
         would have found {:.1}%. The engines computed {} prompt tokens instead of {}, and the\n\
         same conversations took {:.0} s instead of {:.0} s.\n",
        homing.ttft.mean * 1e3,
        plain.ttft.mean * 1e3,
        faster(homing.ttft.mean, plain.ttft.mean),
        homing.cached_share() * 100.0,
        plain.cached_share() * 100.0,
        homing.infinite_cache_share * 100.0,
        thousands(computed(homing)),
        thousands(computed(plain)),
        homing.elapsed,
        plain.elapsed,
    );
    let reached = share(homing.cached_share(), homing.infinite_cache_share);
    text += &format!("Homing saved {:.1}% of what any placement could have saved.\n", reached * 100.0);
    for (name, side) in [("Homing", homing), ("round robin", plain)] {
        if side.failed > 0 {
            let why = side.last_error.as_deref().unwrap_or("unknown");
            text += &format!("{} requests failed with {name}; the last one: {why}\n", side.failed);
        }
    }
    text
}

fn faster(a: f64, b: f64) -> String {
    if a <= 0.0 || b <= 0.0 {
        "nothing was measured".to_owned()
    } else if a <= b {
        format!("{:.1} times as fast", b / a)
    } else {
        format!("{:.1} times as slow", a / b)
    }
}

fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// The figures for programs: one object, milliseconds and shares.
pub(super) fn json(homing: &Snapshot, plain: &Snapshot) -> Value {
    let ms = |s: f64| (s * 1e6).round() / 1e3;
    let one = |s: &Snapshot| {
        json!({
            "ttft_ms": {"mean": ms(s.ttft.mean), "p50": ms(s.ttft.p50), "p90": ms(s.ttft.p90), "p99": ms(s.ttft.p99)},
            "cached_share": s.cached_share(),
            "requests": s.completed + s.failed,
            "failed": s.failed,
        })
    };
    json!({
        "homing": one(homing),
        "round_robin": one(plain),
        "infinite_cache_share": homing.infinite_cache_share,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(mean: f64, cached: u64) -> Snapshot {
        let mut s =
            Snapshot { prompt_tokens: 1_000_000, cached_tokens: cached, completed: 9, ..Snapshot::default() };
        s.ttft.mean = mean;
        s.infinite_cache_share = 0.9;
        s
    }

    #[test]
    fn the_words_say_what_the_figures_say() {
        let text = words(&side(0.2, 850_000), &side(0.8, 500_000));
        assert!(
            text.contains("4.0 times as fast") && text.contains("150,000 prompt tokens instead of 500,000"),
            "{text}"
        );
        assert!(text.contains("94.4%"), "{text}");
        assert!(words(&side(0.8, 0), &side(0.2, 0)).contains("4.0 times as slow"));
    }

    #[test]
    fn the_object_has_the_promised_keys() {
        let v = json(&side(0.2, 850_000), &side(0.8, 500_000));
        assert_eq!(v["homing"]["ttft_ms"]["mean"], 200.0);
        assert_eq!(v["round_robin"]["cached_share"], 0.5);
        assert_eq!((&v["homing"]["requests"], &v["homing"]["failed"]), (&json!(9), &json!(0)));
        assert_eq!(v["infinite_cache_share"], 0.9);
    }
}
