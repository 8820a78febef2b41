//! What the API server's answer to an eviction means, and how long to wait before the next one. By status and cause, not
//! by text; where the server gives no more than a text, the answer is the careful one: denied, ask again later.

use std::time::Duration;

/// First wait after a PDB's refusal; doubled up to [`BACKOFF_MAX`].
pub(super) const BACKOFF_BASE: Duration = Duration::from_secs(1);
/// Longest wait between two evictions of one pod: a freed budget is seen within half a minute.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Longest Retry-After that is honoured as it is.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// The parts of an answer that decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// HTTP status.
    pub status: u16,
    /// `details.causes[].reason`.
    pub causes: &'a [&'a str],
    /// Header or `details.retryAfterSeconds`.
    pub retry_after: Option<Duration>,
}

/// What it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Evicted: now it must go.
    Accepted,
    /// No such pod: done.
    Gone,
    /// The UID or resourceVersion differs: look whose name it is now.
    Conflict,
    /// A PDB says no: wait for this pod alone.
    Budget {
        /// What the server asks for.
        retry_after: Option<Duration>,
    },
    /// The API server is overloaded: slow everything.
    Throttled {
        /// What the server asks for.
        retry_after: Option<Duration>,
    },
    /// More than one PDB matches: a person must fix that.
    ManyBudgets,
    /// Its namespace is going away: it will go by itself.
    NamespaceTerminating,
    /// A webhook, RBAC or the budget's bookkeeping says no: wait longer.
    Denied,
    /// Not answered: look whether it happened before asking again.
    Unanswered {
        /// What the server asks for.
        retry_after: Option<Duration>,
    },
    /// We have sent what no server accepts: a fault of ours, not to be repeated.
    Invalid,
}

/// Understands an answer.
#[must_use]
pub fn classify(reply: Reply<'_>) -> Answer {
    let retry_after = reply.retry_after.map(|wait| wait.min(RETRY_AFTER_MAX));
    let cause = |reason: &str| reply.causes.contains(&reason);
    match reply.status {
        200..=299 => Answer::Accepted,
        404 | 410 => Answer::Gone,
        409 => Answer::Conflict,
        429 if cause("DisruptionBudget") => Answer::Budget { retry_after },
        429 => Answer::Throttled { retry_after },
        403 if cause("NamespaceTerminating") => Answer::NamespaceTerminating,
        // The handler's only 500 of its own: several PDBs match one pod. It carries neither reason nor cause.
        500 => Answer::ManyBudgets,
        400 | 405 | 415 | 422 if !reply.causes.is_empty() => Answer::Invalid,
        400..=499 => Answer::Denied,
        _ => Answer::Unanswered { retry_after },
    }
}

/// How long to wait before attempt `attempt` (0 = the second call): doubled from [`BACKOFF_BASE`], between half and all of
/// it by `chance` in 0..1, never shorter than what the server asked for.
#[must_use]
pub fn backoff(attempt: u32, retry_after: Option<Duration>, chance: f64) -> Duration {
    let full = BACKOFF_BASE.saturating_mul(1 << attempt.min(10)).min(BACKOFF_MAX);
    let jittered = full.mul_f64(0.5 + 0.5 * chance.clamp(0.0, 1.0));
    jittered.max(retry_after.unwrap_or_default())
}
