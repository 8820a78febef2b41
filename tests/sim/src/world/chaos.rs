//! What goes wrong, and when: drawn from the seed for twenty minutes, then nothing more. Then everything is mended, and
//! what remains is the system's own affair.

use std::time::Duration;

use gpuheal_proto::time::Timestamp;

use super::{Event, Place, World};
use crate::{
    body::{GPUS, ILLS, Ill},
    store::Store as _,
};

/// One misfortune.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A GPU breaks.
    Illness,
    /// A node is repaired, or cools.
    Repair,
    /// A node reboots.
    Reboot,
    /// An exporter falls silent.
    Silence,
    /// A replica dies.
    SpokeDies,
    /// A replica is told to end.
    SpokeEnds,
    /// A replica loses its disk with its process.
    DiskLost,
    /// All replicas of a cluster are down for minutes.
    AllDown,
    /// A hub dies.
    HubDies,
    /// Database away.
    DbAway,
    /// Database restored from an older backup.
    DbRestored,
    /// A replica does not reach the hubs.
    Cut,
    /// One stream is stuck while the next one is free: what was sent on it comes after what is sent anew.
    HalfOpen,
    /// A replica does not reach the API server.
    ApiCut,
    /// A replica stands still.
    Pause,
    /// A wall clock jumps.
    WallJumps,
    /// A person cordons or uncordons.
    Cordon,
    /// Somebody taints or labels a node for their own reasons.
    Foreign,
    /// A person takes our mark off.
    Unmark,
    /// A node opts out or in.
    OptOut,
    /// A node is replaced under its name.
    Replace,
    /// The fleet is stopped, or goes on.
    FleetStop,
    /// The cluster's owner stops it, or lets it go on.
    ClusterStop,
    /// A pod starts somewhere.
    PodStarts,
    /// Somebody on the way sends what he has no key for.
    Forgery,
}

/// How often each happens, relative to the others.
const WEIGHTS: [(Trouble, u64); 25] = [
    (Trouble::Illness, 40),
    (Trouble::Repair, 16),
    (Trouble::Reboot, 4),
    (Trouble::Silence, 4),
    (Trouble::SpokeDies, 14),
    (Trouble::SpokeEnds, 4),
    (Trouble::DiskLost, 1),
    (Trouble::AllDown, 3),
    (Trouble::HubDies, 8),
    (Trouble::DbAway, 3),
    (Trouble::DbRestored, 1),
    (Trouble::Cut, 10),
    (Trouble::HalfOpen, 8),
    (Trouble::ApiCut, 6),
    (Trouble::Pause, 6),
    (Trouble::WallJumps, 3),
    (Trouble::Cordon, 6),
    (Trouble::Foreign, 3),
    (Trouble::Unmark, 3),
    (Trouble::OptOut, 3),
    (Trouble::Replace, 2),
    (Trouble::FleetStop, 2),
    (Trouble::ClusterStop, 2),
    (Trouble::PodStarts, 4),
    (Trouble::Forgery, 4),
];

impl World {
    pub(super) fn plan_trouble(&mut self, from: Timestamp, until: Timestamp) {
        let total: u64 = WEIGHTS.iter().map(|(_, weight)| weight).sum();
        // Some runs are calm, some are wild.
        let pause_ms = *self.chance.pick(&[5_000, 8_000, 15_000, 30_000]);
        let mut at = from;
        while at < until {
            let mut drawn = self.chance.below(total);
            let trouble = WEIGHTS.iter().find(|(_, weight)| {
                let hit = drawn < *weight;
                drawn = drawn.saturating_sub(*weight);
                hit
            });
            if let Some((trouble, _)) = trouble {
                self.at(at, Event::Trouble(*trouble));
            }
            at = at.after(self.chance.ms(100, 2 * pause_ms));
        }
    }

    fn any_place(&mut self) -> Place {
        let cluster = usize::try_from(self.chance.below(self.clusters.len() as u64)).unwrap_or(0);
        let slot = usize::try_from(self.chance.below(self.clusters[cluster].slots.len() as u64)).unwrap_or(0);
        (cluster, slot)
    }

    fn any_node(&mut self) -> (usize, String) {
        let cluster = self.any_place().0;
        let names: Vec<String> = self.clusters[cluster].bodies.keys().cloned().collect();
        (cluster, self.chance.pick(&names).clone())
    }

    pub(super) fn trouble(&mut self, trouble: Trouble) {
        if self.peace {
            return;
        }
        match trouble {
            Trouble::Illness | Trouble::Repair | Trouble::Reboot | Trouble::Silence | Trouble::Replace => self.machine(trouble),
            Trouble::Cordon | Trouble::Foreign | Trouble::Unmark | Trouble::OptOut | Trouble::PodStarts => self.hand(trouble),
            Trouble::SpokeDies
            | Trouble::SpokeEnds
            | Trouble::DiskLost
            | Trouble::AllDown
            | Trouble::Cut
            | Trouble::HalfOpen
            | Trouble::ApiCut
            | Trouble::Pause
            | Trouble::WallJumps
            | Trouble::Forgery => self.replica(trouble),
            Trouble::HubDies | Trouble::DbAway | Trouble::DbRestored | Trouble::FleetStop | Trouble::ClusterStop => {
                self.center(trouble);
            }
        }
    }

    fn machine(&mut self, trouble: Trouble) {
        let now = self.now;
        let (cluster, node) = self.any_node();
        self.say(|| format!("{trouble:?} of c{cluster}/{node}"));
        let gpu = u8::try_from(self.chance.below(u64::from(GPUS))).unwrap_or(0);
        let ill = *self.chance.pick(&ILLS);
        let silence = self.chance.ms(30_000, 600_000);
        let Some(body) = self.clusters[cluster].bodies.get_mut(&node) else { return };
        match trouble {
            Trouble::Illness => {
                body.falls_ill(gpu, ill, now);
                self.say(|| format!("{ill:?} of GPU {gpu} of c{cluster}/{node}"));
                if ill == Ill::Xid {
                    self.alert(cluster, &node, gpu);
                }
            }
            Trouble::Repair if body.ills.iter().any(|(_, ill, _)| *ill != Ill::Hot) => self.reboot(cluster, &node, true),
            Trouble::Repair => body.cools(now),
            Trouble::Reboot => self.reboot(cluster, &node, false),
            Trouble::Silence => body.silent_until = now.after(silence),
            Trouble::Replace => {
                let mut chance = self.chance.fork();
                let place = &mut self.clusters[cluster];
                place.api.node_gone(&node);
                place.joins(&node, &mut chance);
                self.spread(cluster);
            }
            _ => {}
        }
    }

    pub(super) fn reboot(&mut self, cluster: usize, node: &str, repaired: bool) {
        let now = self.now;
        let place = &mut self.clusters[cluster];
        let Some(body) = place.bodies.get_mut(node) else { return };
        body.boots(repaired, now);
        let boot_id = body.boot_id();
        place.api.by_hand(node, "kubelet", |json| json["status"]["nodeInfo"]["bootID"] = serde_json::json!(boot_id));
        self.spread(cluster);
    }

    fn hand(&mut self, trouble: Trouble) {
        let (cluster, node) = self.any_node();
        let on = self.chance.once_in(2);
        self.say(|| format!("{trouble:?} of c{cluster}/{node}: {on}"));
        match trouble {
            Trouble::Cordon => self.cordons(cluster, &node, on),
            Trouble::Foreign if on => self.taints(cluster, &node, "example.com/owner"),
            Trouble::Foreign => self.labels(cluster, &node, "example.com/owner"),
            Trouble::Unmark => {
                // A person sees a mark and acts on it.
                let marked = self.clusters[cluster].api.nodes.values().find(|node| node.facts.marked());
                if let Some(name) = marked.map(|node| node.facts.name.clone()) {
                    self.unmarks(cluster, &name, on);
                }
            }
            Trouble::OptOut => self.opts_out(cluster, &node, on),
            _ => {
                let now = self.now;
                self.clusters[cluster].pod_on(&node, now);
                self.spread(cluster);
            }
        }
    }

    fn replica(&mut self, trouble: Trouble) {
        let place = self.any_place();
        let now = self.now;
        self.say(|| format!("{trouble:?} of {}", Self::name(place)));
        match trouble {
            Trouble::SpokeDies | Trouble::SpokeEnds | Trouble::DiskLost => {
                self.spoke_dies(place, trouble == Trouble::SpokeEnds);
                if trouble == Trouble::DiskLost {
                    self.slot(place).disk.lose();
                }
                let (least, most) = *self.chance.pick(&[(500, 3000), (10_000, 60_000)]);
                self.soon(least, most, Event::SpokeStart(place));
            }
            Trouble::AllDown => {
                for slot in 0..self.clusters[place.0].slots.len() {
                    self.spoke_dies((place.0, slot), false);
                    self.soon(60_000, 500_000, Event::SpokeStart((place.0, slot)));
                }
            }
            Trouble::Cut => self.cut(place),
            Trouble::Forgery => self.forge(place),
            Trouble::HalfOpen => self.half_open(place),
            Trouble::ApiCut => {
                let span = *self.chance.pick(&[3_000, 12_000, 40_000, 350_000]);
                let span = Duration::from_millis(span);
                self.slot(place).api_cut_until = now.after(span);
                let life = self.slot(place).life;
                self.at(now.after(span), Event::Listed(place, life));
            }
            Trouble::Pause => {
                let span = Duration::from_secs(*self.chance.pick(&[2, 8, 20, 60, 330]));
                self.slot(place).paused_until = now.after(span);
            }
            _ => {
                let off = i64::try_from(self.chance.below(7_200_000)).unwrap_or(0) - 3_600_000;
                self.slot(place).wall_off_ms = off;
            }
        }
    }

    fn center(&mut self, trouble: Trouble) {
        self.say(|| format!("{trouble:?}"));
        let now = self.now;
        match trouble {
            Trouble::HubDies => {
                let hub = usize::try_from(self.chance.below(self.hubs.len() as u64)).unwrap_or(0);
                self.hub_dies(hub);
                self.soon(500, 30_000, Event::HubStart(hub));
            }
            Trouble::DbAway => {
                self.db_away_until = now.after(self.chance.ms(1_000, 30_000));
                if self.chance.once_in(2) {
                    self.db.restarts();
                }
            }
            Trouble::DbRestored => self.restore(),
            Trouble::FleetStop => {
                self.db.at(now);
                let stop = self.chance.once_in(2).then_some("a person stops the fleet");
                // The memory takes any stop.
                let _ = self.db.stop(stop);
            }
            _ => {
                let cluster = self.any_place().0;
                let yaml = if self.chance.once_in(2) { "ceiling: {stop: true}\n" } else { "" };
                self.clusters[cluster].api.configure(yaml);
                self.spread(cluster);
            }
        }
    }

    /// The database comes back as it was. Whoever restores it may raise its term, or may not; may start its server anew, as
    /// nearly everybody must, or load what was saved into one that runs, the hubs being stopped; may start the hubs anew, or
    /// let them and their sessions live on.
    fn restore(&mut self) {
        let Some(backup) = self.backups.pop() else { return };
        let (made, procedure, in_place) = (backup.now, self.chance.once_in(4), self.chance.once_in(4));
        let run = self.db.run;
        self.db = backup;
        self.db.at(self.now);
        self.db.run = if in_place { run } else { run + 1 };
        if procedure {
            self.db.raise_term();
        }
        self.oracle.is_restored(made, &self.db, in_place && !procedure, self.now);
        if in_place || self.chance.once_in(2) {
            for hub in 0..self.hubs.len() {
                self.hub_dies(hub);
                self.soon(500, 5_000, Event::HubStart(hub));
            }
        }
        self.say(|| {
            let how = if in_place { "in its running server" } else { "in a server started anew" };
            format!("the database is as it was at {made}, {how}, its term {}", if procedure { "raised" } else { "not raised" })
        });
    }

    /// Faults stop: everybody runs, every way is free, every machine is mended but for what this seed leaves broken.
    pub(super) fn make_peace(&mut self) {
        self.peace = true;
        let now = self.now;
        self.say(|| "peace".to_owned());
        self.db_away_until = now;
        self.db.at(now);
        let _ = self.db.stop(None);
        for hub in 0..self.hubs.len() {
            self.soon(0, 1000, Event::HubStart(hub));
        }
        let mend = !self.chance.once_in(3);
        for cluster in 0..self.clusters.len() {
            if self.clusters[cluster].api.config.contains("stop") {
                self.clusters[cluster].api.configure("");
            }
            let names: Vec<String> = self.clusters[cluster].bodies.keys().cloned().collect();
            for name in names {
                if let Some(body) = self.clusters[cluster].bodies.get_mut(&name) {
                    body.silent_until = now;
                    let ill = !body.ills.is_empty();
                    body.cools(now);
                    if mend && ill {
                        self.reboot(cluster, &name, true);
                    }
                }
                self.opts_out(cluster, &name, false);
            }
            for slot in 0..self.clusters[cluster].slots.len() {
                let place = (cluster, slot);
                let slot = self.slot(place);
                (slot.cut_until, slot.api_cut_until, slot.paused_until) = (now, now, now);
                let life = slot.life;
                self.conns.values_mut().filter(|conn| conn.place == place).for_each(|conn| conn.stuck_until = now);
                self.flow(place);
                self.soon(0, 100, Event::Listed(place, life));
                self.soon(0, 1000, Event::SpokeStart(place));
            }
            self.spread(cluster);
        }
    }

    pub(super) fn half_open(&mut self, place: Place) {
        let until = self.now.after(self.chance.ms(5_000, 40_000));
        let Some(number) = self.slot(place).conn else { return };
        if let Some(conn) = self.conns.get_mut(&number) {
            conn.stuck_until = until;
        }
        self.at(until, Event::Mended(place));
        // Its process soon starts anew and attaches again, while the old stream still holds what the old one said.
        if self.chance.once_in(2) {
            let (life, after) = (self.slot(place).life, self.chance.ms(0, 20_000));
            self.at(self.now.after(after), Event::Dies(place, life));
        }
    }

    pub(super) fn cut(&mut self, place: Place) {
        let span = self.chance.ms(5_000, 400_000);
        self.cut_until(place, self.now.after(span));
    }

    pub(super) fn cut_until(&mut self, place: Place, until: Timestamp) {
        self.say(|| format!("{} is cut off", Self::name(place)));
        let slot = self.slot(place);
        slot.cut_until = slot.cut_until.max(until);
        let until = slot.cut_until;
        self.at(until, Event::Mended(place));
    }

    pub(super) fn mended(&mut self, place: Place) {
        let now = self.now;
        if self.slot(place).cut_until <= now {
            self.flow(place);
        }
    }
}
