//! What each event does, and what follows from it.

use std::{rc::Rc, time::Duration};

use gpuheal_proto::{ids::FaultKey, link::v1, time::Timestamp};
use gpuheal_spoke_core::verify::STEP_MARGIN;

use super::{Calling, Event, Place, World};
use crate::{
    api::{Call, Fault},
    body,
    hub::{self, Hub},
    keys,
    oracle::{Acting, marked},
    spoke::{self, Spoke},
    store::Store as _,
};

/// How long a call to the API server may take before it counts as not answered.
const CALL_TIMEOUT: Duration = Duration::from_millis(2000);
/// How often exporters are asked.
const SCRAPE_MS: u64 = 30_000;

impl World {
    pub(super) fn step(&mut self, event: Event) {
        match event {
            Event::HubTick(hub, life) => self.hub_tick(hub, life),
            Event::HubWork(hub, life) => self.hub_work(hub, life),
            Event::HubStart(hub) => self.hub_start(hub),
            Event::Noted(hub, life, sent) => {
                if self.hubs[hub].1 == life && self.hubs[hub].0.is_some() && self.db_away_until <= self.now {
                    self.db.at(self.now);
                    // The memory takes any note.
                    let _ = self.db.sent(&sent);
                }
            }
            Event::SpokeStart(place) => self.spoke_start(place),
            Event::Dies(place, life) => {
                if self.lives(place, life) && !self.peace {
                    self.say(|| format!("{} dies", Self::name(place)));
                    self.spoke_dies(place, false);
                    self.soon(500, 20_000, Event::SpokeStart(place));
                }
            }
            Event::Scrape(cluster, node) => self.scrape(cluster, &node),
            Event::PodGone(cluster, uid) => {
                self.clusters[cluster].api.pod_gone(&uid);
                self.spread(cluster);
            }
            Event::Backup => {
                self.backups.push(self.db.clone());
                if self.backups.len() > 4 {
                    self.backups.remove(0);
                }
                if !self.peace {
                    self.soon(60_000, 240_000, Event::Backup);
                }
            }
            Event::Mended(place) => self.mended(place),
            Event::Trouble(trouble) => self.trouble(trouble),
            Event::Peace => self.make_peace(),
            Event::GoesUp(conn, message) => self.goes_up(conn, message),
            Event::GoesDown(conn, message) => {
                if !self.deferred_conn(conn, || Event::GoesDown(conn, message.clone())) {
                    self.goes_down(conn, message);
                }
            }
            Event::ClosedByHub(conn) => self.closed_by_hub(conn),
            Event::ClosedBySpoke(conn) => self.closed_by_spoke(conn),
            Event::Called(place, life, calling) => self.called(place, life, &calling),
            Event::SpokeTick(place, life) => {
                if self.lives(place, life) && !self.deferred(place, || Event::SpokeTick(place, life)) {
                    self.spoke_tick(place, life);
                }
            }
            Event::Synced(place, life) => {
                if self.lives(place, life) && !self.deferred(place, || Event::Synced(place, life)) {
                    self.with_spoke(place, |spoke| spoke.disk.sync());
                }
            }
            Event::Answered(place, life, token, result) => {
                if self.lives(place, life) && !self.deferred(place, || Event::Answered(place, life, token, result.clone())) {
                    self.with_spoke(place, |spoke| spoke.answered(token, result));
                }
            }
            Event::Watched(place, life, epoch, change) => {
                if self.lives(place, life)
                    && self.slot(place).watch_epoch == epoch
                    && !self.deferred(place, || Event::Watched(place, life, epoch, change.clone()))
                {
                    self.with_spoke(place, |spoke| spoke.watched(&change));
                }
            }
            Event::Listed(place, life) => {
                if self.lives(place, life) && !self.deferred(place, || Event::Listed(place, life)) {
                    self.list(place);
                }
            }
        }
    }

    fn lives(&mut self, place: Place, life: u64) -> bool {
        let slot = self.slot(place);
        slot.life == life && slot.spoke.is_some()
    }

    /// A process that stands still takes nothing: it comes later.
    fn deferred(&mut self, place: Place, event: impl FnOnce() -> Event) -> bool {
        let until = self.slot(place).paused_until;
        let waits = until > self.now;
        if waits {
            self.at(until, event());
        }
        waits
    }

    fn deferred_conn(&mut self, conn: u64, event: impl FnOnce() -> Event) -> bool {
        let Some(place) = self.conns.get(&conn).map(|conn| conn.place) else { return false };
        self.deferred(place, event)
    }

    /// Hands a replica the time, lets it do something, and carries out what it says.
    pub(super) fn with_spoke(&mut self, place: Place, go: impl FnOnce(&mut Spoke)) {
        let now = self.now;
        let slot = self.slot(place);
        let clocks = slot.clocks(now);
        let Some(spoke) = &mut slot.spoke else { return };
        spoke.now = clocks;
        go(spoke);
        let out = spoke.take_out();
        for one in out {
            self.spoke_says(place, one);
        }
    }

    fn spoke_says(&mut self, place: Place, out: spoke::Out) {
        match out {
            spoke::Out::Say(words) => self.say(|| format!("{} {words}", Self::name(place))),
            spoke::Out::Up(message) => {
                if let Some(conn) = self.slot(place).conn {
                    self.send_up(conn, message);
                }
            }
            spoke::Out::Dial => self.dial(place),
            spoke::Out::Hang => self.hang_up(place),
            spoke::Out::Sync => {
                let life = self.slot(place).life;
                let most = if self.peace { 30 } else { 1500 };
                self.soon(5, most, Event::Synced(place, life));
                self.after_find(place);
            }
            spoke::Out::Die => {
                self.say(|| format!("{} ends: the Lease is lost", Self::name(place)));
                self.spoke_dies(place, false);
                self.soon(500, 3000, Event::SpokeStart(place));
            }
            spoke::Out::Call(token, call, by) => self.spoke_calls(place, token, call, by),
        }
    }

    fn spoke_calls(&mut self, place: Place, token: u64, call: Call, by: Option<gpuheal_proto::ids::CommandId>) {
        let now = self.now;
        let slot = &self.clusters[place.0].slots[place.1];
        let holder = &self.clusters[place.0].api.lease.holder;
        let led = holder == slot.replica().as_str() && slot.spoke.as_ref().and_then(Spoke::margin) >= Some(STEP_MARGIN);
        let calling = Rc::new(Calling { token, call, by, sent_at: now, led, contact_at: slot.contact_at });
        let life = slot.life;
        let calm = self.peace;
        let late = !calm && self.chance.once_in(200);
        let arrives = if late { self.chance.ms(2000, 60_000) } else { self.chance.ms(1, if calm { 10 } else { 60 }) };
        self.at(now.after(arrives), Event::Called(place, life, calling));
        self.at(now.after(CALL_TIMEOUT), Event::Answered(place, life, token, Err(Fault::Unanswered)));
    }

    fn called(&mut self, place: Place, life: u64, calling: &Rc<Calling>) {
        let now = self.now;
        let cut = self.slot(place).api_cut_until > now;
        let lost = !self.peace && self.chance.once_in(100);
        // What was sent by a process that has died since still arrives.
        if cut || lost {
            return;
        }
        let cluster = &mut self.clusters[place.0];
        let result = cluster.api.serve(&calling.call, calling.by);
        let effects = std::mem::take(&mut cluster.api.effects);
        for effect in effects {
            self.effect(place, calling, &effect);
        }
        self.spread(place.0);
        let silent = !self.peace && self.chance.once_in(100);
        if !silent {
            let back = self.chance.ms(1, if self.peace { 10 } else { 60 });
            self.at(now.after(back), Event::Answered(place, life, calling.token, result));
        }
    }

    fn effect(&mut self, place: Place, calling: &Calling, effect: &crate::api::Effect) {
        let now = self.now;
        self.say(|| format!("{} {} of {} by {}", Self::name(place), effect.what, effect.node, effect.command));
        let final_word = self.slot(place).spoke.as_ref().and_then(|spoke| spoke.final_words.get(&effect.command).copied());
        // A request on its way when the last word was given is the one that may still land.
        let final_word = final_word.filter(|_| now.since(calling.sent_at) < CALL_TIMEOUT);
        let acting = Acting { sent_at: calling.sent_at, led: calling.led, contact_at: calling.contact_at, final_word };
        let cluster = &self.clusters[place.0];
        self.oracle.acted(&cluster.id, &cluster.api, effect, acting, now);
        if effect.what == "mark" {
            let marks: Vec<_> = self.clusters.iter().map(|cluster| (cluster.id.clone(), marked(&cluster.api))).collect();
            self.oracle.nodes_out_never_exceed_the_budget(&self.db, &marks, now);
        }
        if let Some(uid) = effect.what.strip_prefix("evict ") {
            self.soon(500, 20_000, Event::PodGone(place.0, uid.to_owned()));
        }
        self.after_effect(place);
    }

    /// Watches of a cluster show what changed, each after its own lag.
    pub(super) fn spread(&mut self, cluster: usize) {
        let changes = std::mem::take(&mut self.clusters[cluster].api.changes);
        for change in changes {
            for slot in 0..self.clusters[cluster].slots.len() {
                let place = (cluster, slot);
                let lag = self.chance.ms(1, if self.peace { 20 } else { 300 });
                let now = self.now;
                let slot = self.slot(place);
                if slot.spoke.is_none() || slot.api_cut_until > now {
                    continue;
                }
                slot.watch_at = slot.watch_at.max(now.after(lag));
                let (at, life, epoch) = (slot.watch_at, slot.life, slot.watch_epoch);
                self.at(at, Event::Watched(place, life, epoch, change.clone()));
            }
        }
    }

    fn list(&mut self, place: Place) {
        let now = self.now;
        if self.slot(place).api_cut_until > now {
            return;
        }
        self.slot(place).watch_epoch += 1;
        let api = self.clusters[place.0].api.clone();
        self.with_spoke(place, |spoke| spoke.listed(&api));
    }

    fn spoke_tick(&mut self, place: Place, life: u64) {
        let now = self.now;
        let reached = self.slot(place).api_cut_until <= now;
        self.with_spoke(place, |spoke| {
            if reached {
                spoke.heard();
            }
            spoke.tick();
        });
        if self.lives(place, life) {
            let (least, most) = if self.peace { (1800, 2000) } else { (900, 1100) };
            self.soon(least, most, Event::SpokeTick(place, life));
        }
    }

    fn spoke_start(&mut self, place: Place) {
        let now = self.now;
        let chance = self.chance.fork();
        let slot = self.slot(place);
        if slot.spoke.is_some() {
            return;
        }
        slot.life += 1;
        slot.watch_at = now;
        let (life, clocks) = (slot.life, slot.clocks(now));
        let disk = std::mem::take(&mut slot.disk);
        slot.spoke = Some(Spoke::start(slot.me.clone(), disk, clocks, chance));
        self.say(|| format!("{} starts", Self::name(place)));
        self.soon(100, 2000, Event::Listed(place, life));
        self.soon(100, 1000, Event::SpokeTick(place, life));
    }

    /// The process ends: in order, or as it stands.
    pub(super) fn spoke_dies(&mut self, place: Place, in_order: bool) {
        self.hang_up(place);
        let slot = self.slot(place);
        if let Some(mut spoke) = slot.spoke.take() {
            if in_order {
                spoke.disk.close();
            } else {
                spoke.disk.crash();
            }
            slot.disk = spoke.disk;
        }
    }

    fn hub_start(&mut self, hub: usize) {
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

    fn hub_tick(&mut self, hub: usize, life: u64) {
        if self.hubs[hub].1 != life {
            return;
        }
        let now = self.now;
        let Some(process) = &mut self.hubs[hub].0 else { return };
        process.pulse(now);
        self.after_hub(hub);
        self.hub_work(hub, life);
        let (least, most) = if self.peace { (1900, 2100) } else { (900, 1100) };
        self.soon(least, most, Event::HubTick(hub, life));
    }

    fn hub_work(&mut self, hub: usize, life: u64) {
        if self.hubs[hub].1 != life || self.db_away_until > self.now {
            return;
        }
        self.db.at(self.now);
        let Some(process) = &mut self.hubs[hub].0 else { return };
        process.seen(&mut self.db, self.now);
        let done = process.stages(&mut self.db).and_then(|()| process.deliver(&mut self.db));
        if let Err(error) = done {
            self.oracle.breaks("every decision can be stored", self.now, error.to_string());
        }
        self.say_decisions();
        self.after_hub(hub);
        self.oracle.committed(&self.db, self.now);
        for cluster in &self.clusters {
            self.oracle.silence_closes_nothing(&cluster.id, &self.db, &cluster.bodies, self.now);
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
                    self.say_down(hub, conn, &message);
                    let commands = matches!(*message, v1::attach_response::Message::Command(_));
                    self.send_down(conn, *message);
                    if let Some(place) = self.conns.get(&conn).map(|conn| conn.place).filter(|_| commands) {
                        self.after_command(hub, place);
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

    /// Decisions in the words of the audit.
    fn say_decisions(&mut self) {
        if !self.trace.told() {
            return;
        }
        for (chain, entries) in &self.db.audit {
            let told = self.audit_told.entry(chain.clone()).or_default();
            *told = (*told).min(entries.len());
            for entry in &entries[*told..] {
                let body: serde_json::Value = serde_json::from_str(&entry.fact.body).unwrap_or_default();
                let (from, to, why) = (&body["from"], &body["to"], &body["reasons"][0]);
                let words = match entry.fact.kind.as_str() {
                    "decision" => format!("hub decides about {chain} {}: {from} to {to}, {why}", entry.fact.subject),
                    "command_reported" | "command_corrected" | "command_lapsed" => {
                        format!("hub notes of {chain} {}: {from} to {to}", entry.fact.subject)
                    }
                    "term_raised" => format!("hub raises the term for {chain}"),
                    _ => continue,
                };
                self.trace.say(self.now, || words);
            }
            *told = entries.len();
        }
    }

    fn say_down(&mut self, hub: usize, conn: u64, message: &v1::attach_response::Message) {
        use v1::attach_response::Message as Down;
        let Some(place) = self.conns.get(&conn).map(|conn| conn.place) else { return };
        match message {
            Down::Command(_) => self.say(|| format!("hub-{hub} sends a command to {}", Self::name(place))),
            Down::Cancel(_) => self.say(|| format!("hub-{hub} sends a cancellation to {}", Self::name(place))),
            Down::Resync(_) => self.say(|| format!("hub-{hub} asks {} for everything", Self::name(place))),
            Down::Goaway(goaway) => self.say(|| format!("hub-{hub} sends {} away: {}", Self::name(place), goaway.reason)),
            _ => {}
        }
    }

    /// What an ack says is kept is remembered, to be looked for later; likewise what a Welcome goes on after.
    pub(super) fn ack_arrives(&mut self, place: Place, stream: &str, upto: u64) {
        let now = self.now;
        let cluster = &self.clusters[place.0];
        let Some(spoke) = &cluster.slots[place.1].spoke else { return };
        let known = spoke.disk.acked_upto(stream);
        for seq in known + 1..=upto {
            let key = spoke.disk.fault(stream, seq).and_then(|fault| FaultKey::parse(&fault.fault_key).ok());
            if let Some(key) = key {
                self.oracle.fault_acked(&cluster.id, key, now);
            }
        }
    }

    fn scrape(&mut self, cluster: usize, node: &str) {
        let now = self.now;
        let Some(body) = self.clusters[cluster].bodies.get_mut(node) else { return };
        let (page, start) = (body.page(now), body.start());
        for slot in 0..self.clusters[cluster].slots.len() {
            let place = (cluster, slot);
            if self.slot(place).paused_until <= now {
                self.with_spoke(place, |spoke| spoke.page(node, &start, page.as_deref()));
            }
        }
        self.soon(SCRAPE_MS - 2000, SCRAPE_MS + 2000, Event::Scrape(cluster, node.to_owned()));
    }

    /// Alertmanager tells a replica, and tells another if that one does not answer.
    pub(super) fn alert(&mut self, cluster: usize, node: &str, gpu: u8) {
        let body = body::alert(node, gpu, self.now);
        let first = usize::try_from(self.chance.below(2)).unwrap_or(0);
        for slot in [first, 1 - first] {
            let (place, now) = ((cluster, slot), self.now);
            if self.slot(place).spoke.is_none() || self.slot(place).paused_until > now {
                continue;
            }
            let mut taken = false;
            self.with_spoke(place, |spoke| taken = spoke.alert(&body));
            if taken {
                return;
            }
        }
    }

    /// The moment of truth: everything was given time to come to rest.
    pub(super) fn at_rest(&mut self) {
        let now = self.now;
        self.oracle.every_command_ends(&self.db, now);
        self.oracle.no_acked_fault_is_lost(&self.db, now);
        self.oracle.the_audit_chain_is_whole(&self.db, now);
        self.oracle.what_is_refused_says_so(&self.db, now);
        for at in 0..self.clusters.len() {
            let cluster = &self.clusters[at];
            self.oracle.no_mark_without_an_open_incident(&cluster.id, &cluster.api, &self.db, now);
            self.oracle.every_intent_ends(&cluster.id, &cluster.api, now);
            self.oracle.what_was_done_is_known(&cluster.id, &cluster.api, &self.db, now);
            self.release_leaves_what_was_theirs(at, now);
            self.what_was_journaled_is_sent(at, now);
            self.what_stands_is_known(at, now);
        }
    }

    /// 5. One that was not acked is sent again: in the end nothing waits.
    fn what_was_journaled_is_sent(&mut self, at: usize, now: Timestamp) {
        for slot in &self.clusters[at].slots {
            let waits = slot.spoke.as_ref().map_or(0, |spoke| spoke.disk.unacked());
            if waits > 0 {
                let why = format!("{waits} faults wait in the journal of {}/{}", self.clusters[at].id, slot.replica());
                self.oracle.breaks("what was journaled is sent", now, why);
            }
        }
    }

    /// 5. What still stands is known, whatever was lost in between.
    fn what_stands_is_known(&mut self, at: usize, now: Timestamp) {
        use gpuheal_proto::fault::FaultClass;

        use crate::body::Ill;
        let cluster = &self.clusters[at];
        let Some(rows) = self.db.clusters.get(&cluster.id) else { return };
        let mut unknown = Vec::new();
        for body in cluster.bodies.values() {
            for (gpu, ill, _) in &body.ills {
                let class = match ill {
                    Ill::RowRemap => FaultClass::RowRemap,
                    Ill::Hot => FaultClass::Thermal,
                    Ill::Xid => FaultClass::Xid,
                };
                let known =
                    rows.faults.values().flatten().any(|fault| fault.node().uid.as_str() == body.uid && fault.known.class == class);
                if !known {
                    unknown.push(format!("{:?} of GPU {gpu} of {}/{}", ill, cluster.id, body.name));
                }
            }
        }
        if let Some(first) = unknown.first() {
            self.oracle.breaks("what stands is known", now, first.clone());
        }
    }
}
