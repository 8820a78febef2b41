//! How far a drain reaches whose command is about one GPU: to the pods that use it, as far as that is known, and to those of
//! which it is not. What was known when the drain began holds for whoever takes it up; what of it was not is said. A GPU that
//! nobody knows spares nobody: whoever is known to use others may well use the one that was meant.

use std::collections::BTreeSet;

use gpuheal_proto::{command::Command, ids::GpuUuid};
use gpuheal_spoke_core::{
    drain::{Claims, Plan, PodFacts, Unknown, Users, users},
    gpu_resources::GpuResources,
};

use super::super::Ctx;
use crate::healaction::PodRecord;

/// What is known of who uses the command's GPU.
pub(super) struct Scope {
    gpu: Option<GpuUuid>,
    /// Why the whole node is drained although the command is about one GPU; empty where it is not, or about none.
    whole: String,
    users: Result<Users, Unknown>,
    claims: Claims,
    spared: BTreeSet<String>,
}

impl Scope {
    /// Of this command, with what ResourceClaims say and what was recorded of its pods before.
    pub(super) fn of(ctx: &Ctx, command: &Command, claims: Claims, earlier: &[PodRecord]) -> Self {
        let users = ctx.deps.users.users(&command.target.node.uid);
        let spared: BTreeSet<String> = earlier.iter().filter(|record| record.spared).map(|record| record.uid.clone()).collect();
        let (gpu, whole) = match command.target.gpu.as_ref().map(|gpu| gpu.uuid.clone()) {
            None => (None, String::new()),
            Some(None) => (None, "the GPU at fault has no UUID, so every GPU pod was to go".to_owned()),
            // Where somebody was spared it was known when the drain began.
            Some(Some(uuid)) if spared.is_empty() && is_strange(&uuid, users.as_ref().ok(), &claims) => {
                (None, format!("neither exporter nor ResourceSlices know a GPU {uuid} on the node, so every GPU pod was to go"))
            }
            Some(uuid) => (uuid, String::new()),
        };
        Self { gpu, whole, users, claims, spared }
    }

    /// Writes into each pod which GPUs it uses, where the command is about one.
    pub(super) fn tell(&self, pods: &mut [PodFacts], gpus: &GpuResources) {
        if self.gpu.is_some() {
            pods.iter_mut().for_each(|pod| users::tell(pod, gpus, self.users.as_ref().ok(), &self.claims));
        }
    }

    /// The GPU that the drain is about.
    pub(super) const fn gpu(&self) -> Option<&GpuUuid> {
        self.gpu.as_ref()
    }

    /// Pods that were left alone when the drain began.
    pub(super) const fn spared(&self) -> &BTreeSet<String> {
        &self.spared
    }

    /// ResourceClaims of which it is known that they are for no GPU.
    pub(super) const fn other_devices(&self) -> &BTreeSet<String> {
        &self.claims.other
    }

    /// The same, when nothing else is asked any more.
    pub(super) fn into_other_devices(self) -> BTreeSet<String> {
        self.claims.other
    }

    /// For people, what became of the wish to drain one GPU alone; empty where there was none.
    pub(super) fn words(&self, plan: &Plan) -> String {
        let Some(gpu) = &self.gpu else { return self.whole.clone() };
        let unknown = plan.planned().filter(|planned| planned.pod.gpu_uuids.is_empty()).count();
        let spared = plan.spared.len();
        let why = match &self.users {
            Err(why) => why.to_string(),
            Ok(_) => "neither exporter nor claims name all of their GPUs".to_owned(),
        };
        match (unknown, spared) {
            (0, spared) => format!("users of {gpu} alone, {spared} on other GPUs left alone"),
            (unknown, 0) => format!("which of {unknown} use {gpu} is not known, so all were to go: {why}"),
            (unknown, spared) => {
                format!("{spared} on other GPUs than {gpu} left alone, {unknown} of which it is not known were to go: {why}")
            }
        }
    }
}

/// Whether somebody tells of the node's GPUs, and nobody of this one.
fn is_strange(gpu: &GpuUuid, users: Option<&Users>, claims: &Claims) -> bool {
    let told = users.is_some() || claims.tell();
    told && !users.is_some_and(|users| users.knows(gpu)) && !claims.knows(gpu)
}
