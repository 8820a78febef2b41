//! Where the spoke's parts meet: what link, elector, hand and derive say to each other, and nothing else. No logic.

use std::collections::BTreeMap;

use bytes::Bytes;
use gpuheal_proto::{
    ids::{FaultKey, NodeUid},
    kubernetes::CONFIG_MAP,
    link::v1,
};
use gpuheal_spoke_core::drain::{Unknown, Users};

/// From the link to the hand: what the hub sent, unchecked.
#[derive(Clone, Debug)]
pub enum Down {
    /// The bytes of a DSSE envelope around a command.
    Command(Bytes),
    /// The bytes of a DSSE envelope around a cancellation.
    Cancel(Bytes),
    /// The hub has committed a status: it need not be reported again.
    StatusAck(v1::StatusAck),
    /// The hub asks how these commands stand, since nobody has told it their end.
    Tell(Vec<String>),
}

/// From the elector to everyone: does this replica lead, and by which transition of the Lease?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// Another replica leads, or none.
    Standby,
    /// This one does.
    Leading {
        /// `spec.leaseTransitions` of the Lease as we hold it: the proof of leadership that the hub compares.
        lease_transitions: u64,
    },
}

impl Leadership {
    /// The Lease's transitions when this replica leads.
    #[must_use]
    pub const fn transitions(self) -> Option<u64> {
        match self {
            Self::Standby => None,
            Self::Leading { lease_transitions } => Some(lease_transitions),
        }
    }
}

/// How a fault stands by its own source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its source is fresh and still shows it.
    Present,
    /// Its source is fresh and shows it no more.
    Cleared,
    /// Its source is stale, or nobody here knows the fault.
    Unknown,
}

/// What verify asks of derive before harm is done.
pub trait FaultView: Send + Sync {
    /// How `key` stands now.
    fn standing(&self, key: &FaultKey) -> Standing;
}

/// What a drain that is about one GPU asks of derive.
pub trait GpuUsers: Send + Sync {
    /// Which pods use which GPU of the node, by its exporter.
    ///
    /// # Errors
    /// Why it is not known.
    fn users(&self, node: &NodeUid) -> Result<Users, Unknown>;
}

/// Whom all is told: a reign, a session, and the epoch of the hub's database under which that session was asked for all; 0: it was
/// not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audience {
    /// How often the Lease has changed hands.
    pub reign: u64,
    /// The session's generation.
    pub session: u64,
    /// The epoch.
    pub asked_term: u64,
}

/// From the link to everyone: is the hub there, and what does it ask for? A new `generation` asks the hand to report every status
/// that is not acked yet, a higher `hub_term` or `asked_term` every outcome that is on record; statuses given to a detached link
/// are dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    /// The session's generation, or nothing while no hub answers.
    pub generation: Option<u64>,
    /// The highest term that a hub has told.
    pub hub_term: u64,
    /// The reign whose word on this cluster the hub holds, as Welcome told it last.
    pub reign_known: u64,
    /// The epoch under which the hub has asked for all in this session; 0: it did not.
    pub asked_term: u64,
    /// How often it has asked for the state alone.
    pub snapshots_asked: u64,
}

impl Attachment {
    /// Whom a leader of this reign tells: nobody while no hub listens.
    #[must_use]
    pub fn audience(&self, reign: u64) -> Option<Audience> {
        self.generation.map(|session| Audience { reign, session, asked_term: self.asked_term })
    }
}

/// From the hand to the link, for Hello and heartbeats: the highest numbers seen and the HealActions without a final state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The reign in which all HealActions were listed and the fence was read: only then do the numbers say all that there is.
    pub whole_in: Option<u64>,
    /// Highest hub term in the fence.
    pub hub_term: u64,
    /// Highest cmd_seq in HealActions.
    pub cmd_seq: u64,
    /// The command of that number.
    pub cmd_id: String,
    /// Version of the trust bundle in force.
    pub trust_version: u64,
    /// Ids of HealActions without a final state, at most 4096.
    pub open_commands: Vec<String>,
    /// Whether the cordon is ours, by UID of each node that has a standing undo record. Not for Hello: for the cluster's
    /// state.
    pub cordons: BTreeMap<String, bool>,
    /// To whom all commands that are held were told again, and who acked them. For the cluster's state too.
    pub told_again: Option<Audience>,
}

/// The cluster owner's ConfigMap as it was read; parsed by whoever needs a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalConfig {
    /// Of the ConfigMap; empty when there is none.
    pub resource_version: String,
    /// Text of key `config.yaml`, as it was read last; empty when it never was.
    pub yaml: String,
    /// There is no such text any more. Nothing where there never was a ConfigMap.
    pub lost: Option<Lost>,
}

impl LocalConfig {
    /// Whether there is a ConfigMap, or was.
    #[must_use]
    pub const fn was_there(&self) -> bool {
        !self.resource_version.is_empty() || self.lost.is_some()
    }
}

/// How the text of the owner's ConfigMap was lost: what it limits is never lifted by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The ConfigMap is gone.
    Object,
    /// Its key is.
    Key,
    /// The ConfigMap is gone, and what it said was never read by this process.
    ObjectUnread,
    /// It is there, and has not had the key since this process began.
    KeyUnread,
}

impl Lost {
    /// Whether this process has read a text before.
    #[must_use]
    pub const fn was_read(self) -> bool {
        matches!(self, Self::Object | Self::Key)
    }
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self {
            Self::Object | Self::ObjectUnread => "is gone",
            Self::Key | Self::KeyUnread => "has no key config.yaml",
        };
        let holds = if self.was_read() { "what it said last stays in force" } else { "nothing but releases is done" };
        write!(
            f,
            "ConfigMap {CONFIG_MAP} {what}: {holds}; to lift a ceiling on purpose, let its key config.yaml hold an empty document"
        )
    }
}
