//! For fuzzing and tests: the laws of a segment, checked over any bytes at all. Pure; the journal itself never calls it.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    disk::{Chunk, chunk},
    record,
    rewrite::{Old, rewrite},
    segment::scan_bytes,
    severity::{self, Worth},
};

/// Reads `bytes` as a segment that starts at number 1, and as it is once it was compacted.
///
/// # Panics
/// When a number up to the last is neither a fault nor in a gap, or is both or two things; when compacting moves a number,
/// changes a fault or loses one that is to be kept.
pub fn check_segment(bytes: &[u8]) {
    let scan = scan_bytes(bytes, 1);
    let before = walk(bytes, scan.next_seq);
    let old = Old { bytes, stream_id: "s", first_seq: 1, next_seq: scan.next_seq };
    let new = rewrite(&old, |_, fault| {
        let (class, worth) = severity::of(fault);
        (worth == Worth::Minor).then_some(class)
    });
    let again = scan_bytes(&new, 1);
    assert!(!again.damaged, "a segment written anew is whole");
    assert_eq!(again.next_seq, scan.next_seq, "and ends where it ended");
    let after = walk(&new, again.next_seq);
    let kept: BTreeMap<_, _> = before.into_iter().filter(|(_, fault)| severity::of(fault).1 != Worth::Minor).collect();
    assert_eq!(after, kept, "what is dear stays, under its number");
}

/// The same over records that are whole, so that a fuzzer needs no checksum: each is two bytes of length, little-endian, and
/// so many of protobuf.
///
/// # Panics
/// As [`check_segment`].
pub fn check_records(mut bytes: &[u8]) {
    let mut segment = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let (payload, rest) = rest.split_at(rest.len().min(u16::from_le_bytes(*length).into()));
        segment.extend(record::frame(|out| out.extend_from_slice(payload)));
        bytes = rest;
    }
    check_segment(&segment);
}

/// Every fault by its number, read batch by batch as a sender does.
fn walk(bytes: &[u8], next_seq: u64) -> BTreeMap<u64, Bytes> {
    let (mut out, mut seq) = (BTreeMap::new(), 1);
    while seq < next_seq {
        match chunk(bytes, seq, next_seq) {
            Chunk::Faults { first_seq, faults } => {
                assert_eq!(first_seq, seq, "a batch starts where it was asked for");
                assert!(!faults.is_empty(), "a batch holds something");
                for fault in faults {
                    out.insert(seq, fault);
                    seq += 1;
                }
            }
            Chunk::Gap { from_seq, to_seq, .. } => {
                assert_eq!(from_seq, seq, "a gap starts where it was asked for");
                assert!(to_seq >= seq, "a gap holds something");
                seq = to_seq + 1;
            }
            Chunk::End => panic!("number {seq} of {next_seq} is nowhere"),
        }
    }
    assert_eq!(seq, next_seq, "nothing lies behind the last number");
    out
}
