//! Up to which moment all that the cluster's sources showed has been told, and is committed where it is a fault. A hub that
//! closes an incident by what it knows must know all that there is to be known: a new leader has looked at nothing yet, and a
//! fault may wait in the journal behind others. Pure: time is an argument, counted from boot.

use std::{collections::VecDeque, time::Duration};

/// Whoever begins to be told of another audience has this long to find again what stands, and moments are at least as far
/// apart.
pub(super) const MARK_EVERY: Duration = Duration::from_secs(3);
/// Moments remembered: with one every 3 s they go back 96 s, and what is known of so long ago is fresh for nobody.
const MARKS_MAX: usize = 32;

/// See the module. `A` is who is told: another reign, session or request begins anew.
#[derive(Debug)]
pub struct Reach<A> {
    audience: Option<(A, Duration)>,
    /// Moments, with how many faults had been found by then, that the hub does not all have yet.
    marks: VecDeque<(Duration, u64)>,
    upto: Option<Duration>,
}

impl<A> Default for Reach<A> {
    fn default() -> Self {
        Self { audience: None, marks: VecDeque::new(), upto: None }
    }
}

impl<A: PartialEq> Reach<A> {
    /// Everything was looked at and told but for the `unacked` last of the `found` faults. Gives the moment up to which the
    /// hub knows all.
    pub fn look(&mut self, audience: A, now: Duration, found: u64, unacked: u64) -> Option<Duration> {
        let began = match &self.audience {
            Some((known, began)) if *known == audience => *began,
            Some(_) | None => {
                *self = Self { audience: Some((audience, now)), ..Self::default() };
                now
            }
        };
        if now.saturating_sub(began) < MARK_EVERY {
            return None;
        }
        let committed = found.saturating_sub(unacked);
        while let Some((at, _)) = self.marks.pop_front_if(|(_, found)| *found <= committed) {
            self.upto = Some(at);
        }
        if unacked == 0 {
            self.upto = Some(now);
        } else if self.marks.back().is_none_or(|(at, _)| now.saturating_sub(*at) >= MARK_EVERY) {
            if self.marks.len() >= MARKS_MAX {
                self.marks.pop_front();
            }
            self.marks.push_back((now, found));
        }
        self.upto
    }

    /// Something has not been looked at, or not been told.
    pub fn unknown(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn nothing_is_known_of_an_audience_that_has_just_begun() {
        let mut reach = Reach::default();
        assert_eq!(reach.look(1, s(10), 0, 0), None);
        assert_eq!(reach.look(1, s(12), 0, 0), None);
        assert_eq!(reach.look(1, s(13), 0, 0), Some(s(13)));
        assert_eq!(reach.look(2, s(14), 0, 0), None, "another session");
        reach.unknown();
        assert_eq!(reach.look(2, s(30), 0, 0), None);
    }

    #[test]
    fn a_moment_counts_once_all_that_was_found_by_then_is_committed() {
        let mut reach = Reach::default();
        assert_eq!(reach.look(1, s(0), 5, 5), None);
        assert_eq!(reach.look(1, s(10), 5, 5), None);
        assert_eq!(reach.look(1, s(20), 9, 5), None, "one of the first five waits");
        assert_eq!(reach.look(1, s(30), 9, 4), Some(s(10)));
        assert_eq!(reach.look(1, s(40), 12, 3), Some(s(30)), "nothing was found between 20 and 30");
        assert_eq!(reach.look(1, s(50), 12, 0), Some(s(50)));
    }

    #[test]
    fn a_journal_that_never_empties_is_followed_and_costs_a_bounded_memory() {
        let mut reach = Reach::default();
        for second in 0..10_000 {
            // A fault each second, each committed ten seconds later.
            let upto = reach.look(1, s(second), second, 10.min(second));
            assert!(second < 40 || upto.is_some_and(|upto| upto + s(14) >= s(second)), "{second}: {upto:?}");
            assert!(reach.marks.len() <= MARKS_MAX);
        }
        for second in 10_000..20_000 {
            reach.look(1, s(second), second, second);
            assert!(reach.marks.len() <= MARKS_MAX);
        }
    }
}
