//! One record of the journal as bytes: magic, length, CRC-32, protobuf. Reads whatever a crash or a bad disk left:
//! a record is there whole or it is not there. No IO.

use std::collections::BTreeMap;

use bytes::Bytes;
use gpuheal_proto::link::v1::FaultClass;
use prost::Message as _;

/// `GPHJ`: where a reader that lost its place looks for the next record.
const MAGIC: [u8; 4] = *b"GPHJ";
/// Magic, length and CRC.
pub(super) const FRAME_HEAD: usize = 12;
/// Largest record: 256 faults of at most 2 KiB and what was held beside them, with room to spare. A length beyond it
/// is damage.
pub(super) const RECORD_BYTES_MAX: usize = 4 << 20;

/// What one record holds.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Record {
    /// See [`Kind`].
    #[prost(uint32, tag = "1")]
    pub(super) kind: u32,
    /// The number of the first fault; of the next one to come, where there is none.
    #[prost(uint64, tag = "2")]
    pub(super) first_seq: u64,
    /// Encoded faults, numbered from `first_seq` on.
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub(super) faults: Vec<Bytes>,
    /// What was held when they were found: in the same record, so that neither is there without the other.
    #[prost(message, repeated, tag = "4")]
    pub(super) held: Vec<Held>,
    /// Of a segment's head: whose stream it is.
    #[prost(string, tag = "5")]
    pub(super) stream_id: String,
    /// Of a gap: what is no longer here, numbered from `first_seq` on.
    #[prost(message, repeated, tag = "6")]
    pub(super) lost: Vec<Lost>,
}

/// Consecutive numbers whose faults were of one class and are no longer here.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Lost {
    /// Unspecified: nobody knows.
    #[prost(enumeration = "FaultClass", tag = "1")]
    pub(super) class: i32,
    #[prost(uint64, tag = "2")]
    pub(super) count: u64,
}

/// One held value; empty bytes mean that it is held no more.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Held {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

/// Kinds of records.
pub(super) struct Kind;

impl Kind {
    /// First of each segment.
    pub(super) const HEAD: u32 = 1;
    /// Faults, with what was held.
    pub(super) const FAULTS: u32 = 2;
    /// What is held, alone.
    pub(super) const HELD: u32 = 3;
    /// The journal was closed cleanly here.
    pub(super) const CLOSE: u32 = 4;
    /// Faults that were given up, or found lost.
    pub(super) const GAP: u32 = 5;
}

impl Record {
    /// As it goes to disk.
    pub(super) fn frame(&self) -> Vec<u8> {
        frame(|out| self.encode(out).expect("a Vec grows"))
    }

    /// The number after this record's last.
    pub(super) fn next_seq(&self) -> u64 {
        self.checked_next_seq().expect("parse lets no other pass")
    }

    /// Only one kind has faults, and one has lost ones: then a record's length in numbers is what its kind says.
    const fn is_of_its_kind(&self) -> bool {
        (self.kind == Kind::FAULTS || self.faults.is_empty()) && (self.kind == Kind::GAP || self.lost.is_empty())
    }

    fn checked_next_seq(&self) -> Option<u64> {
        let faults = self.first_seq.checked_add(self.faults.len() as u64);
        self.lost.iter().try_fold(faults?, |seq, lost| seq.checked_add(lost.count))
    }

    /// Of a gap: what is lost from the number `seq` on.
    pub(super) fn lost_from(&self, seq: u64) -> impl Iterator<Item = Lost> {
        let mut skip = seq.saturating_sub(self.first_seq);
        self.lost.iter().filter_map(move |lost| {
            let skipped = skip.min(lost.count);
            skip -= skipped;
            let count = lost.count - skipped;
            (count > 0).then_some(Lost { count, ..*lost })
        })
    }
}

/// What `payload` writes, as it goes to disk.
pub(super) fn frame(payload: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::from(MAGIC);
    out.extend_from_slice(&[0; 8]);
    payload(&mut out);
    let length = (out.len() - FRAME_HEAD) as u32;
    out[4..8].copy_from_slice(&length.to_le_bytes());
    let crc = checksum(&out[4..8], &out[FRAME_HEAD..]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    out
}

fn checksum(length: &[u8], payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(length);
    crc.update(payload);
    crc.finalize()
}

/// The record at the start of `bytes` and how long its frame is; nothing when it is not whole.
pub(super) fn parse(bytes: &[u8]) -> Option<(Record, usize)> {
    let head = bytes.get(..FRAME_HEAD)?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let length = usize::try_from(word(4)).ok()?;
    if head[..4] != MAGIC || length > RECORD_BYTES_MAX {
        return None;
    }
    let payload = bytes.get(FRAME_HEAD..FRAME_HEAD + length)?;
    if checksum(&head[4..8], payload) != word(8) {
        return None;
    }
    let record = Record::decode(payload).ok()?;
    (record.is_of_its_kind() && record.checked_next_seq().is_some()).then_some((record, FRAME_HEAD + length))
}

/// Every whole record in `bytes`, each with its offset.
pub(super) fn all(bytes: &[u8]) -> Records<'_> {
    Records { bytes, at: 0, damaged: false }
}

/// See [`all`].
pub(super) struct Records<'a> {
    bytes: &'a [u8],
    at: usize,
    damaged: bool,
}

impl Records<'_> {
    /// Whether anything so far was no record.
    pub(super) const fn damaged(&self) -> bool {
        self.damaged
    }

    /// Where the next one is looked for.
    pub(super) const fn at(&self) -> usize {
        self.at
    }
}

impl Iterator for Records<'_> {
    type Item = (Record, usize);

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        if let Some((record, length)) = parse(&self.bytes[self.at..]) {
            let at = self.at;
            self.at += length;
            return Some((record, at));
        }
        self.damaged = true;
        self.at = find(self.bytes, self.at + 1).unwrap_or(self.bytes.len());
        self.next()
    }
}

/// How many of each class, for those whose class is known.
pub(super) fn counts(lost: impl Iterator<Item = Lost>) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for lost in lost {
        if lost.class() != FaultClass::Unspecified {
            *out.entry(class_name(lost.class())).or_default() += lost.count;
        }
    }
    out
}

/// Where after `from` the next whole record starts.
pub(super) fn find(bytes: &[u8], from: usize) -> Option<usize> {
    let last = bytes.len().checked_sub(FRAME_HEAD)?;
    (from..=last).find(|&at| bytes[at..at + 4] == MAGIC && parse(&bytes[at..]).is_some())
}

/// As our own words say it: `row_remap`.
pub(super) fn class_name(class: FaultClass) -> String {
    class.as_str_name().trim_start_matches("FAULT_CLASS_").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_named_as_everywhere_else() {
        for class in gpuheal_proto::fault::FaultClass::ALL {
            assert_eq!(class_name((*class).into()), class.as_str());
        }
    }

    fn record() -> Record {
        Record {
            kind: Kind::FAULTS,
            first_seq: 7,
            faults: vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")],
            held: vec![Held { key: "n1".into(), value: Bytes::from_static(b"79") }],
            ..Record::default()
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let frame = record().frame();
        assert_eq!(parse(&frame), Some((record(), frame.len())));
        assert_eq!(record().next_seq(), 9);
    }

    #[test]
    fn any_bit_that_flips_and_any_byte_that_lacks_is_noticed() {
        let frame = record().frame();
        for at in 0..frame.len() {
            let mut flipped = frame.clone();
            flipped[at] ^= 0x10;
            assert_eq!(parse(&flipped), None, "flipped at {at}");
            assert_eq!(parse(&frame[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn a_reader_that_lost_its_place_finds_the_next_record() {
        let frame = record().frame();
        let bytes = [b"GPHJ and other rubbish".as_slice(), &frame].concat();
        assert_eq!(find(&bytes, 0), Some(bytes.len() - frame.len()));
        assert_eq!(find(&frame, 1), None);
    }
}
