//! What a run draws, all of it from one printed number: SplitMix64, so that a seed means the same on every machine.

/// A generator of numbers that look random and are not.
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// From a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    ///
    /// # Panics
    /// When `low` is above `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "an empty range has no number");
        low + self.next() % (high - low + 1)
    }

    /// One of these.
    ///
    /// # Panics
    /// When there is none.
    pub fn one_of<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let last = of.len().checked_sub(1).expect("a choice needs something to choose from");
        &of[usize::try_from(self.between(0, last as u64)).expect("an index fits")]
    }
}

#[cfg(test)]
mod tests {
    use super::Seeded;

    #[test]
    fn one_seed_draws_the_same_numbers_every_time() {
        let draw = |seed| {
            let mut seeded = Seeded::new(seed);
            (0..8).map(|_| seeded.between(3, 9)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|n| (3..=9).contains(n)));
    }
}
