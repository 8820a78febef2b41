//! A spoke's journal on a disk that may lose what was not synced. Numbers of a stream begin at 1 and have no holes; one
//! that was not closed goes on under a new stream. The outbox above it is the spoke's own.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use gpuheal_proto::{ids::StreamId, limits, link::v1};
use gpuheal_spoke::journal::Chunk;
use prost::Message as _;

/// How long acked faults stay, for a hub that is restored from an older backup.
const KEEP_ACKED: Duration = Duration::from_secs(600);

/// Most streams that are kept: what Hello may name.
const STREAMS_MAX: usize = 8;

/// The disk.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    streams: Vec<Stream>,
    held: BTreeMap<String, Vec<u8>>,
    /// What is held and not synced.
    held_tail: Vec<(String, Vec<u8>)>,
    closed: bool,
}

#[derive(Clone, Debug)]
struct Stream {
    id: StreamId,
    faults: Vec<Bytes>,
    synced: usize,
    acked: u64,
    /// Up to where, and when it was acked: by boot time of the machine, which outlives the process.
    acks: Vec<(u64, Duration)>,
    trimmed: u64,
}

impl Stream {
    fn new(id: StreamId) -> Self {
        Self { id, faults: Vec::new(), synced: 0, acked: 0, acks: Vec::new(), trimmed: 0 }
    }
}

impl Journal {
    /// A process opens it. `fresh` names the stream that it begins if the last one was not closed.
    pub fn open(&mut self, fresh: &str, reused: bool) -> BTreeMap<String, Vec<u8>> {
        let goes_on = (self.closed || reused) && !self.streams.is_empty();
        self.closed = false;
        if !goes_on {
            self.streams.push(Stream::new(StreamId::parse(fresh).expect("a word is a stream id")));
        }
        // What holds nothing is no stream; but the last one is written, and an earlier one, which was not closed, never again.
        let written = self.streams.len() - 1;
        let mut at = 0..;
        self.streams.retain(|stream| at.next() == Some(written) || !stream.faults.is_empty());
        if self.streams.len() > STREAMS_MAX {
            let oldest = self.streams.remove(0);
            if oldest.acked < oldest.faults.len() as u64 {
                // Of these no gap can tell: what is held is forgotten, and what stands is found again.
                self.held.clear();
            }
        }
        self.held.clone()
    }

    /// Writes faults and what was held when they were found.
    pub fn append(&mut self, faults: &[v1::Fault], held: Vec<(String, Vec<u8>)>) {
        if let Some(stream) = self.streams.last_mut() {
            stream.faults.extend(faults.iter().map(|fault| Bytes::from(fault.encode_to_vec())));
        }
        self.held_tail.extend(held);
    }

    /// All that was written is on the disk.
    pub fn sync(&mut self) {
        if let Some(stream) = self.streams.last_mut() {
            stream.synced = stream.faults.len();
        }
        for (node, bytes) in self.held_tail.drain(..) {
            if bytes.is_empty() {
                self.held.remove(&node);
            } else {
                self.held.insert(node, bytes);
            }
        }
    }

    /// The process dies: what was not synced is gone.
    pub fn crash(&mut self) {
        if let Some(stream) = self.streams.last_mut() {
            stream.faults.truncate(stream.synced);
        }
        self.held_tail.clear();
    }

    /// The process ends in order.
    pub fn close(&mut self) {
        self.sync();
        self.closed = true;
    }

    /// The disk is lost.
    pub fn lose(&mut self) {
        *self = Self::default();
    }

    /// Every stream and the number after its last fault, oldest first.
    #[must_use]
    pub fn heads(&self) -> Vec<(StreamId, u64)> {
        self.streams.iter().map(|stream| (stream.id.clone(), stream.faults.len() as u64 + 1)).collect()
    }

    /// Faults of a stream from a number on.
    #[must_use]
    pub fn read(&self, id: &StreamId, seq: u64) -> Option<Chunk> {
        let stream = self.streams.iter().find(|stream| stream.id == *id)?;
        if seq <= stream.trimmed {
            return Some(Chunk::Gap { from_seq: seq, to_seq: stream.trimmed, counts_by_class: BTreeMap::new() });
        }
        let from = usize::try_from(seq - 1).unwrap_or(usize::MAX).min(stream.faults.len());
        let faults: Vec<Bytes> = stream.faults[from..].iter().take(limits::BATCH_FAULTS_MAX).cloned().collect();
        Some(if faults.is_empty() { Chunk::End } else { Chunk::Faults { first_seq: seq, faults } })
    }

    /// The hub has committed a stream up to a number.
    pub fn acked(&mut self, id: &str, upto: u64, boot: Duration) {
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.id.as_str() == id)
            && upto > stream.acked
        {
            stream.acked = upto;
            stream.acks.push((upto, boot));
        }
    }

    /// Forgets what was acked long ago; streams that are done with go, but for the one that is written.
    pub fn trim(&mut self, boot: Duration) {
        let last = self.streams.len().saturating_sub(1);
        let mut at = 0;
        self.streams.retain_mut(|stream| {
            stream.acks.retain(|(upto, when)| {
                let old = boot.saturating_sub(*when) > KEEP_ACKED;
                if old {
                    stream.trimmed = stream.trimmed.max(*upto);
                }
                !old
            });
            let current = at == last;
            at += 1;
            current || stream.trimmed < stream.faults.len() as u64
        });
    }

    /// How far a stream was acked.
    #[must_use]
    pub fn acked_upto(&self, id: &str) -> u64 {
        self.streams.iter().find(|stream| stream.id.as_str() == id).map_or(0, |stream| stream.acked)
    }

    /// Something was written that is not on the disk yet.
    #[must_use]
    pub fn unsynced(&self) -> bool {
        self.streams.last().is_some_and(|stream| stream.synced < stream.faults.len())
    }

    /// Faults that are synced and not acked.
    #[must_use]
    pub fn unacked(&self) -> u64 {
        self.streams.iter().map(|stream| (stream.synced as u64).saturating_sub(stream.acked)).sum()
    }

    /// The fault of a number, if it is still there.
    #[must_use]
    pub fn fault(&self, id: &str, seq: u64) -> Option<v1::Fault> {
        let stream = self.streams.iter().find(|stream| stream.id.as_str() == id)?;
        let at = usize::try_from(seq.checked_sub(1)?).ok()?;
        v1::Fault::decode(stream.faults.get(at)?.clone()).ok()
    }
}
