//! Kubernetes Events with reason `GPUSelfHealing`: what was done, why, by which incident and command. On the node they
//! land in namespace `default`, on a HealAction in our own, since people look with `-n`. An Event's name is made from
//! what it says it is about, so that a step which is repeated posts it once. Failing to post one stops nothing, and is
//! told to whoever wants to know.

use gpuheal_proto::{
    chain::chain,
    command::Command,
    kubernetes::{EVENT_REASON, FIELD_MANAGER},
};
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff,
};
use kube::{Api, api::PostParams};

use crate::{
    clock,
    execute::api::{Error, Kube},
    healaction::HealAction,
};

/// Longest message that the API server takes.
const MESSAGE_BYTES_MAX: usize = 1024;

/// How bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As wanted.
    Normal,
    /// A person should look.
    Warning,
}

/// Posts Events.
#[derive(Clone, Debug)]
pub struct Events {
    kube: Kube,
    replica: String,
}

impl Events {
    /// Posts through this client, in the name of this replica.
    #[must_use]
    pub const fn new(kube: Kube, replica: String) -> Self {
        Self { kube, replica }
    }

    /// On the command's node. `what` names the moment, so that the same moment is told once.
    ///
    /// # Errors
    /// Why it was not posted.
    pub async fn on_node(&self, command: &Command, what: &str, kind: Kind, message: &str) -> Result<(), Error> {
        let node = &command.target.node;
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.name.to_string()),
            uid: Some(node.uid.to_string()),
            ..ObjectReference::default()
        };
        self.post("default", about, command, what, kind, message).await
    }

    /// On the command's HealAction.
    ///
    /// # Errors
    /// Why it was not posted.
    pub async fn on_action(
        &self,
        action: &HealAction,
        command: &Command,
        what: &str,
        kind: Kind,
        message: &str,
    ) -> Result<(), Error> {
        let namespace = action.metadata.namespace.clone().unwrap_or_default();
        let about = ObjectReference {
            api_version: Some("gpu-selfhealing.io/v1".to_owned()),
            kind: Some("HealAction".to_owned()),
            name: action.metadata.name.clone(),
            namespace: Some(namespace.clone()),
            uid: action.metadata.uid.clone(),
            ..ObjectReference::default()
        };
        self.post(&namespace, about, command, what, kind, message).await
    }

    async fn post(
        &self,
        namespace: &str,
        about: ObjectReference,
        command: &Command,
        what: &str,
        kind: Kind,
        message: &str,
    ) -> Result<(), Error> {
        let event = self.event(namespace, about, command, what, kind, message);
        let api: Api<Event> = Api::namespaced(self.kube.client(), namespace);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match self.kube.call("post event", api.create(&params, &event)).await {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some(409) => Ok(()),
            Err(error) => {
                tracing::warn!(command.id = %command.id, error = %chain(&error), "event not posted");
                Err(error)
            }
        }
    }

    fn event(&self, namespace: &str, about: ObjectReference, command: &Command, what: &str, kind: Kind, message: &str) -> Event {
        let now = Time(jiff::Timestamp::from_millisecond(clock::wall().unix_ms()).unwrap_or(jiff::Timestamp::UNIX_EPOCH));
        Event {
            metadata: ObjectMeta {
                name: Some(format!("gpuheal-{}-{what}-{}", command.id, about.kind.as_deref().unwrap_or_default().to_lowercase())),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: about,
            reason: Some(EVENT_REASON.to_owned()),
            message: Some(words(message, command)),
            type_: Some(match kind {
                Kind::Normal => "Normal".to_owned(),
                Kind::Warning => "Warning".to_owned(),
            }),
            count: Some(1),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            source: Some(EventSource { component: Some(FIELD_MANAGER.to_owned()), host: None }),
            reporting_component: Some(FIELD_MANAGER.to_owned()),
            reporting_instance: Some(self.replica.clone()),
            action: Some(what.to_owned()),
            ..Event::default()
        }
    }
}

/// What was done, why (once), and by which incident and command: those last ones are never cut off.
fn words(message: &str, command: &Command) -> String {
    let (reason, level) = (command.reason.as_str(), command.level.as_str());
    let said =
        if message.contains(reason) { format!("{message} ({level})") } else { format!("{message}; why: {reason} ({level})") };
    let by = format!("; incident {}, command {}", command.incident, command.id);
    let said = gpuheal_proto::bytes_text::clip(&said, MESSAGE_BYTES_MAX.saturating_sub(by.len()));
    format!("{said}{by}")
}
