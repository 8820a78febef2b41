//! How a world is laid out: its policy, its clusters, their machines and pods, each drawn from the seed.

use std::{rc::Rc, time::Duration};

use gpuheal_proto::{
    ids::{ClusterId, ReplicaId},
    time::Timestamp,
};
use gpuheal_spoke_core::verify::Trust;

use super::{START, Site, Slot, hands::Theirs};
use crate::{
    api::{self, Api, Pod},
    body::{Body, GPUS},
    chance::Chance,
    journal::Journal,
    mutation::Mutations,
    spoke::Identity,
};

/// Nodes of a cluster.
const NODES: std::ops::RangeInclusive<u64> = 4..=6;

/// A policy that heals, with short spans, so that a whole course fits into half an hour.
pub(super) fn policy(chance: &mut Chance) -> String {
    let cluster = *chance.pick(&[20, 34, 50, 100]);
    let fleet = *chance.pick(&[20, 34, 50, 100]);
    let cordon = chance.once_in(2);
    let mode = *chance.pick(&["heal", "heal", "heal", "mark"]);
    let breaker = *chance.pick(&[1000, 1000, 3]);
    format!(
        "apiVersion: gpu-selfhealing.io/v1\nkind: FleetPolicy\nmetadata: {{name: sim}}\nspec:\n  mode: {mode}\n  cooldown: 2m\n\
         \x20 windows: {{observation: 1m, merge: 1m, nodeYouth: 1m}}\n  recovery: {{soak: 4m}}\n\
         \x20 budgets:\n    fleet: {{percent: {fleet}}}\n    cluster: {{percent: {cluster}}}\n\
         \x20 breaker: {{percent: 50, nodesMin: {breaker}, window: 2m}}\n\
         \x20 response:\n    cordon: {cordon}\n    drain: {{deadline: 5m}}\n"
    )
}

pub(super) fn cluster(at: usize, chance: &mut Chance, trust: &Rc<Trust>, mutations: Mutations) -> Site {
    let id = ClusterId::parse(&format!("c{at}")).expect("a letter and a digit");
    let mut place = Site {
        api: Api::default(),
        slots: (0..2).map(|slot| self::slot(&id, slot, chance, trust, mutations)).collect(),
        bodies: Default::default(),
        theirs: Default::default(),
        made: 0,
        id,
    };
    let nodes = NODES.start() + chance.below(NODES.end() - NODES.start() + 1);
    for number in 0..nodes {
        place.joins(&format!("n{number}"), chance);
    }
    if chance.once_in(4) {
        place.api.configure("ceiling: {nodesOut: 1}\n");
    }
    place
}

fn slot(cluster: &ClusterId, slot: usize, chance: &mut Chance, trust: &Rc<Trust>, mutations: Mutations) -> Slot {
    let me = Identity {
        cluster: cluster.clone(),
        kube_system_uid: format!("uid-of-{cluster}"),
        replica: ReplicaId::parse(&format!("spoke-{slot}")).expect("visible ASCII"),
        trust: Rc::clone(trust),
        mutations,
    };
    Slot {
        me,
        spoke: None,
        disk: Journal::default(),
        life: 0,
        drift_ppm: i64::try_from(chance.below(200)).unwrap_or(0) - 100,
        wall_off_ms: i64::try_from(chance.below(2000)).unwrap_or(0) - 1000,
        conn: None,
        cut_until: START,
        api_cut_until: START,
        paused_until: START,
        watch_at: START,
        watch_epoch: 0,
        contact_at: START,
    }
}

impl Site {
    /// A machine registers under a name, with pods on it.
    pub(super) fn joins(&mut self, name: &str, chance: &mut Chance) {
        self.made += 1;
        let uid = format!("{}-{name}-{}", self.id, self.made);
        let body = Body::new(name, &uid, START);
        // Grown up: youth is no subject here.
        let created = START.before(Duration::from_secs(86_400));
        let node = api::node(name, &uid, &body.boot_id(), u32::from(GPUS), created);
        self.api.write(name, node, "kubelet");
        self.bodies.insert(name.to_owned(), body);
        self.theirs.insert(name.to_owned(), Theirs::default());
        for _ in 0..chance.below(3) {
            self.pod_on(name, START);
        }
    }

    pub(super) fn pod_on(&mut self, node: &str, started: Timestamp) {
        self.made += 1;
        let uid = format!("{}-pod-{}", self.id, self.made);
        let gpu = u8::try_from(self.made % u32::from(GPUS)).unwrap_or(0);
        self.api.pod_starts(Pod { name: uid.clone(), uid, node: node.to_owned(), gpu, started, deleting: false });
    }
}
