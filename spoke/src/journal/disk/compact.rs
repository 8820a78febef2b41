//! A journal that is full gives up what is worth least, and says so in a gap. First what costs nothing: what was held, which
//! the last segment has whole, and faults that the hub has. Then faults of P2, then of P1, each oldest first, and never for
//! one that is worth less. What may be P0 is never given up: for that there is no room left but by an ack.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
    time::Duration,
};

use bytes::Bytes;
use gpuheal_proto::link::v1::FaultClass;

use super::{
    super::{
        Error, record,
        rewrite::{Old, rewrite},
        segment,
        severity::{self, Worth},
    },
    Disk,
};

/// What of a segment was given up; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Nothing.
    Untouched,
    /// What nobody needs any more.
    Needless,
    /// P2.
    Minor,
    /// P1.
    Major,
}

impl Level {
    /// How much may be given up for these: never what is worth more.
    pub(super) fn for_the_sake_of(faults: &[Bytes]) -> Self {
        match faults.iter().map(|fault| severity::of(fault).1).max() {
            None => Self::Needless,
            Some(Worth::Minor) => Self::Minor,
            Some(Worth::Major | Worth::Kept) => Self::Major,
        }
    }

    const fn gives_up(self, worth: Worth) -> bool {
        match worth {
            Worth::Minor => matches!(self, Self::Minor | Self::Major),
            Worth::Major => matches!(self, Self::Major),
            Worth::Kept => false,
        }
    }
}

impl Disk {
    /// Sees to it that `bytes` more fit, giving up no more than it must and no more than `most`.
    pub(super) fn make_room(&mut self, bytes: u64, most: Level, now: Duration) -> Result<(), Error> {
        if self.fits(bytes) {
            return Ok(());
        }
        // Acked ones are kept ten minutes for a hub that is restored; not at the price of new ones.
        self.trim(now, Duration::ZERO);
        self.compact(bytes, most);
        if !self.fits(bytes) && self.worth_ending() {
            self.end_segment().map_err(|error| Error::Io { what: "begin a segment", kind: error.kind() })?;
            self.trim(now, Duration::ZERO);
            self.compact(bytes, most);
        }
        if self.fits(bytes) { Ok(()) } else { Err(Error::Full { bytes: self.bytes(), bytes_max: self.limits.bytes_max }) }
    }

    fn fits(&self, bytes: u64) -> bool {
        self.bytes() + bytes <= self.limits.bytes_max
    }

    /// The segment that is written is compacted only once it is closed; a small part of one is not worth another file.
    fn worth_ending(&self) -> bool {
        let written = self.streams.last().and_then(|stream| stream.segments.last());
        written.is_some_and(|segment| segment.bytes - segment.checkpoint_bytes >= self.limits.segment_bytes / 4)
    }

    /// Compacts closed segments, oldest first, until `bytes` fit.
    fn compact(&mut self, bytes: u64, most: Level) {
        for level in [Level::Needless, Level::Minor, Level::Major] {
            let closed: Vec<_> = self.closed().collect();
            for (stream, segment) in closed {
                if level > most || self.fits(bytes) {
                    return;
                }
                if self.streams[stream].segments[segment].compacted >= level {
                    continue;
                }
                if let Err(error) = self.compact_one(stream, segment, level) {
                    // The old one is still there whole.
                    tracing::error!(%error, "journal is full and a segment could not be compacted");
                    return;
                }
            }
        }
    }

    /// Places of all segments but the one that is written.
    fn closed(&self) -> impl Iterator<Item = (usize, usize)> {
        let last = self.streams.len() - 1;
        self.streams.iter().enumerate().flat_map(move |(at, stream)| {
            let written = usize::from(at == last);
            (0..stream.segments.len().saturating_sub(written)).map(move |segment| (at, segment))
        })
    }

    fn compact_one(&mut self, stream: usize, segment: usize, level: Level) -> io::Result<()> {
        let stream = &mut self.streams[stream];
        let (id, acked_upto) = (stream.id.to_string(), stream.acked_upto());
        let segment = &mut stream.segments[segment];
        let bytes = fs::read(&segment.path)?;
        let old = Old { bytes: &bytes, stream_id: &id, first_seq: segment.first_seq, next_seq: segment.next_seq };
        let mut given_up: BTreeMap<FaultClass, u64> = BTreeMap::new();
        let new = rewrite(&old, |seq, fault| {
            let (class, worth) = severity::of(fault);
            let lost = seq > acked_upto && level.gives_up(worth);
            if lost {
                *given_up.entry(class).or_default() += 1;
            }
            (lost || seq <= acked_upto).then_some(class)
        });
        segment.compacted = level;
        if new.len() >= bytes.len() {
            return Ok(());
        }
        let scan = segment::scan_bytes(&new, segment.first_seq);
        if scan.damaged || scan.next_seq != segment.next_seq {
            return Err(io::Error::other("the segment written anew does not hold the same numbers"));
        }
        replace(&self.dir, &segment.path, &new)?;
        (segment.index, segment.bytes, segment.lost_upto) = (scan.index, scan.bytes, scan.lost_upto);
        if !given_up.is_empty() {
            let words: Vec<_> = given_up.iter().map(|(class, count)| format!("{count} {}", record::class_name(*class))).collect();
            tracing::warn!(
                stream.id = id,
                from_seq = segment.first_seq,
                to_seq = segment.next_seq - 1,
                given_up = words.join(", "),
                "journal is full, faults were given up and a gap tells of them"
            );
        }
        for (class, count) in given_up {
            *self.given_up.entry(record::class_name(class)).or_default() += count;
        }
        Ok(())
    }
}

/// Puts a file in another's place: after a crash at any moment one of the two is there, whole.
fn replace(dir: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension(super::load::UNFINISHED);
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(error) = written {
        // It is removed at the next start too.
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    fs::rename(&beside, path)?;
    File::open(dir)?.sync_all()
}
