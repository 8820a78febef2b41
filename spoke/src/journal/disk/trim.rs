//! What may go: segments, and streams, of which the hub has everything, some time after it said so.

use std::{fs, path::Path, time::Duration};

use gpuheal_proto::ids::StreamId;

use super::{Disk, Segment};

impl Disk {
    /// Faults that are not acked.
    pub(in super::super) fn unacked(&self) -> u64 {
        self.streams.iter().map(|stream| (stream.next_seq() - 1).saturating_sub(stream.acked_upto())).sum()
    }

    /// Takes an ack: numbers up to `upto` are committed at the hub. True when it passed the last of those that are lost:
    /// the hub knows of the gap, and what still stands can be told again behind it.
    pub(in super::super) fn acked(&mut self, stream: &StreamId, upto: u64, now: Duration) -> bool {
        let mut passed = false;
        if let Some(stream) = self.streams.iter_mut().find(|known| known.id == *stream)
            && upto > stream.acked_upto()
        {
            let lost_upto = stream.segments.iter().map(|segment| segment.lost_upto).max().unwrap_or(0);
            passed = (stream.acked_upto() + 1..=upto).contains(&lost_upto);
            // One entry a second is enough to trim by.
            match stream.acked.last_mut() {
                Some(last) if last.1.as_secs() == now.as_secs() => last.0 = upto,
                _ => stream.acked.push((upto, now)),
            }
        }
        self.trim(now, self.limits.keep_acked);
        passed
    }

    /// Removes segments, and streams, of which everything was acked at least `keep` ago.
    pub(super) fn trim(&mut self, now: Duration, keep: Duration) {
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

pub(super) fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "journal segment could not be removed");
    }
}
