//! What goes wrong on purpose: refusals, lost answers, slow bodies, broken watches, a wrong clock.
//! A rule says when it holds and what happens then; the first rule that holds wins. Set by tests, or over HTTP by an admin.

mod rule;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub(crate) use rule::Subject;
pub use rule::{Fault, Then, When};

/// Names a rule for its removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FaultId(pub u64);

#[derive(Debug, Default)]
struct Rules {
    next: u64,
    rules: Vec<(FaultId, Fault)>,
    skew_seconds: i64,
}

/// The switches of one cluster; clones share them.
#[derive(Debug, Clone)]
pub struct Faults {
    rules: Arc<Mutex<Rules>>,
    /// (how often watches were cut, of which resource the last time)
    cuts: Arc<watch::Sender<(u64, String)>>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { rules: Arc::default(), cuts: Arc::new(watch::channel((0, String::new())).0) }
    }
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rule, after those that are there.
    pub fn add(&self, fault: Fault) -> FaultId {
        let mut rules = self.lock();
        rules.next += 1;
        let id = FaultId(rules.next);
        rules.rules.push((id, fault));
        id
    }

    /// Takes a rule away; whether it was there.
    pub fn remove(&self, id: FaultId) -> bool {
        let mut rules = self.lock();
        let before = rules.rules.len();
        rules.rules.retain(|(known, _)| *known != id);
        rules.rules.len() != before
    }

    /// All is well again: no rules, no skew.
    pub fn clear(&self) {
        let mut rules = self.lock();
        rules.rules.clear();
        rules.skew_seconds = 0;
    }

    /// The rules that are set.
    pub fn all(&self) -> Vec<(FaultId, Fault)> {
        self.lock().rules.clone()
    }

    /// RBAC refuses a verb on a resource, to one user or to all.
    pub fn deny(&self, verb: &str, resource: &str, user: Option<&str>) -> FaultId {
        let when = When { user: user.map(str::to_owned), ..When::verb(verb, resource) };
        self.add(Fault::always(when, Then::Deny))
    }

    /// The next answer to such a request is lost, though the request is done.
    pub fn lose_answer(&self, verb: &str, resource: &str) -> FaultId {
        self.add(Fault::once(When::verb(verb, resource), Then::CutAfter))
    }

    /// Watches of a resource fall silent and stay open, until the rule is removed.
    pub fn stall_watches(&self, resource: &str) -> FaultId {
        self.add(Fault::always(When { resource: Some(resource.into()), ..When::default() }, Then::StallWatch))
    }

    /// Cuts all open watches of a resource (`*`: of all).
    pub fn drop_watches(&self, resource: &str) {
        self.cuts.send_modify(|(count, last)| {
            *count += 1;
            resource.clone_into(last);
        });
    }

    /// The `Date` header is off by so many seconds.
    pub fn set_clock_skew(&self, seconds: i64) {
        self.lock().skew_seconds = seconds;
    }

    pub(crate) fn clock_skew(&self) -> i64 {
        self.lock().skew_seconds
    }

    pub(crate) fn cuts(&self) -> watch::Receiver<(u64, String)> {
        self.cuts.subscribe()
    }

    /// The rule that holds for a request, if any; counts it.
    pub(crate) fn meet(&self, request: &Subject<'_>) -> Option<Then> {
        let mut rules = self.lock();
        let position = rules.rules.iter_mut().position(|(_, fault)| {
            let holds = !matches!(fault.then, Then::StallWatch) && fault.when.holds(request);
            if holds && fault.skip > 0 {
                fault.skip -= 1;
                return false;
            }
            holds
        })?;
        let fault = &mut rules.rules[position].1;
        let then = fault.then.clone();
        if let Some(times) = &mut fault.times {
            *times = times.saturating_sub(1);
            if *times == 0 {
                rules.rules.remove(position);
            }
        }
        Some(then)
    }

    /// Whether RBAC would refuse; counts nothing.
    pub(crate) fn denies(&self, request: &Subject<'_>) -> bool {
        self.lock().rules.iter().any(|(_, fault)| fault.then == Then::Deny && fault.when.holds(request))
    }

    pub(crate) fn stalls(&self, request: &Subject<'_>) -> bool {
        self.lock().rules.iter().any(|(_, fault)| fault.then == Then::StallWatch && fault.when.holds(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eviction(name: &str) -> Subject<'_> {
        Subject {
            verb: "create",
            resource: "pods",
            subresource: "eviction",
            namespace: "ml",
            name,
            user: "u",
            user_agent: "spoke/1",
        }
    }

    #[test]
    fn a_rule_holds_for_as_many_requests_as_it_says() {
        let faults = Faults::default();
        let when = When::verb("create", "pods/eviction").named("a");
        faults.add(Fault { when, then: Then::Hang, times: Some(2), skip: 1 });
        let met: Vec<bool> = (0..5).map(|_| faults.meet(&eviction("a")).is_some()).collect();
        assert_eq!(met, [false, true, true, false, false]);
        assert!(faults.meet(&eviction("b")).is_none());
    }

    #[test]
    fn rules_read_from_json_as_they_are_written_in_the_manual() {
        let text = r#"{"when":{"verb":"patch","resource":"nodes","userAgent":"gpuheal"},"then":{"kind":"throttle","retryAfter":3},"times":1}"#;
        let fault: Fault = serde_json::from_str(text).unwrap();
        assert_eq!(fault.then, Then::Throttle { retry_after: Some(3) });
        assert!(serde_json::from_str::<Fault>(r#"{"then":{"kind":"explode"}}"#).is_err());
    }
}
