//! Faults that are aimed: at the moments where one guard alone stands between a loss and its harm. Chance alone would
//! hardly ever hit them. Each seed draws how often each kind strikes, from never to every third time, so that some runs
//! are nothing but one kind, and most are a mixture.

use std::time::Duration;

use gpuheal_proto::{ids::CommandId, time::Timestamp};

use super::{Event, Place, World, chaos::Trouble};
use crate::chance::Chance;

/// How often, where it is not never: once in so many of its moments.
const ODDS: [u64; 4] = [40, 12, 6, 3];

/// What is struck at its moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// Right after an effect, before anybody was told of it.
    Effect,
    /// Right after a mark: nobody hears of it until the hub has given its command up.
    Unheard,
    /// What was found is not on the disk yet.
    Find,
    /// What was found was acked, and is not on the disk yet.
    Ack,
    /// Faults are on a stream whose process then starts anew.
    Batch,
    /// A command was put on a stream, and that is not noted yet.
    Command,
    /// A command was put on a stream that then leads nowhere until its time to be delivered is over.
    Undelivered,
    /// While a command is on its way, the owner says no.
    Refusal,
    /// An intent was left, and nothing was done yet.
    Intent,
    /// The last word about a command is on a stream.
    Word,
    /// A node was read, and is about to be patched.
    Patch,
    /// A batch is committed, and not acked yet.
    Commit,
    /// A command was issued that the last backup does not know.
    Issue,
}

/// How often each of them strikes in this run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Odds([u64; 13]);

impl Odds {
    pub(super) fn drawn(chance: &mut Chance) -> Self {
        let mut odds = [0; 13];
        for one in &mut odds {
            *one = if chance.once_in(4) { 0 } else { *chance.pick(&ODDS) };
        }
        Self(odds)
    }
}

impl World {
    /// Whether this moment is one.
    fn strikes(&mut self, aim: Aim) -> bool {
        let of = self.odds.0[aim as usize];
        !self.peace && of > 0 && self.chance.once_in(of)
    }

    fn dies_now(&mut self, place: Place, least_ms: u64, most_ms: u64) {
        self.say(|| format!("{} dies right then", Self::name(place)));
        self.spoke_dies(place, false);
        self.soon(least_ms, most_ms, Event::SpokeStart(place));
    }

    fn hub_dies_now(&mut self, hub: usize) {
        self.say(|| format!("hub-{hub} dies right then"));
        self.hub_dies(hub);
        self.soon(500, 30_000, Event::HubStart(hub));
    }

    fn cluster_cut(&mut self, cluster: usize, until: Timestamp) {
        for slot in 0..self.clusters[cluster].slots.len() {
            self.cut_until((cluster, slot), until);
        }
    }

    fn cluster_down(&mut self, cluster: usize, until: Timestamp) {
        for slot in 0..self.clusters[cluster].slots.len() {
            self.spoke_dies((cluster, slot), false);
            let after = self.chance.ms(0, 5_000);
            self.at(until.after(after), Event::SpokeStart((cluster, slot)));
        }
    }

    pub(super) fn after_effect(&mut self, place: Place, command: CommandId, what: &str) {
        if what == "mark"
            && self.strikes(Aim::Unheard)
            && let Some(times) = self.oracle.times(command)
        {
            // Given up a minute after `start_by`, and what was begun a minute after `finish_by`.
            let given_up = if self.chance.once_in(2) { times.start_by } else { times.finish_by };
            let until = given_up.after(Duration::from_secs(61)).after(self.chance.ms(0, 120_000));
            self.say(|| format!("nobody hears of c{}", place.0));
            return self.cluster_cut(place.0, until);
        }
        if !self.strikes(Aim::Effect) {
            return;
        }
        match self.chance.below(3) {
            0 => self.dies_now(place, 500, 20_000),
            1 => {
                let span = self.chance.ms(1_000, 40_000);
                self.slot(place).paused_until = self.now.after(span);
            }
            _ => self.cut(place),
        }
    }

    pub(super) fn after_find(&mut self, place: Place) {
        if self.strikes(Aim::Find) {
            let (life, at) = (self.slot(place).life, self.chance.ms(0, 1500));
            self.at(self.now.after(at), Event::Dies(place, life));
        }
    }

    /// The process that had it acked knows nothing of it when it is back; something else soon breaks.
    pub(super) fn after_ack(&mut self, place: Place) {
        let unsynced = self.slot(place).spoke.as_ref().is_some_and(|spoke| spoke.disk.unsynced());
        if unsynced && self.strikes(Aim::Ack) {
            self.dies_now(place, 100, 3_000);
            self.soon(0, 10_000, Event::Trouble(Trouble::Illness));
        }
    }

    /// The way to the hubs is free for the next process, while the old stream still holds what the last one said.
    pub(super) fn after_batch(&mut self, number: u64, place: Place) {
        if !self.strikes(Aim::Batch) {
            return;
        }
        let until = self.now.after(self.chance.ms(3_000, 20_000));
        if let Some(conn) = self.conns.get_mut(&number) {
            conn.stuck_until = conn.stuck_until.max(until);
        }
        self.at(until, Event::Mended(place));
        self.dies_now(place, 100, 2_000);
    }

    /// Between a commit and its ack the hub may die.
    pub(super) fn dies_before_the_ack(&mut self) -> bool {
        self.strikes(Aim::Commit)
    }

    pub(super) fn after_command(&mut self, hub: usize, place: Place, command: CommandId) {
        if self.strikes(Aim::Refusal) {
            return self.owner_says_no(place.0, command);
        }
        if self.strikes(Aim::Undelivered)
            && let Some(times) = self.oracle.times(command).filter(|times| times.deliver_by > self.now)
        {
            let until = times.deliver_by.after(self.chance.ms(1_000, 100_000));
            // A release may wait for half a day: that is no cut of a run.
            if until.since(self.now) < Duration::from_secs(600) {
                return self.cluster_cut(place.0, until);
            }
        }
        if !self.strikes(Aim::Command) {
            return;
        }
        match self.chance.below(4) {
            0 => self.hub_dies_now(hub),
            1 => self.dies_now(place, 500, 20_000),
            2 => self.slot(place).paused_until = self.now.after(Duration::from_secs(20)),
            _ => self.cut(place),
        }
    }

    /// The node opts out, or the cluster is stopped: known here before the command comes, and at the hub only after.
    fn owner_says_no(&mut self, cluster: usize, command: CommandId) {
        let node = self.oracle.node(command).map(str::to_owned);
        self.soon(5_000, 120_000, Event::SaysYes(cluster, node.clone()));
        match node.filter(|_| self.chance.once_in(2)) {
            Some(node) => {
                self.say(|| format!("c{cluster}/{node} opts out right then"));
                self.opts_out(cluster, &node, true);
            }
            None => {
                self.say(|| format!("c{cluster} is stopped right then"));
                self.clusters[cluster].api.configure("ceiling: {stop: true}\n");
                self.spread(cluster);
            }
        }
    }

    /// An intent is on record, and its first effect is still to come.
    pub(super) fn after_intent(&mut self, place: Place, command: CommandId) {
        if !self.strikes(Aim::Intent) {
            return;
        }
        let due = self.oracle.times(command).map(|times| times.start_by).filter(|by| *by > self.now);
        match (self.chance.below(3), due) {
            // All are away until it may not begin any more.
            (0, Some(by)) if by.since(self.now) < Duration::from_secs(600) => {
                self.say(|| format!("all of c{} die right then", place.0));
                let until = by.after(self.chance.ms(0, 60_000));
                self.cluster_down(place.0, until);
            }
            // The other one leads before this one is back.
            (1, _) => self.dies_now(place, 20_000, 60_000),
            _ => self.dies_now(place, 500, 20_000),
        }
    }

    /// The stream is lost with the last word about a command.
    pub(super) fn after_word(&mut self, number: u64, place: Place, command: Option<CommandId>) {
        if !self.strikes(Aim::Word) {
            return;
        }
        self.at(self.now, Event::Severed(number));
        // Before it is said again the reason may be gone.
        if self.chance.once_in(2) {
            let node = command.and_then(|id| self.oracle.node(id)).map(str::to_owned);
            self.owner_says_yes(place.0, node.as_deref());
        }
    }

    /// The node opts in, and the cluster goes on.
    pub(super) fn owner_says_yes(&mut self, cluster: usize, node: Option<&str>) {
        if let Some(node) = node {
            self.opts_out(cluster, node, false);
        }
        if self.clusters[cluster].api.config.contains("stop") {
            self.clusters[cluster].api.configure("");
            self.spread(cluster);
        }
    }

    /// Somebody else writes to the node between our reading and our writing.
    pub(super) fn before_patch(&mut self, place: Place, node: &str) {
        if !self.strikes(Aim::Patch) {
            return;
        }
        let key = format!("example.com/hand-{}", self.chance.below(1000));
        let on = self.chance.once_in(2);
        self.say(|| format!("somebody writes to c{}/{node} right then", place.0));
        match self.chance.below(3) {
            0 => self.taints(place.0, node, &key),
            1 => self.labels(place.0, node, &key),
            _ => self.cordons(place.0, node, on),
        }
    }

    /// The hub's machine is lost with the last seconds of its database.
    pub(super) fn after_issue(&mut self) {
        if self.strikes(Aim::Issue) && self.chance.once_in(5) {
            self.soon(0, 5_000, Event::Trouble(Trouble::DbRestored));
        }
    }
}
