//! Who leads: the Lease taken and renewed as the spoke's elector does it, by the same three spans.

use std::time::Duration;

use super::{Out, Spoke, Wait};
use crate::{
    api::{Answer, Call, Fault, Lease},
    mutation::Mutation,
};

const DURATION: Duration = Duration::from_secs(15);
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(2);

/// What is known of the Lease.
#[derive(Clone, Debug)]
pub(super) struct Elect {
    seen: Option<Lease>,
    changed: Duration,
    transitions: u64,
    doubt: bool,
    /// When the last renewal that succeeded was begun.
    renewed: Option<Duration>,
    in_flight: bool,
    next: Duration,
}

impl Elect {
    pub(super) const fn new() -> Self {
        Self {
            seen: None,
            changed: Duration::ZERO,
            transitions: 0,
            doubt: false,
            renewed: None,
            in_flight: false,
            next: Duration::ZERO,
        }
    }

    pub(super) fn reign(&self) -> Option<u64> {
        self.renewed.map(|_| self.transitions)
    }

    pub(super) const fn ever_led(&self) -> bool {
        self.renewed.is_some()
    }

    pub(super) fn margin(&self, boot: Duration) -> Option<Duration> {
        self.renewed.map(|renewed| (renewed + DURATION).saturating_sub(boot))
    }

    fn see(&mut self, lease: Lease, boot: Duration) {
        let same = self.seen.as_ref().is_some_and(|old| (&old.holder, old.renewals) == (&lease.holder, lease.renewals));
        if !same {
            self.changed = boot;
        }
        self.transitions = self.transitions.max(lease.transitions);
        self.seen = Some(lease);
        self.doubt = false;
    }

    fn taken(&self, me: &str, boot: Duration) -> bool {
        let other = self.seen.as_ref().is_some_and(|lease| !lease.holder.is_empty() && lease.holder != me);
        other && boot.saturating_sub(self.changed) < DURATION
    }
}

impl Spoke {
    pub(super) fn elect_tick(&mut self) {
        let boot = self.now.boot;
        if let Some(renewed) = self.elect.renewed
            && boot.saturating_sub(renewed) >= RENEW_DEADLINE
        {
            return self.lost();
        }
        if self.elect.in_flight || boot < self.elect.next {
            return;
        }
        self.elect.next = boot + RETRY;
        self.elect.in_flight = true;
        if self.elect.renewed.is_none() || self.elect.doubt || self.elect.seen.is_none() {
            self.call(Wait::LeaseRead, Call::GetLease, None);
        } else {
            self.write_lease();
        }
    }

    fn lost(&mut self) {
        if !self.me.mutations.has(Mutation::AnyLeader) {
            self.out.push(Out::Die);
        }
    }

    pub(super) fn lease_read(&mut self, result: Result<Answer, Fault>) {
        self.elect.in_flight = false;
        let Ok(Answer::Lease(lease)) = result else {
            self.elect.doubt = true;
            return;
        };
        self.elect.see(lease, self.now.boot);
        let me = self.me.replica.as_str();
        if self.elect.taken(me, self.now.boot) {
            if self.elect.renewed.is_some() {
                self.lost();
            }
            return;
        }
        self.elect.in_flight = true;
        self.write_lease();
    }

    fn write_lease(&mut self) {
        let leading = self.elect.renewed.is_some();
        let version = self.elect.seen.as_ref().map_or(0, |lease| lease.version);
        let transitions = self.elect.transitions + u64::from(!leading);
        let lease = Lease { version, holder: self.me.replica.to_string(), transitions, renewals: 0 };
        self.call(Wait::LeasePut { begun: self.now.boot }, Call::PutLease(lease), None);
    }

    pub(super) fn lease_put(&mut self, begun: Duration, result: Result<Answer, Fault>) {
        self.elect.in_flight = false;
        match result {
            Ok(Answer::Lease(lease)) => {
                let before = self.elect.renewed;
                self.elect.see(lease, begun);
                self.elect.renewed = Some(begun);
                if before.is_none() {
                    self.say(format!("leads, transition {}", self.elect.transitions));
                    self.beat();
                    self.resume();
                    self.state_tick();
                }
            }
            Ok(_) | Err(_) => self.elect.doubt = true,
        }
    }
}
