//! What each tenant was served, so that those who wait are served evenly.
//!
//! Every tenant has an account of tokens: uncached prompt tokens and output tokens, the expected ones when a request is
//! placed, corrected by what it really took. Among those of a band that wait in a lane, the tenant with the least on its
//! account goes first. That is fair queueing by start tags: two tenants who always have something waiting differ by no more
//! than one request's tokens each, where round robin with deficits adds a quantum. The accounts are the fleet's, not a lane's:
//! a tenant whose traffic is spread over all replicas gets no share for each of them.
//!
//! Idle time can't be saved up: who has nothing waiting rejoins at the level of those who are being served.

use std::collections::BTreeMap;

/// Accounts kept at most. Tenants beyond them share one.
const MOST: usize = 4096;
/// The account of those without one of their own.
const OTHERS: u64 = 0;

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    served: f64,
    /// Requests that wait or are in flight: the account must stay.
    open: u32,
}

/// The accounts.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct Tenants {
    accounts: BTreeMap<u64, Account>,
    /// Where the tenant last placed stood before it: the level of those who are being served.
    level: f64,
}

impl Tenants {
    /// A request of `tenant` comes. Returns the account that it is booked on; to be closed once.
    pub(in crate::core) fn open(&mut self, tenant: u64) -> u64 {
        let mut key = tenant;
        if !self.accounts.contains_key(&key) && self.accounts.len() >= MOST {
            let level = self.level;
            self.accounts.retain(|_, a| a.open > 0 || a.served > level);
            if self.accounts.len() >= MOST {
                key = OTHERS;
            }
        }
        let level = self.level;
        let account = self.accounts.entry(key).or_default();
        if account.open == 0 {
            account.served = account.served.max(level);
        }
        account.open += 1;
        key
    }

    /// That request is over, however it ended.
    pub(in crate::core) fn close(&mut self, key: u64) {
        if let Some(a) = self.accounts.get_mut(&key) {
            a.open = a.open.saturating_sub(1);
            if a.open == 0 && a.served <= self.level {
                self.accounts.remove(&key);
            }
        }
    }

    /// Tokens on the account.
    pub(in crate::core) fn served(&self, key: u64) -> f64 {
        self.accounts.get(&key).map_or(self.level, |a| a.served)
    }

    /// A request was placed that is expected to take so many tokens.
    pub(in crate::core) fn placed(&mut self, key: u64, tokens: f64) {
        if let Some(a) = self.accounts.get_mut(&key) {
            self.level = self.level.max(a.served);
            a.served += tokens;
        }
    }

    /// It took so many more than expected, or (negative) fewer.
    pub(in crate::core) fn correct(&mut self, key: u64, tokens: f64) {
        if let Some(a) = self.accounts.get_mut(&key) {
            a.served = (a.served + tokens).max(0.0);
        }
    }

    /// Requests that are open on all accounts together.
    pub(in crate::core) fn opened(&self) -> usize {
        self.accounts.values().map(|a| a.open as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_saved_up() {
        let mut t = Tenants::default();
        let a = t.open(1);
        for _ in 0..10 {
            t.placed(a, 100.0);
        }
        let b = t.open(2);
        assert_eq!(t.served(a), 1000.0);
        assert_eq!(t.served(b), 900.0, "it joins where the other stood when last served, not at zero");
        t.placed(b, 50.0);
        t.correct(b, 100.0);
        assert_eq!(t.served(b), 1050.0);
        t.close(a);
        t.close(b);
        assert_eq!(t.opened(), 0);
    }

    #[test]
    fn accounts_are_bounded_and_the_rest_share_one() {
        let mut t = Tenants::default();
        let keys: Vec<u64> = (1..=5000).map(|n| t.open(n)).collect();
        assert!(t.accounts.len() <= MOST + 1);
        assert_eq!(keys[4999], OTHERS);
        assert_eq!(t.opened(), 5000);
        keys.into_iter().for_each(|k| t.close(k));
        assert_eq!((t.opened(), t.accounts.len()), (0, 0));
    }
}
