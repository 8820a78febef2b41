//! One transaction's judgements of nodes of one cluster. Budgets and rates are locked at the first node that needs them,
//! and that node is judged again by what they say then: what another hub took meanwhile is refused with its arithmetic.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use gpuheal_hub_core::{
    decide::{BudgetOp, Decision, decide},
    policy::{Narrowing, Policy},
    snapshot::{Request, Snapshot},
};
use gpuheal_proto::{
    ids::{ClusterId, NodeUid},
    time::Timestamp,
};
use sqlx::PgConnection;

use super::{
    Error,
    apply::{self, Issued, Written},
    policies,
};
use crate::{
    audit::Entry,
    sign::Signer,
    store::{
        budget::guards_lock,
        judgement::judgements_done,
        snapshot::{Surroundings, Told, snapshot_load, surroundings_load},
    },
};

/// A transaction in which nodes of one cluster are judged.
pub(super) struct Bench {
    cluster: ClusterId,
    policy: Arc<Policy>,
    around: Surroundings,
    now: Timestamp,
    guarded: bool,
    written: Written,
    /// Nodes that were judged, and when each is judged next.
    judged: Vec<(NodeUid, Option<Timestamp>)>,
}

impl Bench {
    /// Reads what all nodes of the cluster share.
    pub(super) async fn open(conn: &mut PgConnection, cluster: &ClusterId) -> Result<Self, Error> {
        let told = surroundings_load(conn, cluster).await?;
        let (policy, now) = (policies::of(conn, told.policy()).await?, told.now());
        let around = around(told, cluster, &policy);
        Ok(Self { cluster: cluster.clone(), policy, around, now, guarded: false, written: Written::default(), judged: Vec::new() })
    }

    /// One node's story, as a decision would see it now.
    pub(super) async fn snapshot(
        &mut self,
        conn: &mut PgConnection,
        node: &NodeUid,
        request: Option<Request>,
    ) -> Result<Option<Snapshot>, Error> {
        if self.guarded {
            self.guard(conn).await?;
        }
        let window = self.policy.settings.attempts.window;
        Ok(snapshot_load(conn, &self.around, node, window, request, self.now).await?)
    }

    /// Judges a node whose lock is held and writes what follows, but for what must come last in every transaction.
    pub(super) async fn judge(
        &mut self,
        conn: &mut PgConnection,
        node: &NodeUid,
        request: Option<Request>,
    ) -> Result<Option<Decision>, Error> {
        let Some(mut snapshot) = self.snapshot(conn, node, request).await? else {
            self.judged.push((node.clone(), None));
            return Ok(None);
        };
        let mut decision = self.decide(&snapshot)?;
        if !self.guarded && needs_guards(&decision) {
            self.guard(conn).await?;
            self.guarded = true;
            self.around.retell(&mut snapshot);
            decision = self.decide(&snapshot)?;
        }
        apply::node(conn, &snapshot, &decision, &self.policy, self.now, &mut self.written).await?;
        if decision.budget == BudgetOp::HoldFound {
            // Its mark was counted by itself until now: the next node must not find it twice.
            self.around = around(surroundings_load(conn, &self.cluster).await?, &self.cluster, &self.policy);
        }
        self.judged.push((node.clone(), decision.recheck_at));
        Ok(Some(decision))
    }

    /// Locks budgets and rates, if that is still to be done, and sees what they say now.
    async fn guard(&mut self, conn: &mut PgConnection) -> Result<(), Error> {
        let guards = guards_lock(conn, &self.cluster, &self.policy.settings.rates, self.now).await?;
        self.around.guarded(&guards);
        Ok(())
    }

    /// Writes when the judged nodes are judged next, and what must come last: commands under their numbers, signed when the signer is at hand, then the audit,
    /// which begins with what the transaction did `before` it judged.
    pub(super) async fn close(self, conn: &mut PgConnection, signer: Option<&Signer>, before: Vec<Entry>) -> Result<Issued, Error> {
        judgements_done(conn, &self.cluster, &self.judged).await?;
        let judged = apply::Judged { cluster: &self.cluster, policy: &self.policy, epoch: self.around.epoch(), now: self.now };
        apply::close(conn, judged, self.written, signer, before).await
    }

    /// The policy that speaks.
    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The moment that is judged by.
    pub(super) const fn now(&self) -> Timestamp {
        self.now
    }

    fn decide(&self, snapshot: &Snapshot) -> Result<Decision, Error> {
        // A defect in judging one node must not end the worker that judges all.
        catch_unwind(AssertUnwindSafe(|| decide(snapshot, &self.policy, self.now))).map_err(|panic| {
            let why = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            Error::Panicked { node: snapshot.node.reference.name.to_string(), why: why.unwrap_or_default() }
        })
    }
}

fn needs_guards(decision: &Decision) -> bool {
    decision.budget != BudgetOp::Keep || decision.commands.iter().any(|command| command.takes_rate)
}

/// What all nodes of the cluster share, under the policy and the owner's own settings.
fn around(told: Told, cluster: &ClusterId, policy: &Policy) -> Surroundings {
    let (narrowing, problems) = Narrowing::in_force(told.config());
    if let Some(first) = problems.first() {
        tracing::warn!(cluster.id = %cluster, error = %first, "the cluster's own settings cannot be read: only notifying there");
    }
    Surroundings::of(told, cluster, narrowing, policy)
}
