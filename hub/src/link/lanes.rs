//! What goes down to one spoke: four bounded lanes, control before cancel before command before bulk, of which bulk gets
//! every sixteenth turn. A message that cannot be sent is set aside at the door and never blocks the rest. Knows for how
//! long nothing was taken of what waits; whoever asks decides what that means.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use futures::Stream;
use gpuheal_proto::{
    limits,
    link::v1::{AttachResponse, attach_response::Message},
};
use prost::Message as _;
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;

use crate::metrics;

/// Which lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Welcome, acks, heartbeats, goaway.
    Control,
    /// Cancellations.
    Cancel,
    /// Commands.
    Command,
    /// Settings, verdicts.
    Bulk,
}

impl Lane {
    const ALL: [Self; 4] = [Self::Control, Self::Cancel, Self::Command, Self::Bulk];

    /// Its name in logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Cancel => "cancel",
            Self::Command => "command",
            Self::Bulk => "bulk",
        }
    }

    /// Messages that may wait. Acks are one per batch and a spoke may have four batches out, so that 64 are plenty;
    /// commands are 2 KiB each as a rule, half a megabyte of them for a spoke that does not read. Bulk is verdicts of 300
    /// bytes and now and then settings of some KiB.
    const fn capacity(self) -> usize {
        match self {
            Self::Control | Self::Cancel => 64,
            Self::Command | Self::Bulk => 256,
        }
    }
}

/// Bulk's share: one turn in this many.
const BULK_TURN: u32 = 16;

/// Why a message was set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The spoke does not read.
    #[error("lane is full")]
    Full,
    /// It could never be sent.
    #[error("message is over the limit of {} bytes", limits::MESSAGE_BYTES_MAX)]
    TooLarge,
    /// The stream is gone.
    #[error("stream is closed")]
    Closed,
}

/// A message that waits. A channel keeps room for 32 of them from its beginning, of four lanes for each of thousands of spokes,
/// and nearly all of it stays empty: boxed, that is a kilobyte and not twenty.
type Waiting = Box<AttachResponse>;

/// When the transport last took a message, or the first of those that wait was put there.
#[derive(Clone, Debug)]
struct Moved(Arc<Mutex<Instant>>);

impl Moved {
    fn now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn ago(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// The hub's end of the lanes.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: [mpsc::Sender<Waiting>; 4],
    moved: Moved,
}

/// The stream's end of them.
pub(super) struct Down {
    lanes: [mpsc::Receiver<Waiting>; 4],
    moved: Moved,
    turns_since_bulk: u32,
    end: Pin<Box<WaitForCancellationFutureOwned>>,
    gone: CancellationToken,
}

/// Lanes that end, control's last words included, once `end` is called.
pub(super) fn lanes(end: &CancellationToken) -> (Lanes, Down) {
    let [a, b, c, d] = Lane::ALL.map(|lane| mpsc::channel(lane.capacity()));
    let moved = Moved(Arc::new(Mutex::new(Instant::now())));
    let down = Down {
        lanes: [a.1, b.1, c.1, d.1],
        moved: moved.clone(),
        turns_since_bulk: 0,
        end: Box::pin(end.clone().cancelled_owned()),
        gone: end.clone(),
    };
    (Lanes { lanes: [a.0, b.0, c.0, d.0], moved }, down)
}

impl Lanes {
    /// Puts a message on a lane if there is room.
    pub(super) fn offer(&self, lane: Lane, message: Message) -> Result<(), Refused> {
        self.begin();
        let outcome = fit(message).and_then(|message| {
            self.lanes[lane as usize].try_send(message).map_err(|error| match error {
                TrySendError::Full(_) => Refused::Full,
                TrySendError::Closed(_) => Refused::Closed,
            })
        });
        count(lane, outcome)
    }

    /// Puts a message on a lane, waiting for room as long as the stream lives.
    pub(super) async fn send(&self, lane: Lane, message: Message) -> Result<(), Refused> {
        self.begin();
        let outcome = match fit(message) {
            Ok(message) => self.lanes[lane as usize].send(message).await.map_err(|_| Refused::Closed),
            Err(refused) => Err(refused),
        };
        count(lane, outcome)
    }

    /// For how long nothing was taken of what waits; none at all waits for nothing.
    pub(super) fn stalled_for(&self) -> Duration {
        if self.empty() { Duration::ZERO } else { self.moved.ago() }
    }

    fn empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.capacity() == lane.max_capacity())
    }

    /// What is put on empty lanes begins to wait now.
    fn begin(&self) {
        if self.empty() {
            self.moved.now();
        }
    }
}

fn fit(message: Message) -> Result<Waiting, Refused> {
    let message = Box::new(AttachResponse { message: Some(message) });
    if message.encoded_len() > limits::MESSAGE_BYTES_MAX { Err(Refused::TooLarge) } else { Ok(message) }
}

fn count(lane: Lane, outcome: Result<(), Refused>) -> Result<(), Refused> {
    let word = match outcome {
        Ok(()) => "queued",
        Err(Refused::Full) => "full",
        Err(Refused::TooLarge) => "too_large",
        Err(Refused::Closed) => "closed",
    };
    metrics::MESSAGES_DOWN.inc([lane.name(), word]);
    outcome
}

impl Down {
    fn take(&mut self, lane: Lane, cx: &mut Context<'_>) -> Option<Waiting> {
        match self.lanes[lane as usize].poll_recv(cx) {
            Poll::Ready(message) => {
                self.moved.now();
                message
            }
            Poll::Pending => None,
        }
    }

    fn pick(&mut self, cx: &mut Context<'_>) -> Option<Waiting> {
        if self.turns_since_bulk + 1 >= BULK_TURN
            && let Some(message) = self.take(Lane::Bulk, cx)
        {
            self.turns_since_bulk = 0;
            return Some(message);
        }
        for lane in Lane::ALL {
            if let Some(message) = self.take(lane, cx) {
                self.turns_since_bulk = if lane == Lane::Bulk { 0 } else { self.turns_since_bulk.saturating_add(1) };
                return Some(message);
            }
        }
        None
    }
}

impl Stream for Down {
    type Item = Result<AttachResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(self.take(Lane::Control, cx).map(|message| Ok(*message)));
        }
        match self.pick(cx) {
            Some(message) => Poll::Ready(Some(Ok(*message))),
            None => Poll::Pending,
        }
    }
}

impl Drop for Down {
    /// The transport gave up the stream: whoever serves it may stop too.
    fn drop(&mut self) {
        self.gone.cancel();
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use gpuheal_proto::link::v1::{Cancel, Command, Goaway, Heartbeat, Settings};

    use super::*;

    fn settings(version: u64) -> Message {
        Message::Settings(Settings { version, ..Settings::default() })
    }

    fn command(n: u8) -> Message {
        Message::Command(Command { envelope: vec![n].into() })
    }

    async fn names(down: &mut Down, count: usize) -> Vec<&'static str> {
        let mut names = vec![];
        for _ in 0..count {
            names.push(match down.next().await.unwrap().unwrap().message.unwrap() {
                Message::Heartbeat(_) => "control",
                Message::Cancel(_) => "cancel",
                Message::Command(_) => "command",
                Message::Settings(_) => "bulk",
                other => panic!("{other:?}"),
            });
        }
        names
    }

    #[tokio::test]
    async fn lanes_are_served_in_their_order() {
        let (lanes, mut down) = lanes(&CancellationToken::new());
        lanes.offer(Lane::Bulk, settings(1)).unwrap();
        lanes.offer(Lane::Command, command(1)).unwrap();
        lanes.offer(Lane::Cancel, Message::Cancel(Cancel::default())).unwrap();
        lanes.offer(Lane::Control, Message::Heartbeat(Heartbeat::default())).unwrap();
        assert_eq!(names(&mut down, 4).await, ["control", "cancel", "command", "bulk"]);
    }

    #[tokio::test]
    async fn bulk_is_never_starved() {
        let (lanes, mut down) = lanes(&CancellationToken::new());
        lanes.offer(Lane::Bulk, settings(1)).unwrap();
        for n in 0..40 {
            lanes.offer(Lane::Command, command(n)).unwrap();
        }
        let names = names(&mut down, 16).await;
        assert_eq!(names.iter().position(|name| *name == "bulk"), Some(15));
    }

    /// Failure table, row 34.
    #[tokio::test]
    async fn a_full_lane_refuses_and_leaves_the_others_open() {
        let (lanes, _down) = lanes(&CancellationToken::new());
        for n in 0..=255 {
            lanes.offer(Lane::Command, command(n)).unwrap();
        }
        assert_eq!(lanes.offer(Lane::Command, command(0)), Err(Refused::Full));
        lanes.offer(Lane::Control, Message::Heartbeat(Heartbeat::default())).unwrap();
    }

    #[tokio::test]
    async fn lanes_stall_while_something_waits_and_nothing_of_it_is_taken() {
        let (pause, (lanes, mut down)) = (Duration::from_millis(20), lanes(&CancellationToken::new()));
        tokio::time::sleep(pause).await;
        assert_eq!(lanes.stalled_for(), Duration::ZERO, "nothing waits");
        let moved = || *lanes.moved.0.lock().unwrap();
        lanes.offer(Lane::Command, command(1)).unwrap();
        let put = moved();
        tokio::time::sleep(pause).await;
        lanes.offer(Lane::Control, Message::Heartbeat(Heartbeat::default())).unwrap();
        assert!(lanes.stalled_for() >= pause && moved() == put, "what comes after it is no progress");
        assert_eq!(names(&mut down, 1).await, ["control"]);
        assert!(moved() >= put + pause, "what is taken is");
        tokio::time::sleep(pause).await;
        assert!(lanes.stalled_for() >= pause);
        assert_eq!(names(&mut down, 1).await, ["command"]);
        assert_eq!(lanes.stalled_for(), Duration::ZERO);
    }

    #[tokio::test]
    async fn what_is_too_large_is_set_aside_at_the_door() {
        let (lanes, _down) = lanes(&CancellationToken::new());
        let huge = Message::Command(Command { envelope: vec![0; limits::MESSAGE_BYTES_MAX].into() });
        assert_eq!(lanes.offer(Lane::Command, huge), Err(Refused::TooLarge));
    }

    #[tokio::test]
    async fn the_last_words_are_said_before_the_stream_ends() {
        let end = CancellationToken::new();
        let (lanes, mut down) = lanes(&end);
        lanes.offer(Lane::Command, command(1)).unwrap();
        lanes.offer(Lane::Control, Message::Goaway(Goaway::default())).unwrap();
        end.cancel();
        assert!(matches!(down.next().await.unwrap().unwrap().message, Some(Message::Goaway(_))));
        assert!(down.next().await.is_none());
    }

    #[tokio::test]
    async fn a_stream_that_the_transport_drops_ends_its_session() {
        let end = CancellationToken::new();
        let (lanes, down) = lanes(&end);
        drop(down);
        assert!(end.is_cancelled());
        assert_eq!(lanes.offer(Lane::Command, command(1)), Err(Refused::Closed));
    }
}
