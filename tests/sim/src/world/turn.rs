//! What each event does.

use super::{Event, Place, World};
use crate::store::Store as _;

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
            Event::Severed(conn) => self.severed(conn),
            Event::SaysYes(cluster, node) => self.owner_says_yes(cluster, node.as_deref()),
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

    pub(super) fn lives(&mut self, place: Place, life: u64) -> bool {
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
}
