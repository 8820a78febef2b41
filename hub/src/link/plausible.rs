//! Pure: how far a spoke's word moves the numbers that the hub counts on with. What it has seen of a database that was lost is
//! taken over, but one spoke's word must not bring the whole fleet's epoch, or a column of 64 bits, to its end: what no hub
//! can have given out is refused.

use gpuheal_proto::limits::{COMMANDS_AHEAD_MAX, SEQ_MAX};

use super::hello::{Hello, Seen};

/// How far a database that is restored may be behind its own epoch, which rises once at each failover or restore: one an
/// hour for 119 years. Spokes that lie need 2^43 attaches to bring it to its end, at 400 a second 690 years.
const TERMS_AHEAD_MAX: u64 = 1 << 20;

/// What in a Hello no hub can have given out, against the epoch and the number of the cluster's last command here.
#[must_use]
pub fn beyond(hello: &Hello, hub_term: u64, cmd_seq: u64) -> Option<String> {
    if let Some(journal) = hello.journals.iter().find(|journal| journal.upto > SEQ_MAX) {
        return Some(format!("its journal {} holds a record {}, no journal has so many", journal.stream, journal.upto));
    }
    unseen(hello.seen, hub_term, cmd_seq)
}

/// What of the numbers that a replica says it has seen no hub can have given out.
#[must_use]
pub fn unseen(says: Seen, hub_term: u64, cmd_seq: u64) -> Option<String> {
    let term = says.term.max(says.term_heard);
    if term > hub_term.saturating_add(TERMS_AHEAD_MAX) {
        return Some(format!("it has seen term {term}, this database has {hub_term}"));
    }
    let commands = cmd_seq.saturating_add(COMMANDS_AHEAD_MAX).min(SEQ_MAX);
    (says.cmd_seq > commands).then(|| format!("it has seen command {}, this database has {cmd_seq}", says.cmd_seq))
}

#[cfg(test)]
mod tests {
    use gpuheal_proto::ids::{ClusterId, ReplicaId, StreamId};

    use super::{super::hello::Journal, *};

    fn seen(hub_term_seen: u64, cmd_seq_seen: u64) -> Hello {
        Hello {
            cluster: ClusterId::parse("c1").unwrap(),
            kube_system_uid: "uid".into(),
            replica: ReplicaId::parse("r0").unwrap(),
            boot_id: "b".into(),
            version: String::new(),
            caps: Vec::new(),
            journals: Vec::new(),
            journal_new: false,
            seen: Seen { term: hub_term_seen, cmd_seq: cmd_seq_seen, ..Seen::default() },
            lease_transitions: None,
            wall: None,
        }
    }

    #[test]
    fn a_fleet_whose_database_was_lost_whole_is_believed_and_what_no_hub_gave_out_is_not() {
        for (term, command, believed) in [
            (1, 0, true),
            (40, 3_000_000, true),
            (1 + TERMS_AHEAD_MAX, COMMANDS_AHEAD_MAX, true),
            (2 + TERMS_AHEAD_MAX, 0, false),
            (1, COMMANDS_AHEAD_MAX + 1, false),
            (u64::MAX, 0, false),
            (1, u64::MAX, false),
        ] {
            assert_eq!(beyond(&seen(term, command), 1, 0).is_none(), believed, "term {term}, command {command}");
        }
        let journal = Journal { stream: StreamId::parse("s").unwrap(), upto: SEQ_MAX };
        assert!(beyond(&Hello { journals: vec![journal.clone()], ..seen(1, 0) }, 1, 0).is_none());
        let journal = Journal { upto: SEQ_MAX + 1, ..journal };
        assert!(beyond(&Hello { journals: vec![journal], ..seen(1, 0) }, 1, 0).is_some());
        let heard = Hello { seen: Seen { term_heard: u64::MAX, ..Seen::default() }, ..seen(1, 0) };
        assert!(beyond(&heard, 1, 0).is_some(), "a Welcome is no better proof");
        assert!(beyond(&seen(1, SEQ_MAX + 1), 1, u64::MAX).is_some(), "whatever the counter says");
    }
}
