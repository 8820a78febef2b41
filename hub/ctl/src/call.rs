//! One function per verb: ask the hub, hand the answer to the printer. What the hub refuses is a failure of the program.

mod audit;
pub(crate) mod lists;
mod policy;

use std::io;

use gpuheal_proto::fleet::v1::{
    ExplainRequest, ProcessRequest, ResumeFleetRequest, StopFleetRequest, command_service_client::CommandServiceClient,
    incident_service_client::IncidentServiceClient,
};
use tonic::{Code, Status, transport::Channel};

use crate::{
    args::{ProcessAction, Request, Verb},
    output::Printer,
};

/// What can be told without the hub.
pub(crate) fn check(verb: &Verb) -> Result<(), Error> {
    match verb {
        Verb::Explain { node: Some(_), cluster: None, .. } => Err(Error::NoCluster),
        Verb::Explain { node: None, incident: None, fault: None, .. } => Err(Error::NothingToExplain),
        Verb::Process { action, workload, .. } if *action != ProcessAction::Restart && !workload.is_empty() => {
            Err(Error::NoRestart { action: action.as_str() })
        }
        Verb::Process { action, past_budgets: true, .. } if *action != ProcessAction::Evict => {
            Err(Error::NoEviction { action: action.as_str() })
        }
        _ => Ok(()),
    }
}

/// Does it; false when the hub answered and the answer was no.
pub(crate) async fn call(verb: &Verb, channel: Channel, printer: &mut Printer) -> Result<bool, Error> {
    match verb {
        Verb::Pki(_) => unreachable!("needs no hub and was handled before"),
        Verb::Clusters => lists::clusters(channel, printer).await,
        Verb::Sources { cluster, stale, limit } => lists::sources(channel, printer, cluster.as_ref(), *stale, *limit).await,
        Verb::Nodes { cluster, out, limit } => lists::nodes(channel, printer, cluster.as_ref(), *out, *limit).await,
        Verb::Incidents(filter) => lists::incidents(channel, printer, filter).await,
        Verb::Commands(filter) => lists::commands(channel, printer, filter).await,
        Verb::Explain { node, cluster, incident, fault } => {
            let request = ExplainRequest {
                cluster_id: cluster.as_ref().map(ToString::to_string).unwrap_or_default(),
                node: node.clone().unwrap_or_default(),
                incident_id: incident.clone().unwrap_or_default(),
                fault_key: fault.clone().unwrap_or_default(),
            };
            let answer = IncidentServiceClient::new(channel).explain(request).await?.into_inner();
            printer.explain(&answer)?;
            Ok(true)
        }
        Verb::Process { node, action, workload, past_budgets, override_cooldown, request } => {
            let workloads = workload.iter().map(ToString::to_string).collect();
            let asked = ProcessRequest {
                override_cooldown: *override_cooldown,
                past_budgets: *past_budgets,
                workloads,
                ..by_hand(node, *action, request)
            };
            process(channel, printer, asked).await
        }
        Verb::Release { node, request } => process(channel, printer, by_hand(node, ProcessAction::Release, request)).await,
        Verb::Stop { reason } => {
            let request = StopFleetRequest { reason: reason.clone() };
            let answer = CommandServiceClient::new(channel).stop_fleet(request).await?.into_inner();
            printer.stopped(&answer)?;
            Ok(true)
        }
        Verb::Resume { reason } => {
            let request = ResumeFleetRequest { reason: reason.clone() };
            let answer = CommandServiceClient::new(channel).resume_fleet(request).await?.into_inner();
            printer.resumed(&answer)?;
            Ok(true)
        }
        Verb::Policy(verb) => policy::call(verb, channel, printer).await,
        Verb::Audit(verb) => audit::call(verb, channel, printer).await,
    }
}

/// What is asked for, with nothing waived.
fn by_hand(node: &str, action: ProcessAction, request: &Request) -> ProcessRequest {
    ProcessRequest {
        request_id: request.request_id.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
        cluster_id: request.cluster.to_string(),
        node: node.to_owned(),
        action: action.as_str().to_owned(),
        reason: request.reason.clone(),
        ..ProcessRequest::default()
    }
}

async fn process(channel: Channel, printer: &mut Printer, request: ProcessRequest) -> Result<bool, Error> {
    let answer = CommandServiceClient::new(channel).process(request).await?.into_inner();
    let met = matches!(answer.outcome.as_str(), "accepted" | "repeated");
    printer.process(&answer)?;
    Ok(met)
}

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A node's name is unique within its cluster alone.
    #[error("of which cluster? give --cluster ID")]
    NoCluster,
    /// Nothing named.
    #[error("explain what? name a node with --cluster ID, or give --incident ID or --fault KEY")]
    NothingToExplain,
    /// Workloads of what is none of theirs.
    #[error("--workload is for --action restart: {action} is of the node")]
    NoRestart {
        /// What was asked.
        action: &'static str,
    },
    /// Budgets that nothing would pass.
    #[error("--past-budgets is for --action evict: {action} moves no pod past one")]
    NoEviction {
        /// What was asked.
        action: &'static str,
    },
    /// The hub said no.
    #[error("{}", advice(.0))]
    Refused(Box<Status>),
    /// A file named on the command line.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// Our own output.
    #[error("cannot write the result")]
    Output(#[from] io::Error),
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

impl Error {
    /// Wrong use rather than a failure.
    pub(crate) const fn usage(&self) -> bool {
        matches!(self, Self::NoCluster | Self::NothingToExplain | Self::NoRestart { .. } | Self::NoEviction { .. })
    }
}

/// What the hub said and what to do about it.
fn advice(status: &Status) -> String {
    let said = status.message();
    let next = match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => {
            "use --identity with a user's certificate of this hub, and --hub with its fleet listener"
        }
        Code::Unavailable => "the hub is away or has no database: try again, then look at its /readyz",
        Code::DeadlineExceeded | Code::Cancelled => "no answer in time: try again, or give more with --timeout-s",
        Code::Unimplemented => "this hub is older than gpuhealctl: use the gpuhealctl of its release",
        // With TLS 1.3 a refused client certificate is seen only when the first call fails.
        Code::Unknown => "the connection broke: the hub may not accept this certificate",
        _ => return said.to_owned(),
    };
    if said.is_empty() { next.to_owned() } else { format!("{said} ({next})") }
}
