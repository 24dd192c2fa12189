//! Speeds learned online.
//!
//! Two levels. The **pool's shape** (seconds a step, seconds a token) is a least-squares fit over everybody's clean
//! prefills, starting from the prior. Each **replica's scale** is how much slower or faster than that shape it
//! measures: a half-GPU slice, another card, a throttled one. A scale is drawn to the pool's median until its deviation
//! is significant, so that noise never decides a placement; and its uncertainty grows while nothing is measured, so
//! that a replica written off as slow drifts back to the median and gets measured again.

use super::speed::Shape;
use super::time::Time;

/// Weight of one new observation in the slow mean; about 20 observations of memory.
const SLOW: f64 = 0.05;
/// Weight of one new observation in the fast mean, which only watches for jumps.
const FAST: f64 = 0.25;
/// Deviations (in standard errors) under which a scale counts as noise around the median.
const SIGNIFICANT: f64 = 2.0;
/// Log-variance of a single clean observation to start from: prefills of equal work differ by about a fifth.
const PRIOR_VAR: f64 = 0.04;
/// Log-variance that a second without a measurement adds; after ten minutes a known scale is a guess again.
const DRIFT: f64 = PRIOR_VAR / 600.0;
/// Observed over expected is believed within this factor either way.
const CLIP: f64 = 30.0;

/// The scale of one replica's time against the pool's shape, in logarithms.
#[derive(Clone, Debug)]
pub struct Scale {
    slow: f64,
    fast: f64,
    var: f64,
    weight: f64,
    last: Time,
}

impl Default for Scale {
    fn default() -> Self {
        Scale { slow: 0.0, fast: 0.0, var: PRIOR_VAR, weight: 0.0, last: Time(0) }
    }
}

impl Scale {
    /// Takes in one observation: it took `observed` seconds where the shape said `expected`. `weight` in 0..=1 says how
    /// clean it is. Non-positive or non-finite values are ignored.
    pub fn observe(&mut self, now: Time, observed: f64, expected: f64, weight: f64) {
        let ratio = observed / expected;
        if !ratio.is_finite() || ratio <= 0.0 || weight.is_nan() || weight <= 0.0 {
            return;
        }
        let x = ratio.clamp(1.0 / CLIP, CLIP).ln();
        self.weight = (self.weight + weight).min(1.0 / SLOW);
        self.last = now;
        // While there are few observations a plain mean is the best estimate; later an exponential one.
        let gain = |floor: f64, total: f64| (weight / total).max(floor * weight).min(1.0);
        let slow = gain(SLOW, self.weight);
        let off = x - self.slow;
        self.slow += slow * off;
        self.fast += gain(FAST, self.weight.min(1.0 / FAST)) * (x - self.fast);
        self.var += slow * (off * off - self.var);
        self.var = self.var.max(1e-4);
        // A jump (throttling, a neighbour on the card): the fast mean has left the slow one's noise for good.
        let noise = (self.var.min(PRIOR_VAR) * FAST / (2.0 - FAST)).sqrt();
        if self.weight > 4.0 && (self.fast - self.slow).abs() > 3.0 * noise {
            self.slow = self.fast;
            self.weight = 1.0 / FAST;
            self.var = self.var.min(PRIOR_VAR);
        }
    }

    /// Logarithm of the scale to price with, given the pool's median.
    pub fn log(&self, now: Time, median: f64) -> f64 {
        if self.weight <= 0.0 {
            return median;
        }
        let z = (self.slow - median).abs() / self.error(now);
        // Positive-part shrinkage: nothing of an insignificant deviation is kept, nearly all of a large one.
        let keep = (1.0 - (SIGNIFICANT / z.max(1e-9)).powi(2)).max(0.0);
        median + keep * (self.slow - median)
    }

    /// Standard error of the scale's logarithm; large while unmeasured.
    pub fn error(&self, now: Time) -> f64 {
        if self.weight <= 0.0 {
            return 1.0;
        }
        (self.var / self.weight + DRIFT * now.since(self.last)).sqrt()
    }

    /// As numbers for a snapshot: means, variance, weight, and seconds since the last observation.
    pub fn save(&self, now: Time) -> [f64; 5] {
        [self.slow, self.fast, self.var, self.weight, now.since(self.last)]
    }

    /// From such numbers; `None` if they can't be any. The age is lost where it is greater than `now`.
    pub fn restore(now: Time, from: &[f64]) -> Option<Self> {
        let &[slow, fast, var, weight, age] = from else { return None };
        let log = |x: f64| x.abs() <= CLIP.ln();
        if !(log(slow) && log(fast) && var > 0.0 && var < 1e3 && (0.0..=1.0 / SLOW).contains(&weight)) {
            return None;
        }
        // The clock began anew: how long ago it was is told by its uncertainty instead.
        let var = var + if weight > 0.0 && age > 0.0 { (DRIFT * age.min(1e6)) * weight } else { 0.0 };
        Some(Scale { slow, fast, var, weight, last: now })
    }

    /// Raw logarithm of the scale and the weight of what it rests on (0 to 20 observations).
    pub fn raw(&self) -> (f64, f64) {
        (self.slow, self.weight)
    }
}

/// The pool's fit of a prefill's `t0` and `a`: weighted least squares with forgetting, drawn to the prior.
#[derive(Clone, Debug)]
pub struct Fit {
    prior: Shape,
    shape: Shape,
    /// Sums of the normal equations over (steps, work).
    ss: f64,
    sw: f64,
    ww: f64,
    sy: f64,
    wy: f64,
}

impl Fit {
    /// Starts from `prior`.
    pub fn new(prior: Shape) -> Self {
        Fit { prior, shape: prior, ss: 0.0, sw: 0.0, ww: 0.0, sy: 0.0, wy: 0.0 }
    }

    /// The shape as known now.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The shape that it started from.
    pub fn prior(&self) -> &Shape {
        &self.prior
    }

    /// As numbers for a snapshot: the prior, which they only mean something with, and the sums.
    pub fn save(&self) -> [f64; 7] {
        [self.prior.launch, self.prior.token, self.ss, self.sw, self.ww, self.sy, self.wy]
    }

    /// From such numbers; `None` if they can't be any, or belong to another prior.
    pub fn restore(prior: Shape, from: &[f64]) -> Option<Self> {
        let &[launch, token, ss, sw, ww, sy, wy] = from else { return None };
        let sums = [ss, sw, ww, sy, wy];
        if launch != prior.launch || token != prior.token || sums.iter().any(|x| !x.is_finite() || *x < 0.0) {
            return None;
        }
        let mut fit = Fit { prior, shape: prior, ss, sw, ww, sy, wy };
        // The prior's weight depends on what is believed, so belief is found in steps.
        (0..8).for_each(|_| fit.solve());
        Some(fit)
    }

    /// Takes in one clean prefill: `seconds` (already divided by the replica's own scale) for `uncached` tokens behind
    /// `cached` ones.
    pub fn observe(&mut self, seconds: f64, uncached: f64, cached: f64, weight: f64) {
        if !(seconds > 0.0 && seconds.is_finite() && weight > 0.0) {
            return;
        }
        let (s, w) = (self.prior.chunks(uncached), self.prior.work(uncached, cached));
        // Relative errors are what matters to a price, so each row is divided by its own seconds.
        let k = weight / (seconds * seconds);
        const KEEP: f64 = 0.995;
        for sum in [&mut self.ss, &mut self.sw, &mut self.ww, &mut self.sy, &mut self.wy] {
            *sum *= KEEP;
        }
        self.ss += k * s * s;
        self.sw += k * s * w;
        self.ww += k * w * w;
        self.sy += k * s * seconds;
        self.wy += k * w * seconds;
        self.solve();
    }

    fn solve(&mut self) {
        let p = &self.prior;
        // The prior counts as part of an observation of each coefficient, relative to what is believed now: relative
        // to the prior itself, a prior that is wrong by a factor of twenty would outweigh a thousand observations.
        let now = &self.shape;
        let (rs, rw) = (
            PRIOR_ROWS / (now.launch * now.launch).max(1e-12),
            PRIOR_ROWS / (now.token * now.token).max(1e-18),
        );
        let (a11, a12, a22) = (self.ss + rs, self.sw, self.ww + rw);
        let (b1, b2) = (self.sy + rs * p.launch, self.wy + rw * p.token);
        let det = a11 * a22 - a12 * a12;
        if det <= 0.0 || !det.is_finite() {
            return;
        }
        let launch = (b1 * a22 - b2 * a12) / det;
        let token = (b2 * a11 - b1 * a12) / det;
        let near = |v: f64, prior: f64| v.clamp(prior / 100.0, prior * 100.0);
        self.shape.launch = near(launch, p.launch);
        self.shape.token = near(token, p.token);
        self.shape.pair = p.pair * self.shape.token / p.token.max(1e-12);
    }
}

/// Observations that the prior of each coefficient counts for.
const PRIOR_ROWS: f64 = 0.5;

/// The median of the logarithms of those scales that rest on enough; 0 when none does.
pub fn median<'a>(scales: impl Iterator<Item = &'a Scale>, scratch: &mut Vec<f64>) -> f64 {
    scratch.clear();
    scratch.extend(scales.map(Scale::raw).filter(|&(_, w)| w >= 3.0).map(|(x, _)| x));
    if scratch.is_empty() {
        return 0.0;
    }
    scratch.sort_by(f64::total_cmp);
    let m = scratch.len() / 2;
    if scratch.len() % 2 == 1 { scratch[m] } else { (scratch[m - 1] + scratch[m]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jitter(i: u64) -> f64 {
        // A fixed ±20% saw without a trend.
        0.8 + 0.4 * ((i * 7919 % 101) as f64 / 100.0)
    }

    #[test]
    fn noise_around_the_median_prices_as_the_median() {
        let mut s = Scale::default();
        for i in 0..200 {
            s.observe(Time(i), jitter(i), 1.0, 1.0);
        }
        assert!(s.log(Time(200), 0.0).abs() < 0.03, "{}", s.log(Time(200), 0.0));
    }

    #[test]
    fn a_halved_speed_is_known_after_fifty_requests() {
        let mut s = Scale::default();
        for i in 0..300 {
            s.observe(Time::from_secs(i as f64), jitter(i), 1.0, 1.0);
        }
        for i in 300..350 {
            s.observe(Time::from_secs(i as f64), 2.0 * jitter(i), 1.0, 1.0);
        }
        let scale = s.log(Time::from_secs(350.0), 0.0).exp();
        assert!((scale / 2.0 - 1.0).abs() < 0.1, "{scale}");
    }

    #[test]
    fn what_is_not_measured_for_long_drifts_back_to_the_median() {
        let mut s = Scale::default();
        for i in 0..20 {
            s.observe(Time(i), 1.5, 1.0, 1.0);
        }
        assert!((s.log(Time(20), 0.0).exp() - 1.5).abs() < 0.1);
        assert!(s.log(Time::from_secs(3600.0), 0.0).abs() < 0.05);
    }

    #[test]
    fn garbage_is_ignored() {
        let mut s = Scale::default();
        for bad in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            s.observe(Time(1), bad, 1.0, 1.0);
            s.observe(Time(1), 1.0, bad, 1.0);
        }
        assert_eq!(s.raw(), (0.0, 0.0));
    }

    #[test]
    fn the_fit_finds_another_engine_from_a_wrong_prior() {
        let truth = Shape { launch: 0.05, token: 1e-3, ..Shape::DENSE_32B };
        let mut fit = Fit::new(Shape::DENSE_32B);
        for i in 0..200u64 {
            let u = (30 + i * 37 % 3000) as f64;
            let y = truth.token * Shape::DENSE_32B.work(u, 0.0) + truth.launch * truth.chunks(u);
            fit.observe(y * jitter(i), u, 0.0, 1.0);
        }
        let got = fit.shape();
        assert!((got.token / truth.token - 1.0).abs() < 0.15, "{got:?}");
        // The launch is a small part of most prefills, so jitter hides it: the right size is what matters.
        assert!((0.4..2.5).contains(&(got.launch / truth.launch)), "{got:?}");
    }

    #[test]
    fn what_was_learned_survives_a_snapshot_and_nonsense_does_not() {
        let mut s = Scale::default();
        let mut fit = Fit::new(Shape::DENSE_32B);
        for i in 0..100 {
            s.observe(Time::from_secs(i as f64), 2.0, 1.0, 1.0);
            fit.observe(2.0 * (0.014 + 4.7e-5 * (10 * i) as f64), (10 * i) as f64, 0.0, 1.0);
        }
        let again = Scale::restore(Time(0), &s.save(Time::from_secs(99.0))).unwrap();
        assert!((again.log(Time(0), 0.0) - s.log(Time::from_secs(99.0), 0.0)).abs() < 1e-9);
        let same = Fit::restore(Shape::DENSE_32B, &fit.save()).unwrap();
        assert!((same.shape().token / fit.shape().token - 1.0).abs() < 0.01, "{same:?} {fit:?}");
        assert!(Fit::restore(Shape { token: 1.0, ..Shape::DENSE_32B }, &fit.save()).is_none());
        assert!(Fit::restore(Shape::DENSE_32B, &[f64::NAN; 7]).is_none());
        for bad in [&[][..], &[f64::NAN; 5], &[0.0, 0.0, 0.1, 1e9, 0.0], &[99.0, 0.0, 0.1, 1.0, 0.0]] {
            assert!(Scale::restore(Time(0), bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn median_skips_the_unmeasured() {
        let mut a = Scale::default();
        for i in 0..10 {
            a.observe(Time(i), 2.0, 1.0, 1.0);
        }
        let scales = [Scale::default(), a, Scale::default()];
        assert!((median(scales.iter(), &mut Vec::new()) - 2f64.ln()).abs() < 0.05);
    }
}
