//! A hub's process: started, given its turns, and ended; what it says is carried out here.

use std::time::Duration;

use gpuheal_proto::link::v1::attach_response::Message as Down;

use super::{CALM, Event, START, TROUBLE, World};
use crate::{
    hub::{self, Hub},
    keys,
    mutation::Mutation,
};

/// After so long in peace every hub runs, and has swept what ran out of time while none did.
const SETTLES: Duration = Duration::from_secs(60);

impl World {
    pub(super) fn hub_start(&mut self, hub: usize) {
        if self.hubs[hub].0.is_some() {
            return;
        }
        self.hubs[hub].1 += 1;
        let life = self.hubs[hub].1;
        self.hubs[hub].0 = Some(Hub::start(format!("hub-{hub}"), &keys::pem()));
        self.say(|| format!("hub-{hub} starts"));
        self.soon(0, 1000, Event::HubTick(hub, life));
    }

    pub(super) fn hub_dies(&mut self, hub: usize) {
        if self.hubs[hub].0.take().is_none() {
            return;
        }
        let life = self.hubs[hub].1;
        let conns: Vec<u64> =
            self.conns.iter().filter(|(_, conn)| conn.hub == hub && conn.hub_life == life).map(|(number, _)| *number).collect();
        conns.into_iter().for_each(|number| self.close(number));
    }

    pub(super) fn hub_tick(&mut self, hub: usize, life: u64) {
        if self.hubs[hub].1 != life {
            return;
        }
        let now = self.now;
        let Some(process) = &mut self.hubs[hub].0 else { return };
        process.pulse(now);
        self.after_hub(hub);
        self.hub_work(hub, life);
        if self.now.since(START) > CALM + TROUBLE + SETTLES {
            self.oracle.every_command_ends(&self.db, self.now);
        }
        let (least, most) = if self.peace { (1900, 2100) } else { (900, 1100) };
        self.soon(least, most, Event::HubTick(hub, life));
    }

    pub(super) fn hub_work(&mut self, hub: usize, life: u64) {
        let away = self.db_away_until > self.now && !self.mutations.has(Mutation::ServesWithoutDatabase);
        if self.hubs[hub].1 != life || away {
            return;
        }
        self.db.at(self.now);
        let Some(process) = &mut self.hubs[hub].0 else { return };
        process.seen(&mut self.db, self.now);
        let done = process
            .look(&mut self.db)
            .and_then(|()| process.stages(&mut self.db))
            .and_then(|()| process.deliver(&mut self.db))
            .and_then(|()| process.ask_unheard(&mut self.db, self.now));
        if let Err(error) = done {
            self.oracle.breaks("every decision can be stored", self.now, error.to_string());
        }
        self.say_decisions();
        self.after_hub(hub);
        if self.oracle.committed(&self.db, self.now) {
            self.after_issue();
        }
        for cluster in &self.clusters {
            self.oracle.silence_closes_nothing(&cluster.id, &self.db, &cluster.bodies, self.now);
        }
    }

    /// 9. A hub that does not reach its database knows neither stops nor budgets nor what is done: it commands nothing.
    fn cut_off_from_its_database_a_hub_sends_nothing(&mut self, hub: usize, message: &Down) {
        if self.db_away_until > self.now && matches!(message, Down::Command(_) | Down::Cancel(_)) {
            let why = format!("hub-{hub} commands, and the database is away until {}", self.db_away_until);
            self.oracle.breaks("cut off from its database a hub sends nothing", self.now, why);
        }
    }

    /// Carries out what a hub has said.
    pub(super) fn after_hub(&mut self, hub: usize) {
        let life = self.hubs[hub].1;
        let Some(out) = self.hubs[hub].0.as_mut().map(Hub::take_out) else { return };
        let mut wakes = false;
        for one in out {
            match one {
                hub::Out::Down(conn, message) => {
                    self.cut_off_from_its_database_a_hub_sends_nothing(hub, &message);
                    self.say_down(hub, conn, &message);
                    self.send_down(conn, *message);
                }
                hub::Out::Commanded(conn, command) => {
                    if let Some(place) = self.conns.get(&conn).map(|conn| conn.place) {
                        self.after_command(hub, place, command);
                    }
                }
                hub::Out::Close(conn) => self.close(conn),
                hub::Out::Committed(owner) => {
                    self.oracle.a_session_that_was_taken_over_commits_nothing(&self.db, &owner, self.now);
                    if self.dies_before_the_ack() {
                        self.say(|| format!("hub-{hub} dies before an ack"));
                        self.hub_dies(hub);
                        self.soon(500, 30_000, Event::HubStart(hub));
                        return;
                    }
                }
                hub::Out::Differs(owner) => {
                    let why = format!("the nodes of cluster {} are held otherwise than {} told them", owner.cluster, owner.replica);
                    self.oracle.breaks("what a cluster told of its nodes is held", self.now, why);
                }
                // A hub that has died meanwhile notes nothing.
                hub::Out::Note(due) => {
                    self.oracle.nothing_is_sent_after_its_time(&due, self.now);
                    self.soon(1, 20, Event::Noted(hub, life, due));
                }
                hub::Out::Wake => wakes = true,
                hub::Out::Say(words) => self.say(|| words),
            }
        }
        if wakes {
            self.soon(1, 50, Event::HubWork(hub, life));
        }
    }
}
