//! What this spoke found and the hub has not confirmed, on disk: numbered without a hole, synced before a webhook is
//! answered, kept until ten minutes after the hub's ack. Also what was held when it was found, so that a restart has a
//! predecessor. Blocking file IO stays on a thread of its own; everybody else holds this handle.
//! A journal that was not closed cleanly goes on under a new stream id: no number ever means two things. One that is full
//! gives up what is worth least and says so in a gap; every number is a fault or in a gap that is told.

mod check;
mod disk;
mod record;
mod rewrite;
mod segment;
mod severity;
mod tail;
mod worker;

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use gpuheal_proto::{fault::Fault, ids::StreamId, limits, link::v1};
use prost::Message as _;
use tokio::sync::{mpsc, oneshot, watch};

pub use check::{check_records, check_segment};
pub use disk::Chunk;
use disk::Disk;
use tail::Tail;
use worker::Job;

/// Jobs that may wait for the journal's thread: at one fsync of 10 ms for each batch, 1,024 are what a storm of
/// webhooks brings in that time; more wait at the sender.
const JOBS_MAX: usize = 1024;

/// How much the journal may hold, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all segments together. At about 400 bytes a fault, 256 MiB hold 600,000.
    pub bytes_max: u64,
    /// A segment is closed beyond it: the unit of trimming.
    pub segment_bytes: u64,
    /// How long acked faults stay, for a hub that is restored from an older state.
    pub keep_acked: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes_max: 256 << 20, segment_bytes: 8 << 20, keep_acked: Duration::from_secs(600) }
    }
}

/// Why the journal did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The hub has been away too long, and nothing that is left may be given up for this.
    #[error("journal is full: {bytes} of {bytes_max} bytes")]
    Full {
        /// What it holds.
        bytes: u64,
        /// What it may hold.
        bytes_max: u64,
    },
    /// One append over the limit of a record.
    #[error("record of {bytes} bytes is over the limit of {}", record::RECORD_BYTES_MAX)]
    RecordTooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The disk said no.
    #[error("journal could not {what}: {kind}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// How it failed.
        kind: io::ErrorKind,
    },
    /// Another process has the directory.
    #[error("journal's directory is in use by another process")]
    InUse,
    /// A stream that is not, or no longer, here.
    #[error("journal has no such stream")]
    NoSuchStream,
    /// The thread has ended.
    #[error("journal is closed")]
    Closed,
    /// The system gave no random bytes.
    #[error("no random bytes for a stream id")]
    NoChance,
}

/// Where the stream that is being written ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The stream.
    pub stream: StreamId,
    /// Number of its next fault.
    pub next_seq: u64,
}

/// What the journal knows about its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Faults not acked.
    pub unacked: u64,
    /// Faults that were to be sent since it was opened: those that waited then, and each that came since.
    pub found: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// An fsync or a write failed: nothing more is taken.
    pub broken: bool,
}

/// An append whose place is settled and whose sync is under way.
#[must_use]
#[derive(Debug)]
pub struct Submitted {
    answer: oneshot::Receiver<Result<u64, Error>>,
}

impl Submitted {
    /// Waits until it is on the disk. Gives the number of the first fault.
    ///
    /// # Errors
    /// When it could not be written or synced.
    pub async fn durable(self) -> Result<u64, Error> {
        self.answer.await.map_err(|_| Error::Closed)?
    }
}

/// Handle on the journal. Cheap to clone.
#[derive(Clone)]
pub struct Journal {
    jobs: mpsc::Sender<Job>,
    head: watch::Receiver<Head>,
    depth: watch::Receiver<Depth>,
    lost: watch::Receiver<u64>,
    given_up: watch::Receiver<BTreeMap<String, u64>>,
    tail: Arc<Mutex<Tail>>,
    began_new: bool,
}

impl Journal {
    /// Opens the journal in `dir` and starts its thread. Gives what was held, by key.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub fn open(dir: &Path, limits: Limits) -> Result<(Self, BTreeMap<String, Bytes>), Error> {
        let disk = Disk::open(dir, limits)?;
        let held = disk.held().clone();
        let began_new = disk.began_new();
        let (stream, next_seq) = disk.head();
        let tail = Arc::new(Mutex::new(Tail::new(stream.clone(), next_seq)));
        let (head_tx, head) = watch::channel(Head { stream, next_seq });
        let (depth_tx, depth) = watch::channel(Depth::default());
        let (lost_tx, lost) = watch::channel(u64::from(disk.lost_untold()));
        let (jobs, queue) = mpsc::channel(JOBS_MAX);
        let (given_up_tx, given_up) = watch::channel(BTreeMap::new());
        let told = worker::Told { head: head_tx, depth: depth_tx, lost: lost_tx, given_up: given_up_tx };
        let worker = worker::Worker::new(disk, queue, told, Arc::clone(&tail));
        std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || worker.run())
            .map_err(|error| Error::Io { what: "start its thread", kind: error.kind() })?;
        Ok((Self { jobs, head, depth, lost, given_up, tail, began_new }, held))
    }

    /// Writes faults, and what was held when they were found, in one record each 256 faults; returns once it is on the
    /// disk. An empty held value removes its key. Gives the number of the first fault. With neither it is a barrier: what
    /// was given before is on the disk afterwards. What is held, alone, is let go when there is no room for it.
    ///
    /// # Errors
    /// When the journal is full, broken or closed. Nothing of a failed append is sent to the hub.
    pub async fn append(&self, faults: &[Fault], held: Vec<(String, Bytes)>) -> Result<u64, Error> {
        self.submit(faults, held).await?.durable().await
    }

    /// As [`Self::append`], but returns as soon as the order of writing is settled.
    ///
    /// # Errors
    /// When the journal is closed.
    pub async fn submit(&self, faults: &[Fault], held: Vec<(String, Bytes)>) -> Result<Submitted, Error> {
        let encode = |fault: &Fault| Bytes::from(v1::Fault::from(fault).encode_to_vec());
        let faults = faults.iter().map(encode).collect();
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job::Append { faults, held, reply }).await.map_err(|_| Error::Closed)?;
        Ok(Submitted { answer })
    }

    /// Writes what is held, alone. Nobody waits for its sync: without it a restart has no predecessor, which is safe.
    pub async fn hold(&self, held: Vec<(String, Bytes)>) {
        // A journal that is closed holds what it held.
        let _ = self.jobs.send(Job::Hold { held }).await;
    }

    /// Every stream that is held and the number after its last fault, oldest first.
    ///
    /// # Errors
    /// When the journal is closed.
    pub async fn heads(&self) -> Result<Vec<(StreamId, u64)>, Error> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job::Heads { reply }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)
    }

    /// Faults of `stream` from `seq` on, at most a batch; from memory where they are new.
    ///
    /// # Errors
    /// When the stream is not here or the disk fails.
    pub async fn read(&self, stream: &StreamId, seq: u64) -> Result<Chunk, Error> {
        if let Some(chunk) = self.tail.lock().expect("no holder of this lock panics").read(stream, seq) {
            return Ok(chunk);
        }
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job::Read { stream: stream.clone(), seq, reply }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }

    /// Tells that the hub has committed `stream` up to `upto`.
    pub async fn acked(&self, stream: StreamId, upto: u64) {
        // A journal that is closed has nothing to trim.
        let _ = self.jobs.send(Job::Acked { stream, upto }).await;
    }

    /// Changes when something was written: wait on it instead of polling.
    #[must_use]
    pub fn head(&self) -> watch::Receiver<Head> {
        self.head.clone()
    }

    /// Rises when the hub has been told that faults are lost: what still stands is then to be journaled anew. Above 0 from
    /// the start when some were lost that no gap can tell of.
    #[must_use]
    pub fn lost(&self) -> watch::Receiver<u64> {
        self.lost.clone()
    }

    /// How full it is.
    #[must_use]
    pub fn depth(&self) -> watch::Receiver<Depth> {
        self.depth.clone()
    }

    /// Faults that the hub did not have and that were given up for want of room since this process started, by class.
    #[must_use]
    pub fn given_up(&self) -> watch::Receiver<BTreeMap<String, u64>> {
        self.given_up.clone()
    }

    /// Whether there was no journal when it was opened: what an earlier process held is gone.
    #[must_use]
    pub const fn began_new(&self) -> bool {
        self.began_new
    }

    /// From here on nothing more is taken; what is there can still be read and acked. Gives the end of the stream that was
    /// written.
    ///
    /// # Errors
    /// When it is closed.
    pub async fn seal(&self) -> Result<Head, Error> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job::Seal { reply }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)
    }

    /// Writes the clean end. What comes after is refused.
    ///
    /// # Errors
    /// When the disk fails or it was closed before.
    pub async fn close(&self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job::Close { reply }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }
}

/// Faults in one record: a batch, so that a batch is one read.
const RECORD_FAULTS_MAX: usize = limits::BATCH_FAULTS_MAX;

#[cfg(test)]
mod tests;
