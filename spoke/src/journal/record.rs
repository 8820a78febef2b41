//! One record of the journal as bytes: magic, length, CRC-32, protobuf. Reads whatever a crash or a bad disk left:
//! a record is there whole or it is not there. No IO.

use bytes::Bytes;
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
}

impl Record {
    /// As it goes to disk.
    pub(super) fn frame(&self) -> Vec<u8> {
        let length = self.encoded_len();
        let mut out = Vec::with_capacity(FRAME_HEAD + length);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&(length as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        self.encode(&mut out).expect("a Vec grows");
        let crc = checksum(&out[4..8], &out[FRAME_HEAD..]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The number after this record's last fault.
    pub(super) fn next_seq(&self) -> u64 {
        self.first_seq + self.faults.len() as u64
    }
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
    Some((Record::decode(payload).ok()?, FRAME_HEAD + length))
}

/// Where after `from` the next whole record starts.
pub(super) fn find(bytes: &[u8], from: usize) -> Option<usize> {
    let last = bytes.len().checked_sub(FRAME_HEAD)?;
    (from..=last).find(|&at| bytes[at..at + 4] == MAGIC && parse(&bytes[at..]).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            kind: Kind::FAULTS,
            first_seq: 7,
            faults: vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")],
            held: vec![Held { key: "n1".into(), value: Bytes::from_static(b"79") }],
            stream_id: String::new(),
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
