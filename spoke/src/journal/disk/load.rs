//! The directory as a start finds it: which streams are there, what is missing in them, whether the last may go on.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use gpuheal_proto::ids::StreamId;

use super::{
    super::{Error, segment},
    Segment, Stream,
    held::keep,
    trim::remove,
};

/// Extension of a file that is being written to take another's place.
pub(super) const UNFINISHED: &str = "tmp";

/// What lies in a directory.
pub(super) struct Loaded {
    /// Oldest first.
    pub(super) streams: Vec<Stream>,
    pub(super) held: BTreeMap<String, Bytes>,
    /// The last stream may be gone on with.
    pub(super) resumable: bool,
    pub(super) next_index: u64,
    /// There was no segment: nobody kept a journal here before, or it is gone.
    pub(super) nothing: bool,
    /// A stream ends in damage: what was there, and whether anything was, no number tells.
    pub(super) lost_untold: bool,
}

pub(super) fn load(dir: &Path) -> io::Result<Loaded> {
    let mut names: Vec<(u64, StreamId, u64, u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == UNFINISHED) {
            remove(&path);
        }
        if let Some((generation, id, first_seq, index)) = path.file_name().and_then(|name| name.to_str()).and_then(parse_name) {
            names.push((generation, id, first_seq, index, path));
        }
    }
    names.sort();
    let nothing = names.is_empty();
    let next_index = names.iter().map(|name| name.3 + 1).max().unwrap_or(0);
    let mut streams: Vec<Stream> = Vec::new();
    let (mut held, mut clean, mut closed) = (BTreeMap::new(), true, false);
    let mut frayed: BTreeMap<StreamId, bool> = BTreeMap::new();
    for (generation, id, first_seq, _, path) in names {
        let scan = segment::scan(&path, first_seq)?;
        if streams.last().is_none_or(|stream| stream.id != id) {
            streams.push(Stream { id, generation, segments: Vec::new(), acked: Vec::new() });
            clean = true;
        }
        let stream = streams.last_mut().expect("one was just pushed");
        // Where another segment follows, its first number tells.
        frayed.insert(stream.id.clone(), scan.frayed);
        clean &= !scan.damaged && stream.segments.last().is_none_or(|before| before.next_seq == scan.first_seq);
        closed = scan.closed;
        for (key, value) in scan.held {
            keep(&mut held, key, value);
        }
        let (next_seq, index, bytes, lost_upto) = (scan.next_seq, scan.index, scan.bytes, scan.lost_upto);
        stream.segments.push(Segment { next_seq, index, bytes, lost_upto, ..Segment::new(path, first_seq) });
    }
    bridge(&mut streams);
    let resumable = clean && closed && !streams.is_empty();
    let lost_untold = frayed.into_values().any(|frayed| frayed);
    if lost_untold {
        tracing::warn!("the journal ends in damage, what still stands is told again");
    }
    Ok(Loaded { streams, held, resumable, next_index, nothing, lost_untold })
}

/// Where a segment ends below the start of the next, the numbers between were given and are lost: they belong to the
/// earlier one, so that a reader finds the gap there.
fn bridge(streams: &mut [Stream]) {
    for stream in streams {
        for at in 1..stream.segments.len() {
            let next = stream.segments[at].first_seq;
            let before = &mut stream.segments[at - 1];
            if before.next_seq < next {
                (before.next_seq, before.lost_upto) = (next, next - 1);
            }
        }
    }
}

/// Generation, stream, first number and index.
fn parse_name(name: &str) -> Option<(u64, StreamId, u64, u64)> {
    let (generation, rest) = name.strip_suffix(".seg")?.split_once('-')?;
    let mut parts = rest.split('.');
    let (id, first_seq, index) = (parts.next()?, parts.next()?, parts.next()?);
    Some((generation.parse().ok()?, StreamId::parse(id).ok()?, first_seq.parse().ok()?, index.parse().ok()?))
}

pub(super) fn new_stream_id() -> Result<StreamId, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| Error::NoChance)?;
    Ok(StreamId::parse(&hex::encode(bytes)).expect("hex digits are visible"))
}
