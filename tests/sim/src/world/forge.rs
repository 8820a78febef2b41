//! Somebody on the way between hub and spoke who has no key of ours: he signs commands with his own, changes what passes,
//! sends again what he once saw, also where it was not meant for. Nothing of it may have an effect.

use std::time::Duration;

use bytes::Bytes;
use gpuheal_hub::sign::{Key, Signer};
use gpuheal_proto::{
    command::{Command, CommandState, Step, Target, Times},
    fault::NodeRef,
    ids::{CommandId, IncidentId, NodeName, NodeUid, uuid_v7},
    link::v1::{self, attach_response::Message as Down},
};

use super::{Place, World};
use crate::keys;

impl World {
    pub(super) fn forge(&mut self, place: Place) {
        let kind = self.chance.below(3);
        let made = match kind {
            0 => self.by_his_own_key(place.0),
            1 => self.seen(place.0).map(changed),
            _ => {
                let of = usize::try_from(self.chance.below(self.clusters.len() as u64)).unwrap_or(0);
                self.seen(of)
            }
        };
        let (Some(envelope), Some(conn)) = (made, self.slot(place).conn) else { return };
        self.say(|| format!("somebody sends {} a command, kind {kind}", Self::name(place)));
        self.send_down(conn, Down::Command(v1::Command { envelope }));
    }

    /// The mark of a node, as well made as can be without the key.
    fn by_his_own_key(&mut self, cluster: usize) -> Option<Bytes> {
        let names: Vec<String> = self.clusters[cluster].api.nodes.keys().cloned().collect();
        let facts = self.clusters[cluster].api.nodes.get(self.chance.pick(&names))?.facts.clone();
        let (mut one, mut other) = ([0; 32], [1; 32]);
        one[..8].copy_from_slice(&self.chance.next().to_be_bytes());
        other[..8].copy_from_slice(&self.chance.next().to_be_bytes());
        let after = |minutes: u64| self.now.after(Duration::from_secs(minutes * 60));
        let node = NodeRef {
            name: NodeName::parse(&facts.name).ok()?,
            uid: NodeUid::parse(&facts.uid).ok()?,
            boot_id: facts.boot_id.clone(),
        };
        let id = CommandId::from_uuid(uuid_v7(self.now, &one));
        let command = Command {
            id,
            idempotency_key: id.to_string(),
            audience: self.clusters[cluster].id.clone(),
            key_epoch: 1,
            hub_term: self.db.hub_term,
            cmd_seq: 1,
            plan_rev: facts.plan_revision().unwrap_or(0) + 1,
            times: Times { created: self.now, deliver_by: after(4), start_by: after(5), finish_by: after(10), expires: after(15) },
            incident: IncidentId::from_uuid(uuid_v7(self.now, &other)),
            level: "P0".to_owned(),
            reason: "because".to_owned(),
            policy_revision: 1,
            policy_digest: "none".to_owned(),
            target: Target { node, gpu: None },
            fault_keys: Vec::new(),
            ignore_cooldown: true,
            others: Default::default(),
            steps: vec![Step::Mark { label: true, taint: true, cordon: false }],
        };
        let key = Key::from_pem(&keys::his_pem()).expect("his key is one");
        Signer::new(key, 1).command(&command).ok().map(|made| Bytes::from(made.envelope))
    }

    /// A command of that cluster that was on a stream.
    fn seen(&mut self, cluster: usize) -> Option<Bytes> {
        let rows = self.db.clusters.get(&self.clusters[cluster].id)?;
        let sent = |state| {
            !matches!(state, CommandState::Proposed | CommandState::Signed | CommandState::Cancelled | CommandState::Expired)
        };
        let all: Vec<Bytes> =
            rows.commands.values().filter(|command| sent(command.state)).filter_map(|command| command.envelope.clone()).collect();
        if all.is_empty() { None } else { Some(self.chance.pick(&all).clone()) }
    }
}

/// One bit of what was signed.
fn changed(envelope: Bytes) -> Bytes {
    let mut bytes = envelope.to_vec();
    let at = bytes.len() / 4;
    bytes[at] ^= 1;
    bytes.into()
}
