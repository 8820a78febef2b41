//! Writing HealActions: created once, status by compare-and-swap, finalizer taken off once the hub has the outcome,
//! deleted a day after they have run out.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use gpuheal_proto::{
    command::{Command, CommandState, Undo},
    kubernetes::{FIELD_MANAGER, FINALIZER},
    time::{Timestamp, parse_rfc3339},
};
use gpuheal_spoke_core::{mark::NodeFacts, release::cordoned};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;

use super::{
    api::{Error, Kube},
    store::Actions,
};
use crate::{
    clock,
    healaction::{self, HealAction, HealActionSpec, HealActionStatus},
    report::Reports,
    watch::Nodes,
};

/// How long a HealAction outlives its command: long enough for whoever looks the next day.
const KEEP: Duration = Duration::from_secs(24 * 3600);

/// So many in one answer of the API server: at 16 KiB each at most, 8 MiB.
const LIST_PAGE: u32 = 500;

/// Writes HealActions.
pub(super) struct Records {
    kube: Kube,
    namespace: String,
    actions: Arc<Actions>,
    /// What the hub has acked.
    reports: Reports,
    nodes: Nodes,
    /// Who collects: one at a time, since the API server may be slower than the clock that asks for it.
    collecting: tokio::sync::Mutex<()>,
}

/// What came of creating one.
pub(super) enum Created {
    /// It is ours.
    New(Arc<HealAction>),
    /// It was there already.
    Exists(Arc<HealAction>),
}

impl Records {
    pub(super) fn new(kube: Kube, namespace: String, actions: Arc<Actions>, reports: Reports, nodes: Nodes) -> Self {
        Self { kube, namespace, actions, reports, nodes, collecting: tokio::sync::Mutex::default() }
    }

    fn api(&self) -> Api<HealAction> {
        Api::namespaced(self.kube.client(), &self.namespace)
    }

    pub(super) fn named(&self, id: &str, spec: healaction::HealActionSpec) -> HealAction {
        HealAction::named(id, &self.namespace, spec)
    }

    /// The spec for a command. One that names no fault, as a release's, is about its incident's.
    pub(super) fn spec(&self, command: &Command, envelope: &[u8], holder: &str, reign: u64) -> HealActionSpec {
        let mut spec = healaction::new_spec(command, envelope, holder, reign);
        if spec.fault.is_empty() {
            let of_incident = |action: &Arc<HealAction>| action.spec.incident == spec.incident && !action.spec.fault.is_empty();
            let earlier = self.actions.all().into_iter().find(of_incident);
            spec.fault = earlier.map(|action| action.spec.fault.clone()).unwrap_or_default();
        }
        spec
    }

    /// Creates the intent or tombstone. A conflict means that it exists: that one is then the truth. An answer that was
    /// lost shows as the same conflict at the next attempt.
    pub(super) async fn create(&self, action: &HealAction) -> Result<Created, Error> {
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match self.kube.call("create HealAction", self.api().create(&params, action)).await {
            Ok(created) => Ok(Created::New(self.actions.put(created))),
            Err(error) if error.code() == Some(409) => self.read(action.name()).await.map(Created::Exists),
            Err(error) => Err(error),
        }
    }

    /// Lists all of them as the API server holds them now, which a watch may not show yet.
    pub(super) async fn list(&self) -> Result<(), Error> {
        let mut page = ListParams::default().limit(LIST_PAGE);
        loop {
            let listed = self.kube.call("list HealActions", self.api().list(&page)).await?;
            for action in listed.items {
                self.actions.put(action);
            }
            match listed.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => page = page.continue_token(&next),
                None => return Ok(()),
            }
        }
    }

    pub(super) async fn read(&self, name: &str) -> Result<Arc<HealAction>, Error> {
        let action = self.kube.call("get HealAction", self.api().get(name)).await?;
        Ok(self.actions.put(action))
    }

    /// Writes a status by the resourceVersion of `action`.
    pub(super) async fn write_status(&self, action: &HealAction, status: HealActionStatus) -> Result<Arc<HealAction>, Error> {
        let mut next = action.clone();
        next.status = Some(healaction::bounded(status));
        next.metadata.managed_fields = None;
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let written = self.kube.call("write HealAction", self.api().replace_status(action.name(), &params, &next)).await?;
        Ok(self.actions.put(written))
    }

    /// For the columns of `kubectl get` and for `kubectl wait` alone: the tombstone in the spec is the truth.
    pub(super) async fn show_tombstone(&self, action: &HealAction) {
        let Some(tombstone) = &action.spec.tombstone else { return };
        let mut status = healaction::status_of(action);
        status.state.clone_from(&tombstone.state);
        status.refusal.clone_from(&tombstone.refusal);
        status.outcome.clone_from(&tombstone.reason);
        healaction::set_complete(&mut status, clock::wall());
        if let Err(error) = self.write_status(action, status).await {
            tracing::debug!(command.id = action.id(), error = %gpuheal_proto::chain::chain(&error), "tombstone has no status");
        }
    }

    /// Ends an open action by one write, for whoever is not at work on it.
    pub(super) async fn finish(
        &self,
        action: &HealAction,
        state: CommandState,
        refusal: &str,
        reason: &str,
        reign: u64,
    ) -> Result<Arc<HealAction>, Error> {
        let mut status = healaction::status_of(action);
        status.state = state.to_string();
        refusal.clone_into(&mut status.refusal);
        reason.clone_into(&mut status.outcome);
        status.lease_transitions = reign;
        status.status_seq = healaction::seq(action) + 1;
        healaction::set_complete(&mut status, clock::wall());
        self.write_status(action, status).await
    }

    /// The hub has the outcome: the finalizer goes, except from the record of a mark that still stands, and from a release
    /// while it is needed to let go of the marks that it has undone.
    pub(super) async fn let_go(&self, action: &HealAction) {
        let mut all = self.actions.all();
        all.retain(|other| other.spec.node_uid == action.spec.node_uid);
        self.let_go_of(all).await;
    }

    /// What could not be let go of is held still, and is looked at again by the next [`Records::collect`].
    async fn let_go_of(&self, mut all: Vec<Arc<HealAction>>) {
        // What is undone in the first round lets go of its release in the second.
        for _ in 0..2 {
            let now = all.iter().map(|action| &**action);
            for action in healaction::may_go(now, |action| self.reports.acked(action)) {
                self.drop_finalizer(action).await;
            }
            all = all.iter().filter_map(|action| self.actions.get(action.id())).collect();
        }
    }

    /// The record of a mark is kept for its release. A machine that is gone, or another under its name, gets none: nothing
    /// is left to be undone. Our watch may be late, so the API server is asked before that is believed.
    async fn let_go_of_gone_nodes(&self, all: &[Arc<HealAction>]) {
        if !self.nodes.listed() {
            return;
        }
        let marks = healaction::await_release(all.iter().map(|action| &**action), |action| self.reports.acked(action));
        for mark in marks {
            let (name, uid) = (mark.spec.node.as_str(), mark.spec.node_uid.as_str());
            if self.nodes.shows(name, uid) {
                continue;
            }
            match self.kube.has_machine(name, uid).await {
                Ok(true) => {}
                Ok(false) => self.drop_finalizer(mark).await,
                Err(error) => {
                    return tracing::debug!(command.id = mark.id(), error = %gpuheal_proto::chain::chain(&error), "its node could not be read");
                }
            }
        }
    }

    /// The record of what is ours on a node now, but for what `command` did: the latest mark's, unless a later release has
    /// undone it, and only while no other command is the last that wrote to the node.
    pub(super) fn standing_undo(&self, node: &NodeFacts, command: &Command) -> Undo {
        let (all, not) = (self.actions.all(), command.id.to_string());
        healaction::standing_undo(all.iter().map(|action| &**action).filter(|action| action.id() != not), node)
    }

    /// Whether the cordon of each node that carries a mark of ours is ours, as the standing records say.
    pub(super) fn cordons(&self) -> BTreeMap<String, bool> {
        let all = self.actions.all();
        let standing = healaction::standing_marks(all.iter().map(|action| &**action));
        standing.into_iter().filter_map(|(node, action)| Some((node.to_owned(), cordoned(&healaction::undo_of(action))?))).collect()
    }

    async fn drop_finalizer(&self, action: &HealAction) {
        let kept: Vec<_> = action.metadata.finalizers.iter().flatten().filter(|name| *name != FINALIZER).collect();
        let patch = json!({"metadata": {"finalizers": kept, "resourceVersion": action.metadata.resource_version}});
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        match self.kube.call("drop finalizer", self.api().patch(action.name(), &params, &Patch::Merge(patch))).await {
            Ok(action) => drop(self.actions.put(action)),
            Err(error) if error.not_found() => self.actions.remove(action.id()),
            // Tried again when it is collected next.
            Err(error) => {
                tracing::debug!(command.id = action.id(), error = %gpuheal_proto::chain::chain(&error), "finalizer not dropped yet")
            }
        }
    }

    /// Lets go of what nobody needs any more, and deletes what has run out and is not held by a finalizer.
    pub(super) async fn collect(&self, now: Timestamp) {
        let Ok(_alone) = self.collecting.try_lock() else { return };
        self.let_go_of(self.actions.all()).await;
        self.let_go_of_gone_nodes(&self.actions.all()).await;
        for action in may_be_deleted(&self.actions.all(), now) {
            let preconditions = Preconditions { uid: action.metadata.uid.clone(), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            if let Err(error) = self.kube.call("delete HealAction", self.api().delete(action.name(), &params)).await {
                tracing::debug!(command.id = action.id(), error = %gpuheal_proto::chain::chain(&error), "HealAction not collected yet");
            }
        }
    }
}

/// What has run out, is held by no finalizer, and does not count for who keeps coming back to a node.
fn may_be_deleted(all: &[Arc<HealAction>], now: Timestamp) -> Vec<&HealAction> {
    let all = all.iter().map(|action| &**action);
    let counted = healaction::counted(all.clone());
    let old = |action: &HealAction| runs_out(action).is_some_and(|expires| now.since(expires) > KEEP);
    all.filter(|action| old(action) && !action.held() && healaction::is_final(action) && !counted.contains(action.id())).collect()
}

/// When it runs out: a tombstone of what was not for us knows only when it was made.
fn runs_out(action: &HealAction) -> Option<Timestamp> {
    let made = || Some(Timestamp::from_unix_ms(action.metadata.creation_timestamp.as_ref()?.0.as_millisecond()));
    parse_rfc3339(&action.spec.expires).ok().or_else(made)
}

#[cfg(test)]
mod tests {
    use gpuheal_proto::command::{UndoField, UndoKind};

    use super::*;
    use crate::healaction::{StepRecord, UndoEntry};

    fn mark(id: &str, node: &str, plan_revision: u64, before: &str) -> HealAction {
        let field = UndoField {
            kind: UndoKind::Unschedulable,
            key: String::new(),
            before: before.into(),
            after: "true".into(),
            resource_version: "5".into(),
        };
        let spec = HealActionSpec { node_uid: node.into(), action: "evict".into(), plan_revision, ..HealActionSpec::default() };
        let mut action = HealAction::named(id, "ns", spec);
        action.status = Some(HealActionStatus {
            state: "SUCCEEDED".into(),
            undo: vec![UndoEntry::from(&field)],
            steps: vec![StepRecord { name: "mark".into(), state: "done".into(), ..StepRecord::default() }],
            ..HealActionStatus::default()
        });
        action
    }

    #[tokio::test]
    async fn a_cordon_is_ours_by_the_latest_record_that_stands_and_not_after_its_release() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let actions = Arc::new(Actions::default());
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let kube = Kube::new(kube::Client::try_from(config).unwrap());
        let (up, _) = tokio::sync::mpsc::channel(1);
        let nodes = crate::testing::TestCluster::new().await.nodes.clone();
        let records = Records::new(kube, "ns".to_owned(), Arc::clone(&actions), Reports::new(up), nodes);
        actions.put(mark("a", "u1", 3, ""));
        actions.put(mark("b", "u2", 3, "true"));
        actions.put(mark("c", "u3", 3, ""));
        let mut release = mark("d", "u3", 4, "");
        release.spec.action = "release".into();
        release.status.as_mut().unwrap().undo.clear();
        actions.put(release);
        let told: Vec<_> = records.cordons().into_iter().collect();
        assert_eq!(told, [("u1".to_owned(), true), ("u2".to_owned(), false)]);
    }

    #[test]
    fn what_a_loop_is_told_by_is_kept_while_the_mark_stands_however_old_and_deleted_after_its_release() {
        let now = Timestamp::from_unix_ms(1_764_442_800_000);
        let old = |mut action: HealAction| {
            action.spec.expires = "2025-01-01T00:00:00Z".to_owned();
            action.metadata.finalizers = None;
            action
        };
        let drained = |id: &str, node: &str, plan_revision| {
            let mut action = old(mark(id, node, plan_revision, ""));
            let pod = crate::healaction::PodRecord { eviction_calls: 1, ..Default::default() };
            let step = StepRecord { name: "drain".into(), pods: vec![pod], ..StepRecord::default() };
            let status = action.status.as_mut().unwrap();
            (status.undo, status.steps) = (vec![], vec![step]);
            action
        };
        let deleted = |all: &[HealAction]| {
            let all: Vec<_> = all.iter().cloned().map(Arc::new).collect();
            may_be_deleted(&all, now).into_iter().map(|action| action.id().to_owned()).collect::<Vec<_>>()
        };
        let marked = HealAction { metadata: mark("m", "u1", 1, "").metadata, ..old(mark("m", "u1", 1, "")) };
        let mut all = vec![marked, drained("a", "u1", 2), drained("b", "u1", 3), drained("elsewhere", "u2", 2)];
        assert!(all[0].held());
        assert_eq!(deleted(&all), ["elsewhere"]);
        let mut release = old(mark("r", "u1", 4, ""));
        release.spec.action = "release".into();
        release.status.as_mut().unwrap().undo.clear();
        release.spec.expires = "2025-11-29T18:00:00Z".to_owned();
        all.push(release);
        assert_eq!(deleted(&all), ["a", "b", "elsewhere"], "the release itself has not run out");
    }

    #[test]
    fn a_record_counts_only_while_its_command_is_the_last_that_wrote_to_the_node() {
        let actions = [mark("a", "u1", 3, "")];
        let node = |annotations: serde_json::Value| {
            let metadata = json!({"name": "n", "uid": "u1", "resourceVersion": "1", "annotations": annotations});
            NodeFacts::from_json(&json!({"metadata": metadata})).unwrap()
        };
        let record = |node: &NodeFacts| healaction::standing_undo(actions.iter(), node).fields.len();
        let carries = |revision: &str| node(json!({"gpu-selfhealing.io/plan-revision": revision}));
        assert_eq!((record(&carries("3")), record(&carries("5"))), (1, 0));
        assert_eq!(record(&node(json!({}))), 1, "somebody took the annotation off");
    }
}
