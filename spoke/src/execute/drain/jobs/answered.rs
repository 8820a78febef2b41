//! What an answer to an eviction makes of its pod: gone, asked for again and when, or a person's to mend.

use std::time::Duration;

use gpuheal_spoke_core::drain::backoff;
use tokio::time::Instant;

use super::{super::evict::Outcome, Hold, Jobs, job::State};

/// Waits of what only a person or time can mend.
const SLOW_RECHECK: Duration = Duration::from_secs(30);
/// What to say where a budget keeps a pod that serves nobody.
const UNREADY: &str =
    "the pod itself is not ready, and such a one may go under a budget with unhealthyPodEvictionPolicy: AlwaysAllow";
impl Jobs {
    /// Takes an answer; returns what to tell people when something of that kind keeps it for the first time.
    pub(in super::super) fn answered(&mut self, uid: &str, outcome: Outcome, now: Instant) -> Option<(Hold, String)> {
        self.dirty = true;
        let job = self.by_uid.get_mut(uid)?;
        let deleted = job.past_budget;
        let went = matches!(outcome, Outcome::Accepted | Outcome::Doubt) || job.doubt && outcome == Outcome::Gone;
        job.past_budget &= went;
        if job.state != State::Asked {
            return None;
        }
        let hold = Hold::of(&outcome);
        let looked = std::mem::replace(&mut job.doubt, outcome == Outcome::Doubt);
        job.unanswered = match outcome {
            Outcome::Again { .. } | Outcome::Doubt => job.unanswered + 1,
            Outcome::Unsent => job.unanswered,
            _ => 0,
        };
        // What is said to a delete tells nothing of budgets, nor does silence.
        if !deleted {
            job.held = match outcome {
                Outcome::Budget { .. } | Outcome::ManyBudgets { .. } => true,
                Outcome::Denied { .. } | Outcome::Invalid { .. } | Outcome::Terminating => false,
                _ => job.held,
            };
        }
        let (wait, reason, blocked) = match outcome {
            Outcome::Accepted => {
                job.leave(now);
                return None;
            }
            Outcome::Gone => {
                job.go();
                return None;
            }
            Outcome::Budget { wait, why } => {
                let why = if job.pod.ready { why } else { format!("{why}; {UNREADY}") };
                (backoff(job.attempt, wait, crate::chance::chance(0.0)), why, false)
            }
            Outcome::Throttled { wait } => (backoff(job.attempt, wait, crate::chance::chance(0.0)), String::new(), false),
            Outcome::ManyBudgets { why } => (SLOW_RECHECK, why, true),
            Outcome::Terminating => (SLOW_RECHECK, "its namespace is going away".to_owned(), true),
            Outcome::Denied { wait, why } | Outcome::Failed { wait, why } => {
                (backoff(job.attempt + 2, wait, crate::chance::chance(0.0)), why, false)
            }
            Outcome::Again { wait: None, .. } if looked => (Duration::ZERO, String::new(), false),
            Outcome::Again { wait, why } => {
                (backoff(job.attempt, wait, crate::chance::chance(0.0)), job.unanswered_words(why), false)
            }
            Outcome::Doubt => {
                let why = job.unanswered_words("neither its eviction nor a look at it was answered".to_owned());
                (backoff(job.attempt, None, crate::chance::chance(0.0)), why, false)
            }
            Outcome::Invalid { why } | Outcome::NoRight { why } => (SLOW_RECHECK, why, true),
            Outcome::Unsent => {
                job.state = State::Waiting;
                job.calls = job.calls.saturating_sub(1);
                return None;
            }
        };
        job.state = State::Waiting;
        job.attempt += 1;
        // A budget that may be passed is not waited for.
        let passes = !deleted && job.passes();
        job.due = if passes { now } else { now + wait };
        job.blocked = blocked && !passes;
        // An answer that says nothing of why leaves what held it back before as the best that is known.
        if reason.is_empty() {
            return None;
        }
        job.reason.clone_from(&reason);
        job.tell(hold?, &reason)
    }
}
