//! Seeded chance: the only source of it in a run. Splitmix64: small, fast, and the same on every machine.

use std::time::Duration;

/// A stream of numbers that its seed alone decides.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// Of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// Another stream that this one decides: what draws from it moves nothing else.
    pub fn fork(&mut self) -> Self {
        Self::new(self.next())
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "chance has no end and is walked by nobody")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True once in `of`.
    pub fn once_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    /// A span from `least` to `most` milliseconds.
    pub fn ms(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most.saturating_sub(least) + 1))
    }

    /// One of them.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[usize::try_from(self.below(of.len() as u64)).unwrap_or(0)]
    }

    /// Letters and digits, for what a real process draws from the system.
    pub fn word(&mut self) -> String {
        format!("{:016x}", self.next())
    }
}
