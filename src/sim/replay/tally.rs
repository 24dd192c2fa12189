//! The figures of a replay under way.

use super::bounds::Bound;
use super::measure::{Measures, Served, Slo, StageMeasures, Timeline, balance, in_slo, quantiles};
use super::workload::{Ask, Plan, Workload};
use crate::core::Time;

/// Samples of the load over time that are kept: enough for a plot.
const SAMPLES: usize = 512;

/// When a stage went on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StageTimes {
    pub(super) begun: Time,
    pub(super) ended: Time,
}

/// Counts and times so far.
pub(super) struct Tally {
    served: Vec<Served>,
    infinite: Bound,
    pooled: Bound,
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    /// Prompt and output tokens computed, by replica.
    computed: Vec<u64>,
    last_end: Time,
    timeline: Timeline,
}

impl Tally {
    /// Nothing yet, on `replicas` replicas whose caches hold `blocks` blocks together.
    pub(super) fn new(workload: &Workload, replicas: usize, blocks: usize) -> Self {
        Tally {
            served: Vec::with_capacity(workload.requests()),
            infinite: Bound::infinite(workload.block_tokens),
            pooled: Bound::pooled(workload.block_tokens, blocks),
            prompt_tokens: 0,
            cached_tokens: 0,
            output_tokens: 0,
            computed: vec![0; replicas],
            last_end: Time(0),
            timeline: Timeline { every: 1.0, loads: Vec::new() },
        }
    }

    /// A request came.
    pub(super) fn arrived(&mut self, ask: &Ask) {
        self.infinite.ask(&ask.chain, ask.prompt_tokens);
        self.pooled.ask(&ask.chain, ask.prompt_tokens);
    }

    /// An engine began with it.
    pub(super) fn started(&mut self, replica: usize, ask: &Ask, cached: u32) {
        self.prompt_tokens += u64::from(ask.prompt_tokens);
        self.cached_tokens += u64::from(cached);
        self.computed[replica] += u64::from(ask.prompt_tokens - cached);
    }

    /// It was served.
    pub(super) fn served(&mut self, replica: usize, served: Served) {
        self.computed[replica] += u64::from(served.output_tokens);
        self.output_tokens += u64::from(served.output_tokens);
        self.served.push(served);
    }

    /// It is over, well or not.
    pub(super) fn over(&mut self, now: Time) {
        self.last_end = self.last_end.max(now);
    }

    /// Takes a sample of the replicas' loads; returns when the next is due.
    pub(super) fn sample(&mut self, loads: &[u32]) -> Time {
        let timeline = &mut self.timeline;
        timeline.loads.push(loads.to_vec());
        if timeline.loads.len() == SAMPLES {
            let mut keep = false;
            timeline.loads.retain(|_| {
                keep = !keep;
                keep
            });
            timeline.every *= 2.0;
        }
        Time::from_secs(timeline.loads.len() as f64 * timeline.every)
    }

    /// What came out of `requests` requests.
    pub(super) fn measures(
        self,
        workload: &Workload,
        slo: Slo,
        requests: usize,
        times: &[StageTimes],
    ) -> Measures {
        let requests = requests as u64;
        let all: Vec<&Served> = self.served.iter().collect();
        Measures {
            requests,
            failed: requests - self.served.len() as u64,
            cached_share: self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64,
            infinite_bound: self.infinite.share(),
            pooled_bound: self.pooled.share(),
            ttft: spread(&all, |s| Some(s.ttft)),
            tpot: spread(&all, |s| s.tpot),
            e2e: spread(&all, |s| Some(s.e2e)),
            in_slo: in_slo(all.iter().copied(), requests, slo),
            balance: balance(&self.computed),
            prefill_tokens: self.prompt_tokens - self.cached_tokens,
            output_tokens: self.output_tokens,
            seconds: self.last_end.secs(),
            stages: stages(workload, &self.served, slo, times),
            timeline: self.timeline,
        }
    }
}

fn spread(served: &[&Served], what: fn(&Served) -> Option<f64>) -> crate::sim::histogram::Quantiles {
    quantiles(served.iter().filter_map(|s| what(s)).collect())
}

/// The figures of each stage, if there are several.
fn stages(workload: &Workload, served: &[Served], slo: Slo, times: &[StageTimes]) -> Vec<StageMeasures> {
    let plan = match &workload.plan {
        Plan::Open(plan) if plan.len() > 1 => plan,
        _ => return Vec::new(),
    };
    let one = |(k, (stage, times)): (usize, (&super::workload::Stage, &StageTimes))| {
        let own: Vec<&Served> = served.iter().filter(|s| s.stage == k).collect();
        let requests = stage.arrivals.len() as u64;
        let seconds = times.ended.since(times.begun);
        let output: u64 = own.iter().map(|s| u64::from(s.output_tokens)).sum();
        StageMeasures {
            name: stage.name.clone(),
            requests,
            seconds,
            output_rate: if seconds > 0.0 { output as f64 / seconds } else { 0.0 },
            ttft: spread(&own, |s| Some(s.ttft)),
            tpot: spread(&own, |s| s.tpot),
            in_slo: in_slo(own.iter().copied(), requests, slo),
        }
    };
    plan.iter().zip(times).enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_thin_out_evenly() {
        let workload =
            Workload { name: "t".into(), block_tokens: 1, asks: Vec::new(), plan: Plan::Closed(Vec::new()) };
        let mut tally = Tally::new(&workload, 1, 1);
        let mut at = Time(0);
        for _ in 0..3000 {
            at = tally.sample(&[at.secs() as u32]);
        }
        let t = &tally.timeline;
        assert!(t.loads.len() < SAMPLES && t.loads.len() >= SAMPLES / 2);
        assert!(t.loads.iter().enumerate().all(|(i, l)| f64::from(l[0]) == i as f64 * t.every));
    }
}
