//! The audit's chains: hub/core says what a hash covers, here is only where entries are kept.

use std::rc::Rc;

use gpuheal_hub::audit::Kind;
use gpuheal_hub_core::audit::{self, Fact, Head, Verdict, Walk};
use gpuheal_proto::ids::{ClusterId, IncidentId};
use serde_json::Value;

use super::Memory;
use crate::mutation::Mutation;

impl Memory {
    /// Appends one entry to a chain.
    pub(super) fn record(
        &mut self,
        chain: &str,
        kind: Kind,
        actor: &str,
        subject: &str,
        incident: Option<IncidentId>,
        body: &Value,
    ) {
        if self.mutations.has(Mutation::NoAudit) && kind == Kind::Decision {
            return;
        }
        let fact = Fact {
            at: self.now,
            kind: kind.as_str().to_owned(),
            actor: actor.to_owned(),
            subject: subject.to_owned(),
            incident,
            body: body.to_string(),
        };
        let entries = self.audit.entry(chain.to_owned()).or_default();
        let head = entries.last().map_or_else(Head::default, |last| Head { seq: last.seq, hash: last.hash });
        entries.extend(audit::link(chain, head, vec![fact]).into_iter().map(Rc::new));
    }

    pub(super) fn tell(
        &mut self,
        cluster: &ClusterId,
        kind: Kind,
        actor: &str,
        subject: &str,
        incident: Option<IncidentId>,
        body: &Value,
    ) {
        self.record(cluster.as_str(), kind, actor, subject, incident, body);
    }

    /// Walks every chain from its first entry.
    ///
    /// # Errors
    /// Where one breaks.
    pub fn audit_verify(&self) -> Result<(), Verdict> {
        for (chain, entries) in &self.audit {
            let mut walk = Walk::default();
            for entry in entries {
                walk.step(chain, entry)?;
            }
        }
        Ok(())
    }
}
