//! Pure: one rule: which requests it is about, and what happens to them. Its JSON form is what the admin sends.

use serde::{Deserialize, Serialize};

/// Which requests a rule is about. An absent field holds for all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct When {
    /// API verb.
    pub verb: Option<String>,
    /// `pods` (with all its subresources), `pods/eviction`.
    pub resource: Option<String>,
    /// Namespace.
    pub namespace: Option<String>,
    /// Object name.
    pub name: Option<String>,
    /// Authenticated user.
    pub user: Option<String>,
    /// Part of the user agent.
    pub user_agent: Option<String>,
}

impl When {
    /// One verb on one resource.
    pub fn verb(verb: &str, resource: &str) -> Self {
        Self { verb: Some(verb.into()), resource: Some(resource.into()), ..Self::default() }
    }

    /// Narrows to one object.
    pub fn named(self, name: &str) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Narrows to one user.
    pub fn by(self, user: &str) -> Self {
        Self { user: Some(user.into()), ..self }
    }

    pub(crate) fn holds(&self, request: &Subject<'_>) -> bool {
        let is = |wanted: &Option<String>, got: &str| wanted.as_deref().is_none_or(|wanted| wanted == "*" || wanted == got);
        let resource = self.resource.as_deref().is_none_or(|wanted| {
            wanted == "*" || wanted == request.resource || wanted.split_once('/') == Some((request.resource, request.subresource))
        });
        resource
            && is(&self.verb, request.verb)
            && is(&self.namespace, request.namespace)
            && is(&self.name, request.name)
            && is(&self.user, request.user)
            && self.user_agent.as_deref().is_none_or(|part| request.user_agent.contains(part))
    }
}

/// What happens then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Then {
    /// 403 as from RBAC; access reviews answer no as well.
    Deny,
    /// 429 of priority and fairness: no disruption budget behind it.
    Throttle {
        /// `Retry-After`, when sent.
        #[serde(default)]
        retry_after: Option<u32>,
    },
    /// 429 with the cause DisruptionBudget.
    BudgetRefusal {
        /// `Retry-After`, when sent.
        #[serde(default)]
        retry_after: Option<u32>,
    },
    /// 504 of the eviction handler which lost twenty races for the budget's status.
    BudgetConflict,
    /// Any other refusal: 500, 503, 504 and what a test needs.
    Status {
        /// HTTP code.
        code: u16,
        /// `reason`.
        #[serde(default)]
        reason: String,
        /// `message`.
        #[serde(default)]
        message: String,
        /// `Retry-After`, when sent.
        #[serde(default)]
        retry_after: Option<u32>,
    },
    /// An admission webhook refuses.
    AdmissionDenial {
        /// The webhook's choice.
        code: u16,
        /// The webhook's words.
        message: String,
    },
    /// The request waits before it is looked at.
    Delay {
        /// Real milliseconds.
        ms: u64,
    },
    /// The answer comes in small pieces.
    SlowBody {
        /// Real milliseconds between pieces.
        ms: u64,
        /// Bytes per piece.
        bytes: usize,
    },
    /// The connection is cut before the request is looked at.
    CutBefore,
    /// The request is done, and the connection is cut instead of an answer.
    CutAfter,
    /// No answer ever, and nothing is done.
    Hang,
    /// Watches of the resource say nothing more, and stay open.
    StallWatch,
    /// Watches are refused with 410 as HTTP status.
    WatchGone,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fault {
    /// Which requests.
    #[serde(default)]
    pub when: When,
    /// What happens.
    pub then: Then,
    /// How many requests it holds for; absent: until removed.
    #[serde(default)]
    pub times: Option<u32>,
    /// How many matching requests pass unharmed first.
    #[serde(default)]
    pub skip: u32,
}

impl Fault {
    /// A rule without end.
    pub fn always(when: When, then: Then) -> Self {
        Self { when, then, times: None, skip: 0 }
    }

    /// A rule for the next request only.
    pub fn once(when: When, then: Then) -> Self {
        Self { when, then, times: Some(1), skip: 0 }
    }
}

/// A request, as rules see it.
pub(crate) struct Subject<'r> {
    pub(crate) verb: &'r str,
    pub(crate) resource: &'r str,
    pub(crate) subresource: &'r str,
    pub(crate) namespace: &'r str,
    pub(crate) name: &'r str,
    pub(crate) user: &'r str,
    pub(crate) user_agent: &'r str,
}
