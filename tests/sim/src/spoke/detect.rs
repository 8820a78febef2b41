//! Stage derive: signals into the shipping detectors, what they find into the journal before anybody hears of it.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use gpuheal_proto::{
    fault::{Asked, NodeRef, Witness},
    ids::{FaultKey, NodeUid},
    link::v1,
    time::Timestamp,
};
use gpuheal_spoke_core::{
    derive::{NoPage, Nodes, Outcome, Source, Standing},
    scrape::{dcgm, webhook},
};

use super::{Cache, Out, Spoke};
/// How often silence is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

struct Lookup<'a>(&'a Cache);

impl Nodes for Lookup<'_> {
    fn named(&self, name: &str) -> Option<NodeRef> {
        self.0.node_ref(name)
    }

    fn at(&self, _address: IpAddr) -> Option<NodeRef> {
        None
    }

    fn of_pod(&self, _name: &str) -> Option<NodeRef> {
        None
    }
}

impl Spoke {
    /// The exporter of a node gave a page, or none.
    pub fn page(&mut self, node: &str, start: &str, text: Option<&str>) {
        let Some(node) = self.cache.node_ref(node) else { return };
        let name = format!("exporter {}", node.name);
        let source = Source { name: &name, start };
        let (settings, wall) = (self.settings.clone(), self.now.wall);
        let page = text.and_then(|text| dcgm::decode(text.as_bytes(), &settings.aliases).ok());
        let before = self.held.gpus(&node.uid);
        if self.reign().is_none() {
            if let Some(page) = page {
                self.held.take_inventory(&node, &page, &settings, wall);
            }
            return;
        }
        let outcome = match page {
            Some(page) => self.held.take_page(&node, &source, &page, &settings, wall),
            None => self.held.take_no_page(&node, &source, NoPage::Unreachable, &settings, wall),
        };
        self.found(outcome);
        if let Some(reign) = self.reign() {
            self.told.asked.insert(node.name.to_string(), reign);
        }
        if self.held.gpus(&node.uid) != before {
            self.told.dirty = true;
            self.state_tick();
        }
    }

    /// Alertmanager's webhook. True: it is answered with 200 once the journal is synced.
    pub fn alert(&mut self, body: &str) -> bool {
        let Ok(body) = webhook::decode(body.as_bytes(), &self.settings.alert_labels) else { return false };
        if !self.cache.listed {
            return false;
        }
        let (settings, wall) = (self.settings.clone(), self.now.wall);
        let outcome = self.held.take_alerts(&body, &Lookup(&self.cache), &settings, wall);
        self.found(outcome);
        true
    }

    pub(super) fn detect_tick(&mut self) {
        let last = self.told.looked_at;
        if self.now.boot.saturating_sub(last) >= LOOK_EVERY {
            self.told.looked_at = self.now.boot;
            let outcome = self.held.tick(&self.settings, self.now.wall);
            self.found(outcome);
        }
        if self.told.owed_by_leader && self.reign().is_some() {
            self.told.owed_by_leader = false;
            self.tell_all_standing();
        }
        self.tell_evidence();
    }

    pub(super) fn forget(&mut self, uid: &str) {
        if let Ok(uid) = NodeUid::parse(uid) {
            self.held.gone(&uid);
            self.disk.append(&[], vec![(uid.to_string(), Vec::new())]);
        }
    }

    fn found(&mut self, outcome: Outcome) {
        let held: Vec<_> = outcome.touched.iter().map(|uid| (uid.to_string(), self.held.node_bytes(uid))).collect();
        for fault in &outcome.faults {
            self.say(format!("finds {} {} on {} ({})", fault.class, fault.code, fault.node.name, fault.onset));
        }
        let faults: Vec<v1::Fault> = outcome.faults.iter().map(v1::Fault::from).collect();
        self.told.found += faults.len() as u64;
        if !faults.is_empty() || !held.is_empty() {
            self.disk.append(&faults, held);
            self.out.push(Out::Sync);
        }
        for evidence in &outcome.evidence {
            self.evidence.insert(evidence.key, evidence.into());
        }
        if !faults.is_empty() {
            self.send_faults();
        }
    }

    /// The hub asks how faults stand that another replica found.
    pub(super) fn take_up(&mut self, asked: Vec<v1::FaultAsked>) {
        if self.reign().is_none() {
            return;
        }
        let (settings, wall) = (self.settings.clone(), self.now.wall);
        for asked in asked.into_iter().filter_map(|asked| Asked::try_from(asked).ok()) {
            let node = self.cache.node_ref(asked.fault.node.name.as_str()).filter(|node| node.uid == asked.fault.node.uid);
            if let Some(node) = node {
                let outcome = self.held.take_up(&node, &[asked], &settings, wall);
                self.found(outcome);
            }
        }
    }

    /// What stands is found anew, of which the hub may know nothing, and how every known fault stands is told.
    pub(super) fn tell_all_standing(&mut self) {
        let leads = self.reign().is_some();
        for uid in self.held.nodes_with_faults() {
            let outcome = self.held.again(&uid, |witness| leads || witness == Witness::Alert);
            self.found(outcome);
        }
        for evidence in self.held.evidence() {
            self.evidence.insert(evidence.key, (&evidence).into());
        }
    }

    pub(super) fn standing(&self, key: &FaultKey) -> Standing {
        self.held.standing(key, &self.settings, self.now.wall)
    }

    /// How the faults of a node stand by its detectors, for whoever checks.
    #[must_use]
    pub fn knows_of(&self, uid: &str) -> Vec<String> {
        let known = NodeUid::parse(uid).map(|uid| self.held.evidence_of(&uid, Timestamp::EPOCH)).unwrap_or_default();
        known.iter().map(|one| format!("{} {:?} {}", one.key.to_string().split_at(8).0, one.state, one.last)).collect()
    }

    /// Faults that its detectors know, for whoever checks.
    #[must_use]
    pub fn knows(&self) -> BTreeSet<FaultKey> {
        self.held.evidence().into_iter().map(|evidence| evidence.key).collect()
    }
}
