//! Stage `send`: from the journal to numbered batches, within the credit that the hub gives. Keeps for each stream what
//! was sent and what was acked; nothing is sent twice in one session, but where the hub says that a part of it did not come. Knows
//! no socket.

use std::collections::BTreeMap;

use gpuheal_proto::{ids::StreamId, link::v1};
use prost::Message as _;

use crate::journal::{self, Chunk, Journal};

/// What a session has sent and may still send.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Oldest stream first: what waited longest goes first.
    cursors: Vec<Cursor>,
    credit: u32,
}

#[derive(Debug)]
struct Cursor {
    stream: StreamId,
    /// The number after its last; none of the one that is written.
    end_seq: Option<u64>,
    next_seq: u64,
    acked_upto: u64,
    /// Numbers told as lost and not acked yet: they take no credit.
    gaps: Vec<(u64, u64)>,
    /// From which number on the hub has asked again. Each batch that was under way then asks so too.
    resumed: u64,
}

impl Cursor {
    fn in_flight(&self) -> u64 {
        let lost = self.gaps.iter().map(|&(from, to)| (to + 1).saturating_sub(from.max(self.acked_upto + 1))).sum();
        (self.next_seq - 1).saturating_sub(self.acked_upto).saturating_sub(lost)
    }
}

impl Outbox {
    /// Takes up each stream where the hub said; from the first number on where it said nothing. The last one is written.
    #[must_use]
    pub fn resume(streams: &[(StreamId, u64)], points: &[v1::ResumePoint], credit: u32) -> Self {
        let from: BTreeMap<&str, u64> = points.iter().map(|point| (point.stream_id.as_str(), point.from_seq)).collect();
        let cursor = |(at, (stream, end_seq)): (usize, &(StreamId, u64))| {
            let next_seq = from.get(stream.as_str()).copied().unwrap_or(1).max(1);
            let end_seq = (at + 1 < streams.len()).then_some(*end_seq);
            Cursor { stream: stream.clone(), end_seq, next_seq, acked_upto: next_seq - 1, gaps: Vec::new(), resumed: 0 }
        };
        Self { cursors: streams.iter().enumerate().map(cursor).collect(), credit }
    }

    /// Faults sent and not acked.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.cursors.iter().map(Cursor::in_flight).sum()
    }

    /// Sets how many may be in flight.
    pub const fn set_credit(&mut self, credit: u32) {
        self.credit = credit;
    }

    /// Takes an ack. True when it moved something.
    pub fn acked(&mut self, ack: &v1::FaultAck) -> bool {
        self.credit = ack.credit;
        let Some(cursor) = self.cursors.iter_mut().find(|cursor| cursor.stream.as_str() == ack.stream_id) else { return false };
        let moved = ack.persisted_upto > cursor.acked_upto;
        cursor.acked_upto = cursor.acked_upto.max(ack.persisted_upto);
        cursor.next_seq = cursor.next_seq.max(cursor.acked_upto + 1);
        let acked_upto = cursor.acked_upto;
        cursor.gaps.retain(|&(_, to)| to > acked_upto);
        if ack.resume && cursor.resumed <= acked_upto {
            cursor.resumed = acked_upto + 1;
            cursor.next_seq = cursor.resumed;
            cursor.gaps.clear();
        }
        moved
    }

    /// What to read next: a stream, the number, and how many at most. Nothing without credit.
    #[must_use]
    pub fn wanted(&self) -> Vec<(StreamId, u64, u64)> {
        let room = u64::from(self.credit).saturating_sub(self.in_flight());
        if room == 0 {
            return Vec::new();
        }
        // One that was sent to its end need not be asked: a spoke that died again and again holds many.
        let open = self.cursors.iter().filter(|cursor| cursor.end_seq.is_none_or(|end| cursor.next_seq < end));
        open.map(|cursor| (cursor.stream.clone(), cursor.next_seq, room)).collect()
    }

    /// Turns what was read for [`Self::wanted`] into the message and counts it as sent.
    pub fn taken(&mut self, stream: &StreamId, chunk: Chunk, room: u64) -> Option<v1::attach_request::Message> {
        use v1::attach_request::Message;
        let cursor = self.cursors.iter_mut().find(|cursor| cursor.stream == *stream)?;
        let stream_id = stream.to_string();
        match chunk {
            Chunk::End => None,
            // An ack has moved the cursor while the disk was read, on or back: what was read is old.
            Chunk::Faults { first_seq: read_from, .. } | Chunk::Gap { from_seq: read_from, .. } if read_from != cursor.next_seq => {
                None
            }
            Chunk::Gap { from_seq, to_seq, counts_by_class } => {
                cursor.next_seq = to_seq + 1;
                cursor.gaps.push((from_seq, to_seq));
                let reason = if counts_by_class.is_empty() {
                    "lost by the journal: damaged, or trimmed before"
                } else {
                    "given up by the journal: it was full"
                };
                Some(Message::Gap(v1::Gap { stream_id, from_seq, to_seq, reason: reason.to_owned(), counts_by_class }))
            }
            Chunk::Faults { first_seq, mut faults } => {
                dies_at!("send.before");
                faults.truncate(usize::try_from(room).unwrap_or(usize::MAX));
                cursor.next_seq += faults.len() as u64;
                // The CRC has vouched for these bytes; one that does not decode keeps its number and is poison at the hub.
                let faults = faults.into_iter().map(|fault| v1::Fault::decode(fault).unwrap_or_default()).collect();
                Some(Message::FaultBatch(v1::FaultBatch { stream_id, first_seq, faults }))
            }
        }
    }
}

/// The next batch or gap that may be sent, if any. The lock is not held while the disk is read.
///
/// # Errors
/// When the journal fails.
pub async fn next(
    outbox: &std::sync::Mutex<Outbox>,
    journal: &Journal,
) -> Result<Option<v1::attach_request::Message>, journal::Error> {
    let wanted = outbox.lock().expect("no holder of this lock panics").wanted();
    for (stream, seq, room) in wanted {
        let chunk = match journal.read(&stream, seq).await {
            // Acked, and trimmed since.
            Err(journal::Error::NoSuchStream) => continue,
            other => other?,
        };
        let message = outbox.lock().expect("no holder of this lock panics").taken(&stream, chunk, room);
        if message.is_some() {
            return Ok(message);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use v1::attach_request::Message;

    use super::*;

    fn stream(name: &str) -> StreamId {
        StreamId::parse(name).unwrap()
    }

    fn faults(first_seq: u64, count: usize) -> Chunk {
        Chunk::Faults { first_seq, faults: vec![Bytes::new(); count] }
    }

    fn ack(name: &str, upto: u64, credit: u32) -> v1::FaultAck {
        v1::FaultAck { stream_id: name.into(), persisted_upto: upto, credit, resume: false }
    }

    fn at(name: &str, from_seq: u64) -> v1::ResumePoint {
        v1::ResumePoint { stream_id: name.into(), from_seq }
    }

    #[test]
    fn each_stream_goes_on_where_the_hub_said() {
        let outbox = Outbox::resume(&[(stream("a"), 9), (stream("b"), 1)], &[at("a", 7)], 10);
        assert_eq!(outbox.wanted(), [(stream("a"), 7, 10), (stream("b"), 1, 10)]);
    }

    #[test]
    fn a_stream_that_was_sent_to_its_end_is_not_read_again() {
        let mut outbox = Outbox::resume(&[(stream("a"), 3), (stream("b"), 1)], &[], 10);
        assert!(outbox.taken(&stream("a"), faults(1, 2), 10).is_some());
        assert_eq!(outbox.wanted(), [(stream("b"), 1, 8)], "the one that is written has no end");
        outbox.acked(&v1::FaultAck { resume: true, ..ack("a", 0, 10) });
        assert_eq!(outbox.wanted()[0], (stream("a"), 1, 10), "unless the hub asks for it");
    }

    #[test]
    fn no_more_is_in_flight_than_the_credit_and_an_ack_frees_it() {
        let mut outbox = Outbox::resume(&[(stream("a"), 9)], &[], 4);
        let sent = outbox.taken(&stream("a"), faults(1, 8), 4);
        assert!(matches!(&sent, Some(Message::FaultBatch(batch)) if batch.faults.len() == 4 && batch.first_seq == 1), "{sent:?}");
        assert_eq!(outbox.wanted(), []);
        assert!(outbox.acked(&ack("a", 3, 4)));
        assert_eq!(outbox.wanted(), [(stream("a"), 5, 3)]);
        assert!(!outbox.acked(&ack("a", 2, 4)), "an older ack moves nothing");
        assert!(!outbox.acked(&ack("a", 3, 0)));
        assert_eq!(outbox.wanted(), [], "credit 0 stops");
    }

    #[test]
    fn what_is_lost_is_told_as_a_gap_and_passed() {
        let mut outbox = Outbox::resume(&[(stream("a"), 9)], &[], 4);
        let counts_by_class = BTreeMap::from([("xid".to_owned(), 3)]);
        let lost = Chunk::Gap { from_seq: 1, to_seq: 5, counts_by_class: counts_by_class.clone() };
        let sent = outbox.taken(&stream("a"), lost, 4);
        let Some(Message::Gap(gap)) = &sent else { panic!("{sent:?}") };
        assert_eq!((gap.from_seq, gap.to_seq, &gap.counts_by_class), (1, 5, &counts_by_class));
        assert!(gap.reason.contains("full"), "{}", gap.reason);
        assert_eq!(outbox.wanted()[0].1, 6);
    }

    #[test]
    fn what_the_hub_has_not_got_is_sent_again_once_for_each_place() {
        let mut outbox = Outbox::resume(&[(stream("a"), 20)], &[], 100);
        for first in [1, 5, 9, 13] {
            assert!(outbox.taken(&stream("a"), faults(first, 4), 100).is_some());
        }
        // The second of four was set aside on its way: the third and fourth do not go on from the first.
        let hole = v1::FaultAck { resume: true, ..ack("a", 4, 100) };
        assert!(outbox.acked(&ack("a", 4, 100)));
        outbox.acked(&hole);
        assert_eq!((outbox.wanted()[0].1, outbox.in_flight()), (5, 0));
        assert!(outbox.taken(&stream("a"), faults(5, 4), 100).is_some());
        outbox.acked(&hole);
        assert_eq!(outbox.wanted()[0].1, 9, "the fourth says the same of the same place");
        outbox.acked(&v1::FaultAck { resume: true, ..ack("a", 8, 100) });
        assert_eq!(outbox.wanted()[0].1, 9);
        assert!(outbox.taken(&stream("a"), faults(9, 8), 100).is_some());
        outbox.acked(&v1::FaultAck { resume: true, ..ack("a", 12, 100) });
        assert_eq!(outbox.wanted()[0].1, 13, "another place");
    }

    #[test]
    fn a_loss_that_was_read_before_the_hub_asked_again_waits_for_what_comes_before_it() {
        let mut outbox = Outbox::resume(&[(stream("a"), 20)], &[], 100);
        for first in [1, 5, 9] {
            assert!(outbox.taken(&stream("a"), faults(first, 4), 100).is_some());
        }
        outbox.acked(&v1::FaultAck { resume: true, ..ack("a", 4, 100) });
        let lost = || Chunk::Gap { from_seq: 13, to_seq: 16, counts_by_class: BTreeMap::new() };
        assert!(outbox.taken(&stream("a"), lost(), 100).is_none(), "5 to 12 would not be sent in this session");
        assert_eq!(outbox.wanted()[0].1, 5);
        assert!(outbox.taken(&stream("a"), faults(5, 8), 100).is_some());
        assert!(matches!(outbox.taken(&stream("a"), lost(), 100), Some(Message::Gap(gap)) if gap.from_seq == 13));
    }

    #[test]
    fn a_batch_read_before_an_ack_passed_it_is_not_sent() {
        let mut outbox = Outbox::resume(&[(stream("a"), 9)], &[], 4);
        outbox.acked(&ack("a", 6, 4));
        assert_eq!(outbox.taken(&stream("a"), faults(1, 4), 4), None);
        assert_eq!(outbox.wanted()[0].1, 7);
    }
}
