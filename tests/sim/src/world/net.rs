//! Streams between replicas and hubs. Messages of one direction keep their order; one that cannot pass waits until the
//! way is free, as TCP would have it, and is lost with the stream. An old stream's messages may arrive after a new one's.

use std::collections::VecDeque;

use gpuheal_hub::link::hello::{Hello, Seen};
use gpuheal_proto::{
    ids::CommandId,
    link::v1::{CommandState, attach_request::Message as Up, attach_response::Message as Down},
    time::Timestamp,
};

use super::{Event, Place, World};

/// A stream.
pub(super) struct Conn {
    pub(super) place: Place,
    pub(super) life: u64,
    pub(super) hub: usize,
    pub(super) hub_life: u64,
    up_at: Timestamp,
    down_at: Timestamp,
    /// This stream alone is stuck until then.
    pub(super) stuck_until: Timestamp,
    /// Messages that wait for the way to be free.
    held: VecDeque<Event>,
    up_open: bool,
    down_open: bool,
}

impl World {
    /// A replica wants a stream: some hub answers, or nobody does.
    pub(super) fn dial(&mut self, place: Place) {
        let now = self.now;
        let hub = usize::try_from(self.chance.below(self.hubs.len() as u64)).unwrap_or(0);
        let (life, cut) = {
            let slot = self.slot(place);
            (slot.life, slot.cut_until > now)
        };
        if self.hubs[hub].0.is_none() || cut {
            return;
        }
        self.conn_number += 1;
        let number = self.conn_number;
        let hub_life = self.hubs[hub].1;
        let conn = Conn {
            place,
            life,
            hub,
            hub_life,
            up_at: now,
            down_at: now,
            stuck_until: now,
            held: VecDeque::new(),
            up_open: true,
            down_open: true,
        };
        self.conns.insert(number, conn);
        let slot = self.slot(place);
        slot.conn = Some(number);
        let clocks = slot.clocks(now);
        let Some(spoke) = &mut slot.spoke else { return };
        spoke.at(clocks);
        let hello = spoke.hello();
        self.send_up(number, Up::Hello(hello));
    }

    pub(super) fn send_up(&mut self, number: u64, message: Up) {
        let latency = self.chance.ms(1, if self.peace { 20 } else { 400 });
        let Some(conn) = self.conns.get_mut(&number).filter(|conn| conn.up_open) else { return };
        conn.up_at = conn.up_at.max(self.now.after(latency));
        let at = conn.up_at;
        let place = conn.place;
        let said = Said::of(&message);
        self.at(at, Event::GoesUp(number, Box::new(message)));
        match said {
            Said::Faults => self.after_batch(number, place),
            Said::Word(command) => self.after_word(number, place, command),
            Said::Else => {}
        }
    }

    /// Both ends see at once that a stream is gone, and what was on it is lost.
    pub(super) fn severed(&mut self, number: u64) {
        let Some(conn) = self.conns.remove(&number) else { return };
        self.say(|| format!("the stream of {} is lost", Self::name(conn.place)));
        self.hub_loses(number, &conn);
        let slot = self.slot(conn.place);
        if slot.life == conn.life && slot.conn == Some(number) {
            self.with_spoke(conn.place, |spoke| spoke.hang_up(None));
        }
    }

    fn hub_loses(&mut self, number: u64, conn: &Conn) {
        let (now, away) = (self.now, self.db_away_until > self.now);
        self.db.at(now);
        let db = &mut self.db;
        if self.hubs[conn.hub].1 == conn.hub_life
            && let Some(process) = &mut self.hubs[conn.hub].0
        {
            process.closed(number, (!away).then_some(db));
        }
    }

    pub(super) fn send_down(&mut self, number: u64, message: Down) {
        let latency = self.chance.ms(1, if self.peace { 20 } else { 400 });
        let Some(conn) = self.conns.get_mut(&number).filter(|conn| conn.down_open) else { return };
        conn.down_at = conn.down_at.max(self.now.after(latency));
        let at = conn.down_at;
        self.at(at, Event::GoesDown(number, Box::new(message)));
    }

    /// The replica's end is closed: the hub hears of it after all that was sent.
    pub(super) fn hang_up(&mut self, place: Place) {
        let Some(number) = self.slot(place).conn.take() else { return };
        let Some(conn) = self.conns.get_mut(&number) else { return };
        conn.up_open = false;
        conn.down_open = false;
        let at = conn.up_at.max(self.now);
        self.at(at, Event::ClosedBySpoke(number));
    }

    /// The hub's end is closed: likewise.
    pub(super) fn close(&mut self, number: u64) {
        let Some(conn) = self.conns.get_mut(&number) else { return };
        if !conn.down_open {
            return;
        }
        conn.down_open = false;
        let at = conn.down_at.max(self.now);
        self.at(at, Event::ClosedByHub(number));
    }

    /// Whether the way is free now; if not, the event waits its turn.
    pub(super) fn passes(&mut self, number: u64, event: &Event) -> bool {
        let now = self.now;
        let Some(place) = self.conns.get(&number).map(|conn| conn.place) else { return false };
        let cut = self.slot(place).cut_until > now;
        let Some(conn) = self.conns.get_mut(&number) else { return false };
        if cut || conn.stuck_until > now || !conn.held.is_empty() {
            conn.held.push_back(event.clone());
            return false;
        }
        true
    }

    /// The way is free again: what waited goes on, in order.
    pub(super) fn flow(&mut self, place: Place) {
        let now = self.now;
        let free = |conn: &Conn| conn.place == place && conn.stuck_until <= now;
        let numbers: Vec<u64> = self.conns.iter().filter(|(_, conn)| free(conn)).map(|(number, _)| *number).collect();
        for number in numbers {
            let Some(conn) = self.conns.get_mut(&number) else { continue };
            let held = std::mem::take(&mut conn.held);
            conn.up_at = conn.up_at.max(now);
            conn.down_at = conn.down_at.max(now);
            for event in held {
                self.at(now, event);
            }
        }
    }

    pub(super) fn goes_up(&mut self, number: u64, message: Box<Up>) {
        let event = Event::GoesUp(number, message);
        if !self.passes(number, &event) {
            return;
        }
        let Event::GoesUp(_, message) = event else { return };
        let Some(conn) = self.conns.get(&number) else { return };
        let (hub, hub_life, cluster) = (conn.hub, conn.hub_life, self.clusters[conn.place.0].id.clone());
        if self.hubs[hub].1 != hub_life {
            return;
        }
        let (now, away) = (self.now, self.db_away_until > self.now);
        self.db.at(now);
        let Some(process) = &mut self.hubs[hub].0 else { return };
        let says = match &*message {
            Up::Hello(hello) => Hello::read(hello.clone(), &cluster, std::time::Instant::now()).ok().map(|hello| hello.seen),
            Up::Heartbeat(beat) if beat.lease_transitions.is_some() => Some(Seen::told(beat)),
            _ => None,
        };
        if let Some(says) = says.filter(|_| !away) {
            self.oracle.hello_arrives(&self.db, &cluster, says, now);
        }
        let db = &mut self.db;
        process.up(number, &cluster, *message, (!away).then_some(db), now);
        self.after_hub(hub);
    }

    pub(super) fn goes_down(&mut self, number: u64, message: Box<Down>) {
        let event = Event::GoesDown(number, message);
        if !self.passes(number, &event) {
            return;
        }
        let Event::GoesDown(_, message) = event else { return };
        let Some((place, life)) = self.conns.get(&number).map(|conn| (conn.place, conn.life)) else { return };
        let now = self.now;
        let slot = self.slot(place);
        if slot.life != life || slot.conn != Some(number) {
            return;
        }
        slot.contact_at = now;
        match &*message {
            Down::FaultAck(ack) => self.ack_arrives(place, &ack.stream_id, ack.persisted_upto),
            Down::Welcome(welcome) => {
                welcome.resume.iter().for_each(|point| self.ack_arrives(place, &point.stream_id, point.from_seq.saturating_sub(1)));
            }
            _ => {}
        }
        let acked = matches!(*message, Down::FaultAck(_));
        self.with_spoke(place, |spoke| spoke.down(*message));
        if acked {
            self.after_ack(place);
        }
    }

    pub(super) fn closed_by_hub(&mut self, number: u64) {
        let event = Event::ClosedByHub(number);
        if !self.passes(number, &event) {
            return;
        }
        let Some((place, life)) = self.conns.get(&number).map(|conn| (conn.place, conn.life)) else { return };
        let slot = self.slot(place);
        if slot.life != life || slot.conn != Some(number) {
            return;
        }
        self.with_spoke(place, |spoke| spoke.hang_up(None));
    }

    pub(super) fn closed_by_spoke(&mut self, number: u64) {
        let event = Event::ClosedBySpoke(number);
        if !self.passes(number, &event) {
            return;
        }
        if let Some(conn) = self.conns.remove(&number) {
            self.hub_loses(number, &conn);
        }
    }
}

/// What of a message is aimed at.
enum Said {
    Faults,
    /// The last word about a command.
    Word(Option<CommandId>),
    Else,
}

impl Said {
    fn of(message: &Up) -> Self {
        match message {
            Up::FaultBatch(_) => Self::Faults,
            Up::CommandStatus(status) if is_last(status.state()) => Self::Word(CommandId::parse(&status.command_id).ok()),
            _ => Self::Else,
        }
    }
}

const fn is_last(state: CommandState) -> bool {
    matches!(
        state,
        CommandState::Succeeded | CommandState::Failed | CommandState::Unknown | CommandState::Refused | CommandState::Cancelled
    )
}
