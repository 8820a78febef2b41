//! What the log says of incidents, once it is committed: one line for each that opened, closed, or changed its state or
//! level. A judgement that changed none of these says nothing.

use gpuheal_hub_core::{
    decide::{IncidentChange, level_word},
    incident::IncidentState,
    snapshot::Snapshot,
};
use gpuheal_proto::ids::{ClusterId, FaultKey, IncidentId, NodeName};

use crate::metrics;

/// Faults named in one line; the record has them all.
const FAULTS_MAX: usize = 8;

/// One incident's step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    cluster: ClusterId,
    node: NodeName,
    incident: IncidentId,
    faults: String,
    /// Nothing: it opened.
    from: Option<(IncidentState, &'static str)>,
    to: (IncidentState, &'static str),
    reason: String,
}

impl Move {
    /// Nothing when it stands where it stood.
    pub(super) fn of(snapshot: &Snapshot, change: &IncidentChange) -> Option<Self> {
        let before = snapshot.incident.as_ref().map(|incident| (incident.state, level_word(incident.level, incident.manual)));
        let (from, to) = (before.filter(|_| !change.opens), (change.state, change.level_word()));
        (from != Some(to)).then(|| Self {
            cluster: snapshot.cluster.id.clone(),
            node: snapshot.node.reference.name.clone(),
            incident: change.id,
            faults: change.fault_keys.iter().take(FAULTS_MAX).map(FaultKey::to_string).collect::<Vec<_>>().join(","),
            from,
            to,
            reason: change.reason.clone(),
        })
    }

    /// Writes its line and counts it.
    pub(super) fn tell(&self) {
        let Self { cluster, node, incident, faults, from, to: (state, level), reason } = self;
        metrics::DECISIONS.inc([state.as_str()]);
        macro_rules! line {
            ($says:literal $(, $field:ident . $part:ident = $value:expr)*) => {
                tracing::info!(
                    cluster.id = %cluster, node.name = %node, incident.id = %incident, fault.id = %faults, incident.state = %state,
                    incident.level = level, $($field.$part = %$value,)* reason, $says
                )
            };
        }
        match from {
            None => line!("incident opened"),
            Some((was, _)) if state.closed() => line!("incident closed", before.state = was),
            Some((was, level)) if was == state => line!("incident level changed", before.level = level),
            Some((was, _)) => line!("incident state changed", before.state = was),
        }
    }
}
