//! One file of the journal, read once at the start: what numbers it holds and where, what is missing in it, what was
//! held, and whether it was closed. Reads only.

use std::{collections::BTreeMap, fs, io, path::Path};

use bytes::Bytes;

use super::record::{self, Kind, Record};

/// One entry of a segment's index for each so many bytes: a read decodes at most this much to find its place.
pub(super) const INDEX_EVERY: u64 = 64 << 10;

/// What a segment holds, as far as reading and trimming need to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// (first_seq of a record, its offset), rising.
    entries: Vec<(u64, u64)>,
}

impl Index {
    /// Notes a record of faults at `offset`.
    pub(super) fn note(&mut self, first_seq: u64, offset: u64) {
        let far = self.entries.last().is_none_or(|&(_, last)| offset >= last + INDEX_EVERY);
        if far {
            self.entries.push((first_seq, offset));
        }
    }

    /// Where to start to read for `seq`.
    pub(super) fn offset_for(&self, seq: u64) -> u64 {
        let after = self.entries.partition_point(|&(first, _)| first <= seq);
        after.checked_sub(1).or(Some(0)).and_then(|at| self.entries.get(at)).map_or(0, |&(_, offset)| offset)
    }
}

/// What reading a whole segment tells.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Number of its first fault, or of the next to come.
    pub(super) first_seq: u64,
    /// Number after its last fault.
    pub(super) next_seq: u64,
    /// Where its records are.
    pub(super) index: Index,
    /// What was held, in the order of writing; an empty value removes.
    pub(super) held: BTreeMap<String, Bytes>,
    /// Its last whole record says that the journal was closed.
    pub(super) closed: bool,
    /// Some bytes in it are no record.
    pub(super) damaged: bool,
    /// Such bytes are its last: no record after them says how many numbers they held.
    pub(super) frayed: bool,
    /// Highest number in it that is lost; 0: none. Where damage took no number that is known of, its last one.
    pub(super) lost_upto: u64,
    /// Size on disk.
    pub(super) bytes: u64,
}

/// Reads a segment of which the name says that it starts at `first_seq`.
pub(super) fn scan(path: &Path, first_seq: u64) -> io::Result<Scan> {
    Ok(scan_bytes(&fs::read(path)?, first_seq))
}

/// The same of its bytes.
pub(super) fn scan_bytes(bytes: &[u8], first_seq: u64) -> Scan {
    let mut out = Scan { first_seq, next_seq: first_seq, bytes: bytes.len() as u64, ..Scan::default() };
    let mut records = record::all(bytes);
    let mut whole_upto = 0;
    while let Some((record, at)) = records.next() {
        out.take(record, at as u64);
        whole_upto = records.at();
    }
    out.frayed = whole_upto < bytes.len();
    // Not even its head reached the disk.
    out.damaged = records.damaged() || bytes.is_empty();
    if out.damaged {
        out.lost_upto = out.next_seq.saturating_sub(1);
    }
    out
}

impl Scan {
    fn take(&mut self, record: Record, offset: u64) {
        self.closed = record.kind == Kind::CLOSE;
        // Every record says at which number it was written: what is missing before it was given and is lost.
        if record.first_seq > self.next_seq {
            self.lost_upto = record.first_seq - 1;
        }
        if matches!(record.kind, Kind::FAULTS | Kind::GAP) && record.first_seq >= self.next_seq {
            self.index.note(record.first_seq, offset);
        }
        if record.kind == Kind::GAP {
            self.lost_upto = record.next_seq().saturating_sub(1);
        }
        self.next_seq = self.next_seq.max(record.next_seq());
        for held in record.held {
            self.held.insert(held.key, held.value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_starts_a_read_at_or_before_the_number_that_is_asked_for() {
        let mut index = Index::default();
        assert_eq!(index.offset_for(5), 0);
        for (seq, offset) in [(1, 100), (5, 200), (9, INDEX_EVERY + 100), (20, INDEX_EVERY * 3)] {
            index.note(seq, offset);
        }
        for (seq, offset) in [(1, 100), (8, 100), (9, INDEX_EVERY + 100), (19, INDEX_EVERY + 100), (99, INDEX_EVERY * 3)] {
            assert_eq!(index.offset_for(seq), offset, "{seq}");
        }
    }
}
