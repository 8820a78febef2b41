//! The newest faults in memory: what is sent at once need not be read back from the disk, nor wait for its sync.

use std::collections::VecDeque;

use bytes::Bytes;
use gpuheal_proto::{ids::StreamId, limits};

use super::Chunk;

/// Faults kept: four times the credit that the hub gives.
const TAIL_FAULTS_MAX: usize = 4 * limits::CREDIT as usize;

/// The newest faults of the stream that is written.
#[derive(Debug)]
pub(super) struct Tail {
    stream: StreamId,
    first_seq: u64,
    faults: VecDeque<Bytes>,
}

impl Tail {
    /// A tail that starts at `next_seq`.
    pub(super) const fn new(stream: StreamId, next_seq: u64) -> Self {
        Self { stream, first_seq: next_seq, faults: VecDeque::new() }
    }

    /// Takes the next fault.
    pub(super) fn push(&mut self, fault: Bytes) {
        if self.faults.len() == TAIL_FAULTS_MAX {
            self.faults.pop_front();
            self.first_seq += 1;
        }
        self.faults.push_back(fault);
    }

    /// A batch from `seq` on; nothing when the disk must be asked.
    pub(super) fn read(&self, stream: &StreamId, seq: u64) -> Option<Chunk> {
        if *stream != self.stream || seq < self.first_seq {
            return None;
        }
        let skip = usize::try_from(seq - self.first_seq).ok()?;
        let mut bytes = 0;
        let fits = |fault: &&Bytes| {
            bytes += fault.len() + 4;
            bytes <= limits::BATCH_BYTES_MAX - 4096
        };
        let faults: Vec<_> = self.faults.iter().skip(skip).take(limits::BATCH_FAULTS_MAX).take_while(fits).cloned().collect();
        Some(if faults.is_empty() { Chunk::End } else { Chunk::Faults { first_seq: seq, faults } })
    }
}
