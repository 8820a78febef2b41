//! The seam between the hub's stages and what keeps their work: one transaction per operation, each all or nothing.
//! [`crate::memory::Memory`] is the simulated one; the tests hold it and the hub's own functions on Postgres to one
//! contract suite, so that neither can drift from the other. Never decides anything: that is hub/core's.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use gpuheal_hub::{
    ingest::{Origin, Taken},
    link::hello::{Hello, Seen},
    sign::Signer,
    store::{
        server::{Recognised, Witness},
        session::Attached,
    },
};
use gpuheal_proto::{
    ids::{ClusterId, CommandId, ReplicaId},
    link::v1,
    time::Timestamp,
};

/// A session as its owner knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its replica.
    pub replica: ReplicaId,
    /// Raised at each attach: a lower one is out.
    pub generation: u64,
}

impl From<&Owner> for Origin {
    fn from(owner: &Owner) -> Self {
        Self { cluster: owner.cluster.clone(), session: Some((owner.replica.clone(), owner.generation)) }
    }
}

/// A session that proves leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The session.
    pub owner: Owner,
    /// The proof.
    pub lease_transitions: u64,
}

/// An envelope that is to go onto the leader's stream now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Whose.
    pub cluster: ClusterId,
    /// Of which command.
    pub command: CommandId,
    /// It calls the command off.
    pub cancels: bool,
    /// The signed bytes.
    pub envelope: Bytes,
    /// When it was found to be due.
    pub at: Timestamp,
}

/// Why nothing was done. Whatever it says, nothing of the operation is kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another session owns the replica's stream.
    #[error("session {generation} of replica {replica} was taken over")]
    TakenOver {
        /// The replica.
        replica: ReplicaId,
        /// The generation that is out.
        generation: u64,
    },
    /// Another cluster is attached under this id.
    #[error("the kube-system UID is another cluster's")]
    Foreign,
    /// It makes no sense, or breaks a rule of the store.
    #[error("{0}")]
    Refused(String),
}

/// What the stages do with their store.
pub trait Store {
    /// The store's clock: the only one that deadlines are judged by.
    fn now(&mut self) -> Timestamp;
    /// Lets time go by.
    fn elapse(&mut self, span: Duration);
    /// Puts a policy in force.
    ///
    /// # Errors
    /// When it is none.
    fn policy(&mut self, yaml: &str) -> Result<u64, Error>;
    /// Stops the fleet for a reason, or lets it go on.
    ///
    /// # Errors
    /// When it cannot be written.
    fn stop(&mut self, reason: Option<&str>) -> Result<(), Error>;
    /// Attaches a replica under the next generation.
    ///
    /// # Errors
    /// When it is another cluster's.
    fn attach(&mut self, hello: &Hello, hub: &str) -> Result<Attached, Error>;
    /// Notes that a session leads, having seen so much, or that it no longer does. True: that raised the epoch.
    ///
    /// # Errors
    /// When it was taken over, or says what no hub can have given out.
    fn lead(&mut self, owner: &Owner, lease_transitions: Option<u64>, says: Seen) -> Result<bool, Error>;
    /// Looks which run of its server the database is in.
    ///
    /// # Errors
    /// When it cannot be read.
    fn recognise(&mut self, hub: &str, seen: &mut Option<Witness>) -> Result<Recognised, Error>;
    /// Notes that a session ended.
    fn detach(&mut self, owner: &Owner);
    /// Notes that a session lives, and returns when; none: it was taken over, or less is known of it than was noted before.
    fn owned(&mut self, owner: &Owner, noted: Option<Timestamp>) -> Option<Timestamp>;
    /// Takes a batch of faults.
    ///
    /// # Errors
    /// When the session was taken over.
    fn faults(&mut self, from: &Owner, batch: v1::FaultBatch) -> Result<v1::FaultAck, Error>;
    /// Takes that records are lost.
    ///
    /// # Errors
    /// When the session was taken over.
    fn gap(&mut self, from: &Owner, gap: v1::Gap) -> Result<v1::FaultAck, Error>;
    /// Takes what a cluster's leader says of its nodes.
    ///
    /// # Errors
    /// When it is no state, or the session was taken over.
    fn state(&mut self, from: &Origin, state: v1::ClusterState) -> Result<Taken, Error>;
    /// Takes how known faults stand.
    ///
    /// # Errors
    /// When it cannot be written, or the session was taken over.
    fn evidence(&mut self, from: &Origin, batch: v1::EvidenceBatch) -> Result<(), Error>;
    /// Judges what is due of one cluster; returns how many nodes.
    ///
    /// # Errors
    /// When a decision cannot be stored.
    fn judge(&mut self) -> Result<usize, Error>;
    /// Signs what waits for it; returns how many envelopes.
    ///
    /// # Errors
    /// When it cannot be written.
    fn sign(&mut self, signer: &Arc<Signer>) -> Result<usize, Error>;
    /// What is to be sent to these sessions now, in the order of the commands' numbers.
    ///
    /// # Errors
    /// When it cannot be read.
    fn due(&mut self, leaders: &[Leader]) -> Result<Vec<Due>, Error>;
    /// Notes what was put on streams.
    ///
    /// # Errors
    /// When it cannot be written.
    fn sent(&mut self, sent: &[Due]) -> Result<(), Error>;
    /// Commands of these sessions' clusters whose end nobody has told, each noted as asked for.
    ///
    /// # Errors
    /// When it cannot be written.
    fn unheard(&mut self, leaders: &[Leader]) -> Result<Vec<(ClusterId, CommandId)>, Error>;
    /// Faults of these sessions' clusters that stand and of which the leader has told nothing, each noted as asked for.
    ///
    /// # Errors
    /// When it cannot be written.
    fn untold(&mut self, leaders: &[Leader]) -> Result<Vec<v1::FaultAsked>, Error>;
    /// Takes one status. With a signer a command that is not known is taken over, if that one signed it and the status shows it.
    ///
    /// # Errors
    /// When it cannot be written, or the session was taken over.
    fn settle(&mut self, from: &Origin, status: v1::CommandStatus, signer: Option<&Signer>)
    -> Result<Option<v1::StatusAck>, Error>;
    /// Ends commands that ran out of time; returns how many.
    ///
    /// # Errors
    /// When it cannot be written.
    fn sweep(&mut self) -> Result<u64, Error>;
    /// What it holds, in words that two stores can be compared by.
    fn picture(&mut self) -> Picture;
}

/// What a store holds, without what is its own: ids, hashes and moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// Cluster, class, code, node, episode, evidence, settled.
    pub faults: Vec<String>,
    /// Cluster, node, state, level, faults it holds, whether it is closed.
    pub incidents: Vec<String>,
    /// Cluster, number, node, action, state, plan revision, term, whether signed, status number, refusal, corrections.
    pub commands: Vec<String>,
    /// Cluster and node of each place taken, then the counters.
    pub out: Vec<String>,
    /// Cluster, node and state of each cooldown.
    pub cooldowns: Vec<String>,
    /// Cluster, stream and how far it is committed.
    pub streams: Vec<String>,
    /// Cluster, replica, generation, leadership, attached or not.
    pub sessions: Vec<String>,
    /// Cluster, node, marks, plan revisions, gone or not.
    pub nodes: Vec<String>,
    /// Chain, number, kind of each entry of the audit.
    pub audit: Vec<String>,
    /// Epoch of the database.
    pub hub_term: u64,
}
