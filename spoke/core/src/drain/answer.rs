//! What the API server's answer to an eviction means, and how long to wait before the next one. By status, reason and
//! cause; by text only where the server gives no more than a text, and then a text that is not known is the careful answer:
//! look, and ask again later.

use std::time::Duration;

use super::admission::{How, against};

/// First wait after a PDB's refusal; doubled up to [`BACKOFF_MAX`].
pub(super) const BACKOFF_BASE: Duration = Duration::from_secs(1);
/// Longest wait between two evictions of one pod: a freed budget is seen within half a minute.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Longest Retry-After that is honoured as it is.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// In the eviction handler's answer to a pod under several budgets, a 500 that has neither reason nor cause. An error of
/// etcd's that the API server passes on has none either.
const MANY_BUDGETS: &str = "more than one PodDisruptionBudget";
/// What a drain asks for of a pod, as RBAC knows it.
const OF_A_POD: [(&str, &str); 2] = [("create", "pods/eviction"), ("delete", "pods")];
/// Reasons of an API server that cannot make anything of a request.
const INVALID: [&str; 4] = ["BadRequest", "Invalid", "MethodNotAllowed", "UnsupportedMediaType"];

/// The parts of an answer that decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// HTTP status.
    pub status: u16,
    /// The Status' `reason`; empty when it has none, or the answer is no Status.
    pub reason: &'a str,
    /// The Status' `message`.
    pub message: &'a str,
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
    /// Not there, or not as we know it: look whose name it is now. Whoever stands in between may say so too.
    Differs,
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
    /// Our account may not: nothing else is tried.
    NoRight,
    /// A webhook, a policy or the budget's bookkeeping says no: wait longer.
    Denied {
        /// What the server asks for.
        retry_after: Option<Duration>,
    },
    /// A webhook that has a say could not be asked: nothing was done, and somebody must look at it.
    WebhookFailed,
    /// The server failed, and does not say before which point: look, tell, wait longer.
    Failed {
        /// What the server asks for.
        retry_after: Option<Duration>,
    },
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
    match against(reply.message).filter(|_| reply.status >= 400).map(|against| against.how) {
        Some(How::Denied | How::Policy) => return Answer::Denied { retry_after },
        Some(How::NotReached) => return Answer::WebhookFailed,
        None => {}
    }
    match reply.status {
        200..=299 => Answer::Accepted,
        404 | 409 | 410 => Answer::Differs,
        429 if cause("DisruptionBudget") => Answer::Budget { retry_after },
        429 => Answer::Throttled { retry_after },
        403 if cause("NamespaceTerminating") => Answer::NamespaceTerminating,
        403 if lacks_right(reply.message) => Answer::NoRight,
        400 | 405 | 415 | 422 if INVALID.contains(&reply.reason) => Answer::Invalid,
        400..=499 => Answer::Denied { retry_after },
        500 if reply.reason.is_empty() && reply.message.contains(MANY_BUDGETS) => Answer::ManyBudgets,
        500 => Answer::Failed { retry_after },
        _ => Answer::Unanswered { retry_after },
    }
}

/// Whether a 403 says that our account lacks the right to evict, or to delete.
#[must_use]
pub fn lacks_right(message: &str) -> bool {
    OF_A_POD.iter().any(|(verb, resource)| lacks_right_to(message, verb, resource))
}

/// How RBAC, and whoever else authorises, says that our account may not: the API server's own sentence. Of its other 403s (a budget
/// below zero, an admission plugin) some pass by themselves.
#[must_use]
pub fn lacks_right_to(message: &str, verb: &str, resource: &str) -> bool {
    message.contains(&format!("cannot {verb} resource \"{resource}\""))
}

/// How long to wait before attempt `attempt` (0 = the second call): doubled from [`BACKOFF_BASE`], between half and all of
/// it by `chance` in 0..1, never shorter than what the server asked for.
#[must_use]
pub fn backoff(attempt: u32, retry_after: Option<Duration>, chance: f64) -> Duration {
    let full = BACKOFF_BASE.saturating_mul(1 << attempt.min(10)).min(BACKOFF_MAX);
    let jittered = full.mul_f64(0.5 + 0.5 * chance.clamp(0.0, 1.0));
    jittered.max(retry_after.unwrap_or_default())
}
