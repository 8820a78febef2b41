//! How many nodes may be out, and how fast they may go out: pure arithmetic over stored numbers, always with its words.
//! Percentages are of GPU nodes only, rounded down, with a floor of 1 (a cluster of three could never heal otherwise).

use gpuheal_proto::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A limit on nodes out: the smaller of both when both are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// At most so many per cent of the GPU nodes, rounded down, at least 1.
    pub percent: u32,
    /// At most so many nodes.
    pub nodes: Option<u32>,
}

impl Budget {
    /// How many may be out of `gpu_nodes`.
    #[must_use]
    pub fn allowed(self, gpu_nodes: u32) -> u32 {
        let share = u32::try_from(u64::from(gpu_nodes) * u64::from(self.percent) / 100).unwrap_or(u32::MAX);
        let share = if self.percent == 0 { 0 } else { share.max(1) };
        self.nodes.map_or(share, |nodes| nodes.min(share))
    }

    /// Whether one more may go out, and the words for it.
    ///
    /// # Errors
    /// The words why not: `2 of 20 GPU nodes of cluster c1 out, 10 % allows 2`.
    pub fn admit(self, scope: &str, gpu_nodes: u32, out: u32) -> Result<String, String> {
        let allowed = self.allowed(gpu_nodes);
        let limit = match self.nodes {
            Some(nodes) if nodes == allowed => format!("{nodes} nodes are allowed"),
            Some(_) | None => format!("{} % allows {allowed}", self.percent),
        };
        let words = format!("{out} of {gpu_nodes} GPU nodes of {scope} out, {limit}");
        if out < allowed { Ok(words) } else { Err(words) }
    }
}

/// A token bucket as stored: how many thousandths of a token were there at `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateState {
    /// Thousandths of a token.
    pub milli_tokens: u64,
    /// When that was so.
    pub at: Timestamp,
}

/// Nodes per second that may be newly harmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Thousandths of a node per second; the burst is one second's worth, at least one node.
    pub milli_nodes_per_second: u64,
}

impl Rate {
    const TOKEN: u64 = 1000;

    /// The most that the bucket holds.
    #[must_use]
    pub fn burst(self) -> u64 {
        self.milli_nodes_per_second.max(Self::TOKEN)
    }

    /// A full bucket.
    #[must_use]
    pub fn full(self, now: Timestamp) -> RateState {
        RateState { milli_tokens: self.burst(), at: now }
    }

    /// The bucket as it is at `now`.
    #[must_use]
    pub fn refill(self, state: RateState, now: Timestamp) -> RateState {
        let ms = u64::try_from(now.since(state.at).as_millis()).unwrap_or(u64::MAX);
        let gained = ms.saturating_mul(self.milli_nodes_per_second) / 1000;
        if gained == 0 {
            return RateState { milli_tokens: state.milli_tokens.min(self.burst()), at: state.at };
        }
        RateState { milli_tokens: state.milli_tokens.saturating_add(gained).min(self.burst()), at: now }
    }

    /// Takes one node's token.
    ///
    /// # Errors
    /// When there is none: the moment when there will be one.
    pub fn take(self, state: RateState, now: Timestamp) -> Result<RateState, Timestamp> {
        let state = self.refill(state, now);
        if state.milli_tokens >= Self::TOKEN {
            return Ok(RateState { milli_tokens: state.milli_tokens - Self::TOKEN, at: state.at });
        }
        let lacking = Self::TOKEN - state.milli_tokens;
        let ms = if self.milli_nodes_per_second == 0 { NEVER_MS } else { (lacking * 1000).div_ceil(self.milli_nodes_per_second) };
        Err(now.max(state.at.after(std::time::Duration::from_millis(ms))))
    }
}

/// A rate of nothing is looked at again after an hour: policy may have changed.
const NEVER_MS: u64 = 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_unix_ms(ms)
    }

    #[test]
    fn a_share_is_rounded_down_with_a_floor_of_one() {
        let tenth = Budget { percent: 10, nodes: None };
        for (gpu_nodes, allowed) in [(0, 1), (1, 1), (3, 1), (19, 1), (20, 2), (29, 2), (1000, 100)] {
            assert_eq!(tenth.allowed(gpu_nodes), allowed, "{gpu_nodes}");
        }
    }

    #[test]
    fn nothing_is_allowed_when_policy_says_zero() {
        assert_eq!(Budget { percent: 0, nodes: None }.allowed(1000), 0);
        assert_eq!(Budget { percent: 10, nodes: Some(0) }.allowed(1000), 0);
    }

    #[test]
    fn the_smaller_of_share_and_number_counts_and_the_words_say_which() {
        let budget = Budget { percent: 10, nodes: Some(2) };
        assert_eq!(budget.admit("cluster c1", 100, 2).unwrap_err(), "2 of 100 GPU nodes of cluster c1 out, 2 nodes are allowed");
        let budget = Budget { percent: 10, nodes: None };
        assert_eq!(budget.admit("cluster c1", 20, 2).unwrap_err(), "2 of 20 GPU nodes of cluster c1 out, 10 % allows 2");
    }

    #[test]
    fn two_nodes_a_second_pass_and_the_third_waits_half_a_second() {
        let rate = Rate { milli_nodes_per_second: 2000 };
        let bucket = rate.full(at(0));
        let bucket = rate.take(bucket, at(0)).unwrap();
        let bucket = rate.take(bucket, at(0)).unwrap();
        assert_eq!(rate.take(bucket, at(0)), Err(at(500)));
        assert!(rate.take(bucket, at(499)).is_err());
        assert!(rate.take(bucket, at(500)).is_ok());
    }

    #[test]
    fn a_storm_of_questions_does_not_starve_the_bucket_of_its_refill() {
        let rate = Rate { milli_nodes_per_second: 100 };
        let mut bucket = RateState { milli_tokens: 0, at: at(0) };
        for ms in 0..=10_000 {
            bucket = rate.refill(bucket, at(ms));
        }
        assert!(rate.take(bucket, at(10_000)).is_ok());
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing() {
        let rate = Rate { milli_nodes_per_second: 2000 };
        let bucket = RateState { milli_tokens: 0, at: at(10_000) };
        assert_eq!(rate.refill(bucket, at(0)), bucket);
    }
}
