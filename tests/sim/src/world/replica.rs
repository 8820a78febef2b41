//! A replica's process: started, handed its time, told what came, and ended. What it puts out is carried out here.

use super::{Event, Place, World};
use crate::spoke::{self, Spoke};

impl World {
    /// Hands a replica the time, lets it do something, and carries out what it says.
    pub(super) fn with_spoke(&mut self, place: Place, go: impl FnOnce(&mut Spoke)) {
        let now = self.now;
        let slot = self.slot(place);
        let clocks = slot.clocks(now);
        let Some(spoke) = &mut slot.spoke else { return };
        spoke.at(clocks);
        go(spoke);
        let out = spoke.take_out();
        for one in out {
            // One that has died in the middle of it says no more.
            if self.slot(place).spoke.is_some() {
                self.spoke_says(place, one);
            }
        }
    }

    pub(super) fn spoke_says(&mut self, place: Place, out: spoke::Out) {
        match out {
            spoke::Out::Word(command, state) => {
                let now = self.now;
                self.oracle.word(&self.clusters[place.0].id, command, state, now);
            }
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

    pub(super) fn list(&mut self, place: Place) {
        let now = self.now;
        if self.slot(place).api_cut_until > now {
            return;
        }
        self.slot(place).watch_epoch += 1;
        let api = self.clusters[place.0].api.clone();
        self.with_spoke(place, |spoke| spoke.listed(&api));
    }

    pub(super) fn spoke_tick(&mut self, place: Place, life: u64) {
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

    pub(super) fn spoke_start(&mut self, place: Place) {
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
}
