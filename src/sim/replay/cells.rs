//! Many replays at once, and the search for the load that a fleet can bear.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How often the caller hears that work goes on.
const TICK: Duration = Duration::from_millis(200);
/// The search stops when what is known to do and what is known not to differ by this factor.
const CLOSE: f64 = 1.01;
/// The search gives up beyond this load, and below its inverse.
const MOST: f64 = 256.0;

/// Does `each` on all `items`, on so many threads; the results in the order of the items. `tick` is called now and then
/// meanwhile, on the caller's thread.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    each: impl Fn(&T) -> R + Sync,
    mut tick: impl FnMut(),
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let (done, results) = channel();
    let mut out: Vec<(usize, R)> = Vec::with_capacity(items.len());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, items.len().max(1)) {
            let (done, next, each) = (done.clone(), &next, &each);
            scope.spawn(move || {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(i) else { return };
                    // The receiver lives until all senders are gone.
                    let _ = done.send((i, each(item)));
                }
            });
        }
        drop(done);
        loop {
            match results.recv_timeout(TICK) {
                Ok(result) => out.push(result),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            tick();
        }
    });
    out.sort_by_key(|(i, _)| *i);
    out.into_iter().map(|(_, result)| result).collect()
}

/// The highest load that a fleet bears.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Capacity {
    /// This load, to 1%.
    Found(f64),
    /// It bears all that was tried, up to this one.
    Beyond(f64),
    /// It doesn't bear even a trickle.
    Nothing,
}

/// Looks for the highest load at which `in_slo` (the share of requests inside the objectives) is at least `goal`, taking
/// for granted that it falls as load rises. `most`: a load beyond which nothing changes any more, if there is one.
pub fn capacity(mut in_slo: impl FnMut(f64) -> f64, goal: f64, most: Option<f64>) -> Capacity {
    let most = most.unwrap_or(MOST).min(MOST);
    let mut bears = |load: f64| in_slo(load) >= goal;
    let (mut low, mut high) = (most.min(1.0), most.min(1.0));
    if bears(low) {
        loop {
            if high >= most {
                return Capacity::Beyond(most);
            }
            high = (high * 2.0).min(most);
            if !bears(high) {
                break;
            }
            low = high;
        }
    } else {
        loop {
            low /= 2.0;
            if low < 1.0 / MOST {
                return Capacity::Nothing;
            }
            if bears(low) {
                break;
            }
            high = low;
        }
    }
    while high / low > CLOSE {
        let middle = (low * high).sqrt();
        if bears(middle) { low = middle } else { high = middle }
    }
    Capacity::Found(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_whoever_was_faster() {
        let items: Vec<u64> = (0..50).collect();
        // The first take longest.
        let slow_first = |&i: &u64| {
            let spent = (0..(50 - i) * 1000).fold(0, |x: u64, k| std::hint::black_box(x ^ k));
            std::hint::black_box(spent);
            i * i
        };
        let want: Vec<u64> = items.iter().map(|i| i * i).collect();
        let mut ticks = 0;
        assert_eq!(in_parallel(&items, 4, slow_first, || ticks += 1), want);
        assert!(ticks >= 50);
        assert_eq!(in_parallel(&[] as &[u64], 4, |i| *i, || ()), [] as [u64; 0]);
    }

    #[test]
    fn capacity_is_found_to_one_percent_from_both_sides() {
        for knee in [0.07, 0.8, 1.0, 1.73, 9.0] {
            let Capacity::Found(found) = capacity(|s| if s <= knee { 0.95 } else { 0.5 }, 0.9, None) else {
                panic!("{knee} wasn't found");
            };
            assert!(found <= knee && found > knee / 1.011, "{found} for {knee}");
        }
        assert_eq!(capacity(|_| 1.0, 0.9, Some(2.5)), Capacity::Beyond(2.5));
        assert_eq!(capacity(|_| 1.0, 0.9, None), Capacity::Beyond(256.0));
        assert_eq!(capacity(|_| 0.0, 0.9, None), Capacity::Nothing);
    }
}
