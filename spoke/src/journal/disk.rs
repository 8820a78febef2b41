//! The journal's directory: streams made of segments, appended to here, read, trimmed and
//! loaded in the files below. Blocking; one thread owns it.

mod compact;
mod held;
mod load;
mod read;
mod trim;

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use gpuheal_proto::ids::StreamId;

use super::{
    Error, Limits,
    record::{self, Held, Kind, Record},
    segment::Index,
};

use compact::Level;
use held::{checkpoint, keep};
use load::{Loaded, load, new_stream_id};
pub use read::Chunk;
pub(super) use read::chunk;

/// One file: consecutive numbers of a stream.
#[derive(Debug)]
struct Segment {
    path: PathBuf,
    first_seq: u64,
    next_seq: u64,
    index: Index,
    bytes: u64,
    /// Of them what was held when it began.
    checkpoint_bytes: u64,
    /// Highest number in it that is lost; 0: none.
    lost_upto: u64,
    /// How far it was compacted.
    compacted: Level,
}

impl Segment {
    fn new(path: PathBuf, first_seq: u64) -> Self {
        let (index, compacted) = (Index::default(), Level::Untouched);
        Self { path, first_seq, next_seq: first_seq, index, bytes: 0, checkpoint_bytes: 0, lost_upto: 0, compacted }
    }

    /// What was written after its start: as much as a segment holds, and as much as the next one begins with, so that what
    /// is held, however much, is written again at most once for each time that it was written.
    fn is_full(&self, limits: &Limits) -> bool {
        self.bytes - self.checkpoint_bytes >= limits.segment_bytes.max(self.checkpoint_bytes)
    }
}

/// A run of numbers without a hole, as far as the disk kept it.
#[derive(Debug)]
struct Stream {
    id: StreamId,
    /// Rises with each new stream: the order in which what was held is to be believed.
    generation: u64,
    segments: Vec<Segment>,
    /// (acked up to, when by boottime), rising; the last is the newest.
    acked: Vec<(u64, Duration)>,
}

impl Stream {
    fn next_seq(&self) -> u64 {
        self.segments.last().map_or(1, |segment| segment.next_seq)
    }

    fn acked_upto(&self) -> u64 {
        self.acked.last().map_or(0, |&(upto, _)| upto)
    }
}

/// The directory.
#[derive(Debug)]
pub(super) struct Disk {
    dir: PathBuf,
    limits: Limits,
    streams: Vec<Stream>,
    file: File,
    held: BTreeMap<String, Bytes>,
    /// Nobody kept a journal here before, or it is gone.
    began_new: bool,
    /// Faults may have been lost of which no gap can tell.
    lost_untold: bool,
    /// Faults that the hub did not have and that were given up since this process started, by class.
    given_up: BTreeMap<String, u64>,
    /// Of the next segment's file: two segments may start at one number.
    next_index: u64,
    /// Two processes in one directory would give one number two meanings.
    _lock: File,
}

impl Disk {
    /// Opens the directory, keeps what is whole, goes on with the last stream if it was closed cleanly.
    pub(super) fn open(dir: &Path, limits: Limits) -> Result<Self, Error> {
        let fail = |what| move |error: io::Error| Error::Io { what, kind: error.kind() };
        fs::create_dir_all(dir).map_err(fail("create the directory"))?;
        let lock = File::create(dir.join("lock")).map_err(fail("create the lock"))?;
        lock.try_lock().map_err(|_| Error::InUse)?;
        let Loaded { mut streams, held, resumable, next_index, nothing, lost_untold } =
            load(dir).map_err(fail("read the segments"))?;
        let generation = streams.last().map_or(1, |stream| stream.generation + 1);
        if !resumable {
            streams.push(Stream { id: new_stream_id()?, generation, segments: Vec::new(), acked: Vec::new() });
        }
        let mut disk = Self {
            dir: dir.to_owned(),
            limits,
            streams,
            file: lock.try_clone().map_err(fail("open"))?,
            held,
            began_new: nothing,
            lost_untold,
            given_up: BTreeMap::new(),
            next_index,
            _lock: lock,
        };
        if resumable {
            let last = disk.active().segments.last().expect("a resumable stream has a segment");
            disk.file = OpenOptions::new().append(true).open(&last.path).map_err(fail("open the last segment"))?;
            disk.reopen_mark().map_err(fail("mark the journal as open"))?;
        } else {
            disk.rotate().map_err(fail("create a segment"))?;
        }
        // Only now is what is held written anew. First what is empty, or a process that dies again and again, and finds nothing,
        // would push out what still waits for a hub.
        disk.trim(Duration::ZERO, disk.limits.keep_acked);
        Ok(disk)
    }

    fn active(&mut self) -> &mut Stream {
        self.streams.last_mut().expect("open made one")
    }

    /// A record after the close: if we die now, the last record is not a close any more.
    fn reopen_mark(&mut self) -> io::Result<()> {
        let first_seq = self.active().next_seq();
        self.write(&Record { kind: Kind::HELD, first_seq, ..Record::default() })?;
        self.sync()
    }

    /// Whether there was no journal when it was opened.
    pub(super) const fn began_new(&self) -> bool {
        self.began_new
    }

    /// Whether faults may have been lost, as the start found, of which no gap can tell.
    pub(super) const fn lost_untold(&self) -> bool {
        self.lost_untold
    }

    /// What was given up since this process started, by class.
    pub(super) const fn given_up(&self) -> &BTreeMap<String, u64> {
        &self.given_up
    }

    /// What is held, by key.
    pub(super) fn held(&self) -> &BTreeMap<String, Bytes> {
        &self.held
    }

    /// The stream that is written, and the number of its next fault.
    pub(super) fn head(&self) -> (StreamId, u64) {
        let stream = self.streams.last().expect("open made one");
        (stream.id.clone(), stream.next_seq())
    }

    /// Every stream and the number after its last fault, oldest first.
    pub(super) fn heads(&self) -> Vec<(StreamId, u64)> {
        self.streams.iter().map(|stream| (stream.id.clone(), stream.next_seq())).collect()
    }

    /// Bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.streams.iter().flat_map(|stream| &stream.segments).map(|segment| segment.bytes).sum()
    }

    /// Writes faults and what was held in one record; the number of the first. Not yet synced.
    pub(super) fn append(&mut self, faults: Vec<Bytes>, held: Vec<(String, Bytes)>, now: Duration) -> Result<u64, Error> {
        let first_seq = self.active().next_seq();
        let kind = if faults.is_empty() { Kind::HELD } else { Kind::FAULTS };
        let record = Record {
            kind,
            first_seq,
            faults,
            held: held.iter().map(|(key, value)| Held { key: key.clone(), value: value.clone() }).collect(),
            ..Record::default()
        };
        let bytes = prost::Message::encoded_len(&record);
        if bytes > record::RECORD_BYTES_MAX {
            return Err(Error::RecordTooLarge { bytes });
        }
        let fail = |error: io::Error| Error::Io { what: "append", kind: error.kind() };
        self.make_room((record::FRAME_HEAD + bytes) as u64, Level::for_the_sake_of(&record.faults), now)?;
        let limits = self.limits;
        if self.active().segments.last().is_some_and(|segment| segment.is_full(&limits)) {
            self.end_segment().map_err(fail)?;
            self.trim(now, self.limits.keep_acked);
        }
        self.write(&record).map_err(fail)?;
        for (key, value) in held {
            keep(&mut self.held, key, value);
        }
        Ok(first_seq)
    }

    fn write(&mut self, record: &Record) -> io::Result<()> {
        let frame = record.frame();
        self.file.write_all(&frame)?;
        let segment = self.active().segments.last_mut().expect("rotate made one");
        if record.kind == Kind::FAULTS {
            segment.index.note(record.first_seq, segment.bytes);
            segment.next_seq = record.next_seq();
        }
        segment.bytes += frame.len() as u64;
        Ok(())
    }

    /// Goes on in another segment. What this one says is on the disk.
    fn end_segment(&mut self) -> io::Result<()> {
        self.sync()?;
        self.rotate()
    }

    /// A new segment, which starts with all that is held: older ones may then go.
    fn rotate(&mut self) -> io::Result<()> {
        let index = self.next_index;
        self.next_index += 1;
        let stream = self.active();
        let (first_seq, id) = (stream.next_seq(), stream.id.to_string());
        let name = format!("{:08}-{id}.{first_seq:020}.{index:010}.seg", stream.generation);
        let path = self.dir.join(name);
        self.file = OpenOptions::new().create_new(true).append(true).open(&path)?;
        let segment = Segment::new(path, first_seq);
        self.active().segments.push(segment);
        self.write(&Record { kind: Kind::HEAD, first_seq, stream_id: id, ..Record::default() })?;
        for held in checkpoint(&self.held) {
            self.write(&Record { kind: Kind::HELD, first_seq, held, ..Record::default() })?;
        }
        let segment = self.active().segments.last_mut().expect("it was just pushed");
        segment.checkpoint_bytes = segment.bytes;
        self.file.sync_all()?;
        File::open(&self.dir)?.sync_all()
    }

    /// What was written is on the disk afterwards.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Marks a clean end. Nothing may be appended after it.
    pub(super) fn close(&mut self) -> io::Result<()> {
        let first_seq = self.active().next_seq();
        self.write(&Record { kind: Kind::CLOSE, first_seq, ..Record::default() })?;
        self.file.sync_all()
    }
}
