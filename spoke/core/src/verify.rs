//! From bytes to a command that may be executed: the only way there. Each check is one function, in the order of its
//! cost, and a type for each stage passed, so that nothing unchecked can be handed to the executor:
//! [`Unverified`] (size, signature, type, one parse, audience) → [`Authentic`] (known action, key epoch and hub term,
//! time) → [`Timely`] (plan revision, Lease margin, live preconditions, ceiling) → [`Verified`].
//!
//! Pure: no clock, no cluster, no keys of its own. What is refused says so with its numbers.

mod live;
pub mod marker;
mod signature;
pub mod trust;

#[cfg(test)]
pub(crate) mod testing;

use std::time::Duration;

use gpuheal_proto::{
    bytes_text::clip,
    command::{Command, Refusal},
    envelope,
    ids::{ClusterId, CommandId},
    limits,
    link::v1,
    time::Timestamp,
};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

pub use self::{
    live::{Live, Standing, check_faults, unmarked},
    trust::Trust,
};
use crate::ceiling::show;

/// How much of the Lease must be left before a step: twice the executor's longest API call, so that a call which began
/// inside the Lease also ends inside it.
pub const STEP_MARGIN: Duration = Duration::from_secs(4);

/// A command's envelope at a stage of its checking.
#[derive(Clone, Debug)]
pub struct Envelope<Stage = Unverified> {
    stage: Stage,
}

/// Bytes as they came.
#[derive(Clone, Debug)]
pub struct Unverified {
    bytes: Vec<u8>,
}

/// Signed by a trusted key, a command, and for this cluster.
#[derive(Clone, Debug)]
pub struct Authentic {
    bytes: Vec<u8>,
    command: Command,
}

/// Not seen before or ours to go on with, under current keys and database, and in time.
#[derive(Clone, Debug)]
pub struct Timely {
    bytes: Vec<u8>,
    command: Command,
    resumed: bool,
}

/// May be executed now.
#[derive(Clone, Debug)]
pub struct Verified {
    bytes: Vec<u8>,
    command: Command,
    notes: Vec<String>,
}

/// A refusal and its reason, with numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// The code.
    pub refusal: Refusal,
    /// For people.
    pub reason: String,
    /// The command where its signature holds and yet no stage was reached that carries it: a tombstone can then be set up
    /// for it, with what it says of itself.
    pub command: Option<Box<Command>>,
}

impl Refused {
    /// A refusal for this reason.
    #[must_use]
    pub fn new(refusal: Refusal, reason: impl Into<String>) -> Self {
        let reason: String = reason.into();
        Self { refusal, reason: clip(&reason, limits::REASON_BYTES_MAX).to_owned(), command: None }
    }
}

/// What is known in the cluster of a command's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// No HealAction has this name.
    No,
    /// One is open, and this replica is to go on with it.
    Open {
        /// An effect may have happened: `finish_by` counts from here on, not `start_by`.
        begun: bool,
    },
    /// One is final: its state is the answer.
    Final,
}

/// The highest numbers seen: what the fence object holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Fence {
    /// Epoch of the signing keys.
    pub key_epoch: u64,
    /// Epoch of the hub's database.
    pub hub_term: u64,
    /// Version of the trust bundle.
    pub trust_version: u64,
}

impl Fence {
    /// The fence after this command, if it rises.
    #[must_use]
    pub fn raised_by(self, command: &Command, trust_version: u64) -> Option<Self> {
        let asks = Self { key_epoch: command.key_epoch, hub_term: command.hub_term, trust_version };
        let next = self.and(asks);
        (next != self).then_some(next)
    }

    /// The higher of both, number by number.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            key_epoch: self.key_epoch.max(other.key_epoch),
            hub_term: self.hub_term.max(other.hub_term),
            trust_version: self.trust_version.max(other.trust_version),
        }
    }
}

/// The hub's time and how wrong it may be either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubNow {
    /// The database's time, as far as known here.
    pub at: Timestamp,
    /// Its uncertainty.
    pub uncertainty: Duration,
}

/// What this replica knows without asking the cluster about the node.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The HealAction of this id.
    pub known: Known,
    /// The fence.
    pub fence: Fence,
    /// Nothing before the first Welcome.
    pub now: Option<HubNow>,
}

/// The name of bytes that cannot be believed: SHA-256 of the envelope, in hex.
#[must_use]
pub fn fingerprint(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

impl Envelope<Unverified> {
    /// Takes bytes as they came.
    #[must_use]
    pub fn received(bytes: impl Into<Vec<u8>>) -> Self {
        Self { stage: Unverified { bytes: bytes.into() } }
    }

    /// Size, signature, type, one parse, audience.
    ///
    /// # Errors
    /// The refusal. What fails before the audience has no id that can be believed.
    pub fn authenticate(self, trust: &Trust, cluster: &ClusterId) -> Result<Envelope<Authentic>, Refused> {
        let bytes = self.stage.bytes;
        let payload = signature::check(&bytes, trust, envelope::COMMAND_TYPE)?;
        let body = v1::CommandBody::decode(payload).map_err(|error| Refused::new(Refusal::Malformed, error.to_string()))?;
        let command = Command::try_from(body).map_err(|error| Refused::new(malformed(&error), error.to_string()))?;
        if let Err(refused) = check_audience(&command.audience, cluster) {
            return Err(Refused { command: Some(Box::new(command)), ..refused });
        }
        Ok(Envelope { stage: Authentic { bytes, command } })
    }
}

/// A step that nobody here knows is a command of a newer hub, not a broken one.
const fn malformed(error: &gpuheal_proto::command::Error) -> Refusal {
    match error {
        gpuheal_proto::command::Error::UnknownStep { .. } | gpuheal_proto::command::Error::Unknown { .. } => Refusal::Unsupported,
        _ => Refusal::Malformed,
    }
}

fn check_audience(audience: &ClusterId, cluster: &ClusterId) -> Result<(), Refused> {
    if audience == cluster {
        Ok(())
    } else {
        Err(Refused::new(Refusal::WrongAudience, format!("for cluster {audience}, this is {cluster}")))
    }
}

impl Envelope<Authentic> {
    /// The command; not to be executed yet.
    #[must_use]
    pub const fn command(&self) -> &Command {
        &self.stage.command
    }

    /// The envelope's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.stage.bytes
    }

    /// Known action, key epoch and hub term, time.
    ///
    /// # Errors
    /// The refusal.
    pub fn timely(self, held: &Held) -> Result<Envelope<Timely>, Refused> {
        let Authentic { bytes, command } = self.stage;
        if held.known == Known::Final {
            return Err(Refused::new(Refusal::Replayed, "its HealAction is final: that state is the answer"));
        }
        check_fence(&command, held.fence)?;
        let resumed = matches!(held.known, Known::Open { .. });
        let begun = held.known == Known::Open { begun: true };
        check_time(&command, held.now, if begun { command.times.finish_by } else { command.times.start_by })?;
        Ok(Envelope { stage: Timely { bytes, command, resumed } })
    }
}

fn check_fence(command: &Command, fence: Fence) -> Result<(), Refused> {
    if command.key_epoch < fence.key_epoch {
        let reason = format!("key epoch {}, {} was seen", command.key_epoch, fence.key_epoch);
        return Err(Refused::new(Refusal::StaleKeyEpoch, reason));
    }
    if command.hub_term < fence.hub_term {
        return Err(Refused::new(Refusal::StaleHubTerm, format!("hub term {}, {} was seen", command.hub_term, fence.hub_term)));
    }
    Ok(())
}

/// Whether `by` is surely still to come, by the hub's clock. Also asked before each later step, with `finish_by`.
///
/// # Errors
/// Expired when it may have passed; not now when the clock is too uncertain to tell.
pub fn check_time(command: &Command, now: Option<HubNow>, by: Timestamp) -> Result<(), Refused> {
    let Some(now) = now else {
        return Err(Refused::new(Refusal::ClockUncertain, "the hub's time is not known yet"));
    };
    if now.uncertainty > limits::CLOCK_UNCERTAINTY_MAX {
        let reason = format!(
            "the hub's time is known to ±{} only, {} are allowed",
            show(now.uncertainty),
            show(limits::CLOCK_UNCERTAINTY_MAX)
        );
        return Err(Refused::new(Refusal::ClockUncertain, reason));
    }
    let latest = now.at.after(now.uncertainty);
    if latest > by {
        let reason = format!(
            "command of {} had to happen by {by}, it may be {latest} ({} late)",
            command.times.created,
            show(latest.since(by))
        );
        return Err(Refused::new(Refusal::Expired, reason));
    }
    Ok(())
}

impl Envelope<Timely> {
    /// The command; not to be executed yet.
    #[must_use]
    pub const fn command(&self) -> &Command {
        &self.stage.command
    }

    /// Plan revision, Lease margin, live preconditions, ceiling.
    ///
    /// # Errors
    /// The refusal.
    pub fn admit(self, live: &Live<'_>) -> Result<Envelope<Verified>, Refused> {
        let Timely { bytes, command, resumed } = self.stage;
        live::check_plan_revision(&command, live, resumed)?;
        live::check_margin(live)?;
        let notes = live::check_preconditions(&command, live, resumed)?;
        live::check_ceiling(&command, live)?;
        Ok(Envelope { stage: Verified { bytes, command, notes } })
    }
}

impl Envelope<Verified> {
    /// The command.
    #[must_use]
    pub const fn command(&self) -> &Command {
        &self.stage.command
    }

    /// The envelope's bytes, for the intent.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.stage.bytes
    }

    /// What was odd and did not block: to be logged.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.stage.notes
    }
}

/// A cancellation whose signature, type and audience hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Cancel {
    /// What it calls off.
    pub command: CommandId,
    /// Epoch of the hub's database.
    pub hub_term: u64,
    /// Why.
    pub reason: String,
}

/// Checks a cancellation.
///
/// # Errors
/// The refusal.
pub fn cancel(bytes: &[u8], trust: &Trust, cluster: &ClusterId, fence: Fence) -> Result<Cancel, Refused> {
    let payload = signature::check(bytes, trust, envelope::CANCEL_TYPE)?;
    let bad = |error: String| Refused::new(Refusal::Malformed, error);
    let body = v1::CancelBody::decode(payload).map_err(|error| bad(error.to_string()))?;
    let audience = ClusterId::parse(&body.audience).map_err(|error| bad(error.to_string()))?;
    check_audience(&audience, cluster)?;
    if body.hub_term < fence.hub_term {
        return Err(Refused::new(Refusal::StaleHubTerm, format!("hub term {}, {} was seen", body.hub_term, fence.hub_term)));
    }
    let command = CommandId::parse(&body.command_id).map_err(|error| bad(error.to_string()))?;
    Ok(Cancel { command, hub_term: body.hub_term, reason: clip(&body.reason, limits::REASON_BYTES_MAX).to_owned() })
}

#[cfg(test)]
mod tests;
