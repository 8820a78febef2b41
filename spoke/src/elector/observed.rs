//! What we have seen of the Lease, and when by our own clock. Pure.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;

/// The Lease as last seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    lease: Option<Lease>,
    /// Boot time at which its record last changed for us.
    changed: Duration,
    /// Highest transitions seen: kept when the Lease itself is deleted.
    transitions: u64,
    /// A write failed, so that what is there must be looked at before the next.
    stale: bool,
}

impl Observed {
    /// Takes a reading. Only a change of the record moves the clock: a Lease that nobody renews grows old here, whatever
    /// times are written in it.
    pub(super) fn see(&mut self, lease: Lease, now: Duration) {
        let same = self.lease.as_ref().is_some_and(|old| old.spec == lease.spec);
        if !same {
            self.changed = now;
        }
        self.lease = Some(lease);
        self.stale = false;
        self.transitions = self.transitions.max(self.written_transitions());
    }

    /// Something failed: look before writing again.
    pub(super) const fn doubt(&mut self) {
        self.stale = true;
    }

    pub(super) const fn must_look(&self) -> bool {
        self.stale || self.lease.is_none()
    }

    pub(super) const fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// There is none.
    pub(super) fn gone(&mut self) {
        self.lease = None;
        self.stale = false;
    }

    pub(super) fn holder(&self) -> &str {
        self.lease.as_ref().and_then(|lease| lease.spec.as_ref()?.holder_identity.as_deref()).unwrap_or_default()
    }

    /// Highest number of transitions seen.
    pub(super) const fn transitions(&self) -> u64 {
        self.transitions
    }

    /// Reigns up to this one are known from elsewhere.
    pub(super) fn raise(&mut self, known: u64) {
        self.transitions = self.transitions.max(known);
    }

    /// Somebody else's name is in it.
    pub(super) fn held_by_other(&self, identity: &str) -> bool {
        !self.holder().is_empty() && self.holder() != identity
    }

    /// What stands in the Lease.
    pub(super) fn written_transitions(&self) -> u64 {
        let transitions = self.lease.as_ref().and_then(|lease| lease.spec.as_ref()?.lease_transitions);
        transitions.and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
    }

    /// Somebody else holds it and has renewed within `duration` of our own time.
    pub(super) fn taken(&self, identity: &str, duration: Duration, now: Duration) -> bool {
        self.held_by_other(identity) && now.saturating_sub(self.changed) < duration
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;

    use super::*;

    fn lease(holder: &str, transitions: i32) -> Lease {
        let spec = LeaseSpec { holder_identity: Some(holder.into()), lease_transitions: Some(transitions), ..LeaseSpec::default() };
        Lease { spec: Some(spec), ..Lease::default() }
    }

    const DURATION: Duration = Duration::from_secs(15);

    #[test]
    fn anothers_lease_is_taken_until_it_has_not_changed_for_its_duration_by_our_clock() {
        let mut observed = Observed::default();
        observed.see(lease("b", 1), Duration::from_secs(100));
        observed.see(lease("b", 1), Duration::from_secs(114));
        assert!(observed.taken("a", DURATION, Duration::from_secs(114)));
        assert!(!observed.taken("a", DURATION, Duration::from_secs(115)), "nobody renewed it");
        observed.see(lease("b", 2), Duration::from_secs(115));
        assert!(observed.taken("a", DURATION, Duration::from_secs(129)), "it changed");
    }

    #[test]
    fn an_empty_holder_and_our_own_are_free() {
        let mut observed = Observed::default();
        assert!(!observed.taken("a", DURATION, Duration::ZERO));
        observed.see(lease("", 3), Duration::ZERO);
        assert!(!observed.taken("a", DURATION, Duration::ZERO));
        observed.see(lease("a", 3), Duration::ZERO);
        assert!(!observed.taken("a", DURATION, Duration::ZERO));
        assert_eq!(observed.transitions(), 3);
    }
}
