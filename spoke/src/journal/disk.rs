//! The journal's directory: streams made of segments, appended to, read and trimmed. Blocking; one thread owns it.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use gpuheal_proto::{ids::StreamId, limits};

use super::{
    Error, Limits,
    record::{self, Held, Kind, Record},
    segment::{self, Index},
};

/// Most streams that are kept: what Hello may name.
pub(super) const STREAMS_MAX: usize = 8;
/// One read: up to an index entry's distance to find the place, then a batch, twice over for what is held beside it.
const READ_BYTES: u64 = segment::INDEX_EVERY + 2 * limits::BATCH_BYTES_MAX as u64;

#[derive(Debug)]
struct Segment {
    path: PathBuf,
    first_seq: u64,
    next_seq: u64,
    index: Index,
    bytes: u64,
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
    },
    /// Nothing from that number on.
    End,
}

/// The directory.
#[derive(Debug)]
pub(super) struct Disk {
    dir: PathBuf,
    limits: Limits,
    streams: Vec<Stream>,
    file: File,
    held: BTreeMap<String, Bytes>,
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
        let Loaded { mut streams, held, resumable, next_index } = load(dir).map_err(fail("read the segments"))?;
        drop_oldest(&mut streams);
        let generation = streams.last().map_or(1, |stream| stream.generation + 1);
        if !resumable {
            streams.push(Stream { id: new_stream_id()?, generation, segments: Vec::new(), acked: Vec::new() });
            drop_oldest(&mut streams);
        }
        let mut disk = Self {
            dir: dir.to_owned(),
            limits,
            streams,
            file: lock.try_clone().map_err(fail("open"))?,
            held,
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

    /// Faults that are not acked.
    pub(super) fn unacked(&self) -> u64 {
        self.streams.iter().map(|stream| (stream.next_seq() - 1).saturating_sub(stream.acked_upto())).sum()
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
            stream_id: String::new(),
        };
        let bytes = prost::Message::encoded_len(&record);
        if bytes > record::RECORD_BYTES_MAX {
            return Err(Error::RecordTooLarge { bytes });
        }
        self.make_room(bytes as u64, now)?;
        let fail = |error: io::Error| Error::Io { what: "append", kind: error.kind() };
        let segment_bytes = self.limits.segment_bytes;
        if self.active().segments.last().is_some_and(|segment| segment.bytes >= segment_bytes) {
            self.sync().map_err(fail)?;
            self.rotate().map_err(fail)?;
            self.trim(now, self.limits.keep_acked);
        }
        self.write(&record).map_err(fail)?;
        for (key, value) in held {
            keep(&mut self.held, key, value);
        }
        Ok(first_seq)
    }

    fn make_room(&mut self, bytes: u64, now: Duration) -> Result<(), Error> {
        if self.bytes() + bytes > self.limits.bytes_max {
            // Acked ones are kept ten minutes for a hub that is restored; not at the price of new ones.
            self.trim(now, Duration::ZERO);
        }
        let have = self.bytes();
        if have + bytes > self.limits.bytes_max {
            return Err(Error::Full { bytes: have, bytes_max: self.limits.bytes_max });
        }
        Ok(())
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

    /// A new segment, which starts with all that is held: older ones may then go.
    fn rotate(&mut self) -> io::Result<()> {
        let index = self.next_index;
        self.next_index += 1;
        let stream = self.active();
        let (first_seq, id) = (stream.next_seq(), stream.id.to_string());
        let name = format!("{:08}-{id}.{first_seq:020}.{index:010}.seg", stream.generation);
        let path = self.dir.join(name);
        self.file = OpenOptions::new().create_new(true).append(true).open(&path)?;
        let segment = Segment { path, first_seq, next_seq: first_seq, index: Index::default(), bytes: 0 };
        self.active().segments.push(segment);
        self.write(&Record { kind: Kind::HEAD, first_seq, stream_id: id, ..Record::default() })?;
        for held in checkpoint(&self.held) {
            self.write(&Record { kind: Kind::HELD, first_seq, held, ..Record::default() })?;
        }
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

    /// Faults of `stream` from `seq` on: one batch at most.
    pub(super) fn read(&self, stream: &StreamId, seq: u64) -> Result<Chunk, Error> {
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

    /// Takes an ack: numbers up to `upto` are committed at the hub.
    pub(super) fn acked(&mut self, stream: &StreamId, upto: u64, now: Duration) {
        if let Some(stream) = self.streams.iter_mut().find(|known| known.id == *stream)
            && upto > stream.acked_upto()
        {
            // One entry a second is enough to trim by.
            match stream.acked.last_mut() {
                Some(last) if last.1.as_secs() == now.as_secs() => last.0 = upto,
                _ => stream.acked.push((upto, now)),
            }
        }
        self.trim(now, self.limits.keep_acked);
    }

    /// Removes segments, and streams, of which everything was acked at least `keep` ago.
    fn trim(&mut self, now: Duration, keep: Duration) {
        let active = self.streams.len() - 1;
        for (at, stream) in self.streams.iter_mut().enumerate() {
            let old = stream.acked.partition_point(|&(_, when)| now.saturating_sub(when) >= keep);
            let upto = old.checked_sub(1).map_or(0, |last| stream.acked[last].0);
            stream.acked.drain(..old.saturating_sub(1));
            let written = (at == active).then(|| stream.segments.last().map(|segment| segment.path.clone())).flatten();
            // One without faults holds only what later ones hold too.
            let stays = |segment: &Segment| {
                let empty = segment.next_seq == segment.first_seq;
                Some(&segment.path) == written.as_ref() || !empty && segment.next_seq > upto + 1
            };
            for segment in stream.segments.extract_if(.., |segment| !stays(segment)) {
                remove(&segment.path);
            }
        }
        let newest = self.streams.last().map(|stream| stream.id.clone());
        self.streams.retain(|stream| !stream.segments.is_empty() || Some(&stream.id) == newest.as_ref());
    }
}

fn keep(held: &mut BTreeMap<String, Bytes>, key: String, value: Bytes) {
    if value.is_empty() {
        held.remove(&key);
    } else {
        held.insert(key, value);
    }
}

/// All that is held, in records of half the largest size.
fn checkpoint(held: &BTreeMap<String, Bytes>) -> Vec<Vec<Held>> {
    let mut out = Vec::new();
    let mut bytes = 0;
    for (key, value) in held {
        if out.is_empty() || bytes > record::RECORD_BYTES_MAX / 4 {
            out.push(Vec::new());
            bytes = 0;
        }
        bytes += key.len() + value.len();
        let last: &mut Vec<Held> = out.last_mut().expect("one was just pushed");
        last.push(Held { key: key.clone(), value: value.clone() });
    }
    out
}

fn chunk(bytes: &[u8], seq: u64, end_seq: u64) -> Chunk {
    let mut faults = Vec::new();
    let (mut size, mut next, mut at) = (0, seq, 0);
    while at < bytes.len() && faults.len() < limits::BATCH_FAULTS_MAX {
        let Some((record, length)) = record::parse(&bytes[at..]) else {
            match record::find(bytes, at + 1) {
                Some(found) => at = found,
                None => break,
            }
            continue;
        };
        at += length;
        if record.kind != Kind::FAULTS || record.next_seq() <= next {
            continue;
        }
        if record.first_seq > next {
            if faults.is_empty() {
                return Chunk::Gap { from_seq: seq, to_seq: record.first_seq - 1 };
            }
            break;
        }
        let skip = usize::try_from(next - record.first_seq).unwrap_or(usize::MAX);
        for fault in record.faults.into_iter().skip(skip) {
            if faults.len() >= limits::BATCH_FAULTS_MAX || size + fault.len() > limits::BATCH_BYTES_MAX - 4096 {
                return Chunk::Faults { first_seq: seq, faults };
            }
            size += fault.len() + 4;
            next += 1;
            faults.push(fault);
        }
    }
    match faults.is_empty() {
        true if end_seq > seq => Chunk::Gap { from_seq: seq, to_seq: end_seq - 1 },
        true => Chunk::End,
        false => Chunk::Faults { first_seq: seq, faults },
    }
}

/// What lies in a directory.
struct Loaded {
    /// Oldest first.
    streams: Vec<Stream>,
    held: BTreeMap<String, Bytes>,
    /// The last stream may be gone on with.
    resumable: bool,
    next_index: u64,
}

fn load(dir: &Path) -> io::Result<Loaded> {
    let mut names: Vec<(u64, StreamId, u64, u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if let Some((generation, id, first_seq, index)) = path.file_name().and_then(|name| name.to_str()).and_then(parse_name) {
            names.push((generation, id, first_seq, index, path));
        }
    }
    names.sort();
    let next_index = names.iter().map(|name| name.3 + 1).max().unwrap_or(0);
    let mut streams: Vec<Stream> = Vec::new();
    let (mut held, mut clean, mut closed) = (BTreeMap::new(), true, false);
    for (generation, id, first_seq, _, path) in names {
        let scan = segment::scan(&path, first_seq)?;
        if streams.last().is_none_or(|stream| stream.id != id) {
            streams.push(Stream { id, generation, segments: Vec::new(), acked: Vec::new() });
            clean = true;
        }
        let stream = streams.last_mut().expect("one was just pushed");
        clean &= !scan.damaged && stream.segments.last().is_none_or(|before| before.next_seq == scan.first_seq);
        closed = scan.closed;
        for (key, value) in scan.held {
            keep(&mut held, key, value);
        }
        let (next_seq, index, bytes) = (scan.next_seq, scan.index, scan.bytes);
        stream.segments.push(Segment { path, first_seq, next_seq, index, bytes });
    }
    bridge(&mut streams);
    let resumable = clean && closed && !streams.is_empty();
    Ok(Loaded { streams, held, resumable, next_index })
}

/// Where a segment ends below the start of the next, the numbers between were given and are lost: they belong to the
/// earlier one, so that a reader finds the gap there.
fn bridge(streams: &mut [Stream]) {
    for stream in streams {
        for at in 1..stream.segments.len() {
            let next = stream.segments[at].first_seq;
            let before = &mut stream.segments[at - 1];
            before.next_seq = before.next_seq.max(next);
        }
    }
}

/// Streams beyond what Hello may name: the oldest go.
fn drop_oldest(streams: &mut Vec<Stream>) {
    while streams.len() > STREAMS_MAX {
        let stream = streams.remove(0);
        tracing::error!(stream.id = %stream.id, stream.next_seq = stream.next_seq(), "journal stream dropped, too many are held");
        for segment in stream.segments {
            remove(&segment.path);
        }
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "journal segment could not be removed");
    }
}

/// Generation, stream, first number and index.
fn parse_name(name: &str) -> Option<(u64, StreamId, u64, u64)> {
    let (generation, rest) = name.strip_suffix(".seg")?.split_once('-')?;
    let mut parts = rest.split('.');
    let (id, first_seq, index) = (parts.next()?, parts.next()?, parts.next()?);
    Some((generation.parse().ok()?, StreamId::parse(id).ok()?, first_seq.parse().ok()?, index.parse().ok()?))
}

fn new_stream_id() -> Result<StreamId, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| Error::NoChance)?;
    Ok(StreamId::parse(&hex::encode(bytes)).expect("hex digits are visible"))
}
