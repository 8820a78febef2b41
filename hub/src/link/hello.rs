//! Pure: reading the first message of a stream, against the certificate that it came under.

use std::time::Instant;

use gpuheal_proto::{
    bytes_text::clip,
    ids::{ClusterId, CommandId, ParseIdError, ReplicaId, StreamId},
    limits,
    link::v1,
};

use super::skew::Wall;

/// Names of optional messages.
const CAPS_MAX: usize = 64;
/// A version or a capability's name.
const WORD_BYTES_MAX: usize = 64;

/// A Hello that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The cluster of the certificate, which the message repeats.
    pub cluster: ClusterId,
    /// UID of its kube-system namespace.
    pub kube_system_uid: String,
    /// Which replica.
    pub replica: ReplicaId,
    /// New at each start of its process.
    pub boot_id: String,
    /// Its version.
    pub version: String,
    /// Optional messages that it understands.
    pub caps: Vec<String>,
    /// Journals that it holds, oldest first: the last one is written.
    pub journals: Vec<Journal>,
    /// Its process found no journal: what an earlier one of this name held is gone.
    pub journal_new: bool,
    /// The highest numbers that it has seen.
    pub seen: Seen,
    /// Proof of leadership, when it leads.
    pub lease_transitions: Option<u64>,
    /// Its wall clock, if it told it.
    pub wall: Option<Wall>,
}

/// The highest numbers that a replica has seen: what a database with lower ones has lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Epoch of a database, in its cluster's commands.
    pub term: u64,
    /// Epoch of a database that it was welcomed under.
    pub term_heard: u64,
    /// Number of a command.
    pub cmd_seq: u64,
    /// That command, where it has one on record.
    pub cmd_id: Option<CommandId>,
}

/// A journal, and how far it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// Which.
    pub stream: StreamId,
    /// Number of its last record; 0 when it has none.
    pub upto: u64,
}

impl Journal {
    /// From a message.
    ///
    /// # Errors
    /// When its id breaks its rule.
    pub fn read(head: &v1::JournalHead) -> Result<Self, ParseIdError> {
        Ok(Self { stream: StreamId::parse(&head.stream_id)?, upto: head.next_seq.saturating_sub(1) })
    }
}

impl Seen {
    /// From a heartbeat.
    #[must_use]
    pub fn told(beat: &v1::Heartbeat) -> Self {
        Self {
            term: beat.hub_term_seen,
            term_heard: 0,
            cmd_seq: beat.cmd_seq_seen,
            cmd_id: CommandId::parse(&beat.cmd_id_seen).ok(),
        }
    }
}

impl Hello {
    /// Reads it, at the moment `heard`.
    ///
    /// # Errors
    /// When it speaks for another cluster than `cluster`, or breaks a limit.
    pub fn read(hello: v1::Hello, cluster: &ClusterId, heard: Instant) -> Result<Self, Error> {
        if hello.cluster_id != cluster.as_str() {
            return Err(Error::Foreign { certificate: cluster.clone(), claimed: clip(&hello.cluster_id, 64).to_owned() });
        }
        if hello.kube_system_uid.is_empty() || hello.kube_system_uid.len() > WORD_BYTES_MAX {
            return Err(Error::Field { field: "kube_system_uid" });
        }
        if hello.boot_id.is_empty() || hello.boot_id.len() > WORD_BYTES_MAX {
            return Err(Error::Field { field: "boot_id" });
        }
        if hello.caps.len() > CAPS_MAX || hello.caps.iter().any(|cap| cap.len() > WORD_BYTES_MAX) {
            return Err(Error::Field { field: "caps" });
        }
        if hello.journals.len() > limits::JOURNALS_NAMED_MAX {
            return Err(Error::Field { field: "journals" });
        }
        Ok(Self {
            cluster: cluster.clone(),
            kube_system_uid: hello.kube_system_uid,
            replica: ReplicaId::parse(&hello.replica_id)?,
            boot_id: hello.boot_id,
            version: clip(&hello.version, WORD_BYTES_MAX).to_owned(),
            caps: hello.caps,
            journals: hello.journals.iter().map(Journal::read).collect::<Result<_, _>>()?,
            journal_new: hello.journal_new,
            seen: Seen {
                term: hello.hub_term_seen,
                term_heard: hello.hub_term_heard,
                cmd_seq: hello.cmd_seq_seen,
                cmd_id: CommandId::parse(&hello.cmd_id_seen).ok(),
            },
            lease_transitions: hello.lease_transitions,
            wall: Wall::read(hello.wall_unix_ms, heard),
        })
    }
}

/// Why a Hello was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The certificate is another cluster's.
    #[error("the certificate is of cluster {certificate}, the hello says {claimed:?}")]
    Foreign {
        /// Who the certificate says it is.
        certificate: ClusterId,
        /// Who it says it is.
        claimed: String,
    },
    /// A field that is empty or too long.
    #[error("hello has a {field} that is empty or over its limit")]
    Field {
        /// Its name.
        field: &'static str,
    },
    /// An id that breaks its rule.
    #[error(transparent)]
    Id(#[from] ParseIdError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> v1::Hello {
        v1::Hello {
            cluster_id: "alpha".into(),
            kube_system_uid: "uid".into(),
            replica_id: "spoke-0".into(),
            boot_id: "b".into(),
            journals: vec![v1::JournalHead { stream_id: "s".into(), next_seq: 4 }],
            lease_transitions: Some(2),
            ..v1::Hello::default()
        }
    }

    fn alpha() -> ClusterId {
        ClusterId::parse("alpha").unwrap()
    }

    fn read(hello: v1::Hello) -> Result<Hello, Error> {
        Hello::read(hello, &alpha(), Instant::now())
    }

    #[test]
    fn a_certificate_speaks_for_its_own_cluster_only() {
        assert!(read(hello()).is_ok());
        let other = Hello::read(hello(), &ClusterId::parse("beta").unwrap(), Instant::now());
        assert!(matches!(other, Err(Error::Foreign { .. })), "{other:?}");
    }

    #[test]
    fn a_hello_without_what_it_needs_is_refused_with_the_field() {
        let broken = [
            ("kube_system_uid", v1::Hello { kube_system_uid: String::new(), ..hello() }),
            ("boot_id", v1::Hello { boot_id: "x".repeat(65), ..hello() }),
            ("caps", v1::Hello { caps: vec!["c".into(); 65], ..hello() }),
            ("journals", v1::Hello { journals: vec![v1::JournalHead::default(); 9], ..hello() }),
        ];
        for (field, hello) in broken {
            assert_eq!(read(hello), Err(Error::Field { field }));
        }
        assert!(matches!(read(v1::Hello { replica_id: String::new(), ..hello() }), Err(Error::Id(_))));
    }
}
