//! A closed segment written anew without what is given up: each number is a fault, as before, or in a gap that says of
//! which class it was. What was held is left out, since a later segment starts with all of it. Pure: bytes to bytes.

use bytes::Bytes;
use gpuheal_proto::link::v1::FaultClass;

use super::record::{self, Kind, Lost, Record};

/// Runs in one record of a gap: at 6 bytes each, far below what a record may be.
const RUNS_MAX: usize = 1024;

/// A segment as it was.
pub(super) struct Old<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) stream_id: &'a str,
    pub(super) first_seq: u64,
    /// The number after its last.
    pub(super) next_seq: u64,
}

/// Gives `old` without those faults for which `gives_up` names their class.
pub(super) fn rewrite(old: &Old<'_>, mut gives_up: impl FnMut(u64, &[u8]) -> Option<FaultClass>) -> Vec<u8> {
    let head = Record { kind: Kind::HEAD, first_seq: old.first_seq, stream_id: old.stream_id.to_owned(), ..Record::default() };
    let mut writer = Writer { out: head.frame(), next_seq: old.first_seq, faults: Vec::new(), lost: Vec::new() };
    for (record, _) in record::all(old.bytes) {
        // What lies twice counts once, and nothing reaches beyond the segment's own numbers.
        let known = usize::try_from(writer.next_seq.saturating_sub(record.first_seq)).unwrap_or(usize::MAX);
        if record.next_seq() > old.next_seq || record.next_seq() <= writer.next_seq {
            continue;
        }
        match record.kind {
            Kind::FAULTS => {
                writer.pass_to(record.first_seq);
                for fault in record.faults.into_iter().skip(known) {
                    match gives_up(writer.next_seq, &fault) {
                        Some(class) => writer.lose(class.into(), 1),
                        None => writer.keep(fault),
                    }
                }
            }
            Kind::GAP => {
                writer.pass_to(record.first_seq);
                for lost in record.lost_from(writer.next_seq) {
                    writer.lose(lost.class, lost.count);
                }
            }
            _ => {}
        }
        writer.end_faults();
    }
    writer.pass_to(old.next_seq);
    writer.end_faults();
    writer.end_lost();
    writer.out
}

/// Numbers in their order, each once.
struct Writer {
    out: Vec<u8>,
    next_seq: u64,
    faults: Vec<Bytes>,
    lost: Vec<Lost>,
}

impl Writer {
    fn keep(&mut self, fault: Bytes) {
        self.end_lost();
        self.faults.push(fault);
        self.next_seq += 1;
    }

    fn lose(&mut self, class: i32, count: u64) {
        self.end_faults();
        match self.lost.last_mut() {
            Some(last) if last.class == class => last.count += count,
            _ => {
                if self.lost.len() == RUNS_MAX {
                    self.end_lost();
                }
                self.lost.push(Lost { class, count });
            }
        }
        self.next_seq += count;
    }

    /// What damage has taken: nobody knows what it was.
    fn pass_to(&mut self, seq: u64) {
        if let Some(count @ 1..) = seq.checked_sub(self.next_seq) {
            self.lose(FaultClass::Unspecified.into(), count);
        }
    }

    fn end_faults(&mut self) {
        if !self.faults.is_empty() {
            let faults = std::mem::take(&mut self.faults);
            let first_seq = self.next_seq - faults.len() as u64;
            self.out.extend(Record { kind: Kind::FAULTS, first_seq, faults, ..Record::default() }.frame());
        }
    }

    fn end_lost(&mut self) {
        if !self.lost.is_empty() {
            let lost = std::mem::take(&mut self.lost);
            let first_seq = self.next_seq - lost.iter().map(|lost| lost.count).sum::<u64>();
            self.out.extend(Record { kind: Kind::GAP, first_seq, lost, ..Record::default() }.frame());
        }
    }
}
