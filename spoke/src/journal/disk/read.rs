//! Reading the journal back: a batch from a number on, or what is missing there.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
};

use bytes::Bytes;
use gpuheal_proto::{ids::StreamId, limits};

use super::{
    super::{
        Error,
        record::{self, Kind},
        segment,
    },
    Disk,
};

/// One read: up to an index entry's distance to find the place, then a batch, twice over for what is held beside it.
const READ_BYTES: u64 = segment::INDEX_EVERY + 2 * limits::BATCH_BYTES_MAX as u64;

/// What a read found: faults from a number on, or that some are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// Consecutive faults.
    Faults {
        /// Number of the first.
        first_seq: u64,
        /// Each encoded.
        faults: Vec<Bytes>,
    },
    /// These numbers were given and are lost.
    Gap {
        /// First of them.
        from_seq: u64,
        /// Last of them.
        to_seq: u64,
        /// How many of each class, where that is known: they were given up when there was no room.
        counts_by_class: BTreeMap<String, u64>,
    },
    /// Nothing from that number on.
    End,
}

impl Disk {
    /// Faults of `stream` from `seq` on: one batch at most.
    pub(in super::super) fn read(&self, stream: &StreamId, seq: u64) -> Result<Chunk, Error> {
        let stream = self.streams.iter().find(|known| known.id == *stream).ok_or(Error::NoSuchStream)?;
        let Some(segment) = stream.segments.iter().find(|segment| segment.next_seq > seq) else { return Ok(Chunk::End) };
        let fail = |error: io::Error| Error::Io { what: "read", kind: error.kind() };
        let read = |bytes_max: u64| -> io::Result<Vec<u8>> {
            let mut file = File::open(&segment.path)?;
            file.seek(SeekFrom::Start(segment.index.offset_for(seq)))?;
            let mut bytes = Vec::new();
            file.take(bytes_max).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        // A batch and the way to it fit the first read, unless a record is uncommonly large.
        match chunk(&read(READ_BYTES).map_err(fail)?, seq, segment.next_seq) {
            found @ Chunk::Faults { .. } => Ok(found),
            Chunk::Gap { .. } | Chunk::End => {
                let bytes = read(READ_BYTES + record::RECORD_BYTES_MAX as u64).map_err(fail)?;
                Ok(chunk(&bytes, seq, segment.next_seq))
            }
        }
    }
}

/// What `bytes`, from anywhere before the number `seq` on, tell of it; `end_seq` is the number after the segment's last.
pub(in super::super) fn chunk(bytes: &[u8], seq: u64, end_seq: u64) -> Chunk {
    let mut faults = Vec::new();
    let (mut size, mut next) = (0, seq);
    for (record, _) in record::all(bytes) {
        if !matches!(record.kind, Kind::FAULTS | Kind::GAP) || record.next_seq() <= next {
            continue;
        }
        let ends_here = record.first_seq > next || record.kind == Kind::GAP;
        if ends_here && !faults.is_empty() {
            break;
        }
        if record.first_seq > next {
            return lost(seq, record.first_seq);
        }
        if record.kind == Kind::GAP {
            let counts_by_class = record::counts(record.lost_from(seq));
            return Chunk::Gap { from_seq: seq, to_seq: record.next_seq() - 1, counts_by_class };
        }
        let skip = usize::try_from(next - record.first_seq).unwrap_or(usize::MAX);
        for fault in record.faults.into_iter().skip(skip) {
            let full = faults.len() >= limits::BATCH_FAULTS_MAX || size + fault.len() > limits::BATCH_BYTES_MAX - 4096;
            if full && !faults.is_empty() {
                return Chunk::Faults { first_seq: seq, faults };
            }
            size += fault.len() + 4;
            next += 1;
            faults.push(fault);
        }
    }
    match faults.is_empty() {
        true if end_seq > seq => lost(seq, end_seq),
        true => Chunk::End,
        false => Chunk::Faults { first_seq: seq, faults },
    }
}

fn lost(from_seq: u64, end_seq: u64) -> Chunk {
    Chunk::Gap { from_seq, to_seq: end_seq - 1, counts_by_class: BTreeMap::new() }
}
