//! Kubernetes Events with reason `GPUSelfHealing`: what was done, why, by which incident and command. On the node they
//! land in namespace `default`, on a HealAction in our own, on a pod in the pod's, since people look with `-n`. An Event's name is made from
//! what it says it is about, so that a step which is repeated posts it once. Failing to post one stops nothing, and is
//! told to whoever wants to know.

use gpuheal_proto::{
    chain::chain,
    command::Command,
    kubernetes::{EVENT_REASON, FIELD_MANAGER},
};
use gpuheal_spoke_core::drain::PodFacts;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff,
};
use kube::{Api, api::PostParams};
use sha2::{Digest as _, Sha256};

use crate::{
    clock,
    execute::api::{Error, Kube},
    healaction::{HealAction, PodRecord},
};

/// Longest message that the API server takes.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Bytes of a hash in an Event's name: 64 bits tell the pods and owners of one command apart, in 16 letters.
const HASH_BYTES: usize = 8;

/// How bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As wanted.
    Normal,
    /// A person should look.
    Warning,
}

/// The moment that an Event tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    what: &'static str,
    name: String,
}

impl Moment {
    /// One that a command has once.
    #[must_use]
    pub fn once(what: &'static str) -> Self {
        Self { what, name: what.to_owned() }
    }

    /// One that a command has for each of several, told apart by their UIDs. Whoever may make a pod writes what stands there for
    /// its owner, and not all of that may be in a name: a hash may, and it is the same for whoever takes the command up.
    #[must_use]
    pub fn of(what: &'static str, uid: &str) -> Self {
        Self { what, name: format!("{what}-{}", hash(uid)) }
    }

    /// The same where each of them may have one of each kind.
    #[must_use]
    pub fn of_kind(what: &'static str, kind: &'static str, uid: &str) -> Self {
        Self { what, name: format!("{what}-{kind}-{}", hash(uid)) }
    }
}

fn hash(uid: &str) -> String {
    hex::encode(&Sha256::digest(uid)[..HASH_BYTES])
}

/// A pod that an Event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whose {
    namespace: String,
    name: String,
    uid: String,
}

impl From<&PodFacts> for Whose {
    fn from(pod: &PodFacts) -> Self {
        Self { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() }
    }
}

impl From<&PodRecord> for Whose {
    fn from(pod: &PodRecord) -> Self {
        Self { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() }
    }
}

impl Whose {
    /// Its UID.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }
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

    /// On the command's node; the same moment is told once.
    ///
    /// # Errors
    /// Why it was not posted.
    pub async fn on_node(&self, command: &Command, moment: &Moment, kind: Kind, message: &str) -> Result<(), Error> {
        let node = &command.target.node;
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.name.to_string()),
            uid: Some(node.uid.to_string()),
            ..ObjectReference::default()
        };
        self.post("default", about, command, moment, kind, message).await
    }

    /// On a pod of the command's node; the same moment is told once.
    ///
    /// # Errors
    /// Why it was not posted.
    pub async fn on_pod(&self, command: &Command, pod: &Whose, moment: &Moment, kind: Kind, message: &str) -> Result<(), Error> {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.name.clone()),
            namespace: Some(pod.namespace.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
        self.post(&pod.namespace, about, command, moment, kind, message).await
    }

    /// On the command's HealAction.
    ///
    /// # Errors
    /// Why it was not posted.
    pub async fn on_action(
        &self,
        action: &HealAction,
        command: &Command,
        moment: &Moment,
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
        self.post(&namespace, about, command, moment, kind, message).await
    }

    async fn post(
        &self,
        namespace: &str,
        about: ObjectReference,
        command: &Command,
        moment: &Moment,
        kind: Kind,
        message: &str,
    ) -> Result<(), Error> {
        let event = self.event(namespace, about, command, moment, kind, message);
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

    fn event(
        &self,
        namespace: &str,
        about: ObjectReference,
        command: &Command,
        moment: &Moment,
        kind: Kind,
        message: &str,
    ) -> Event {
        let now = Time(jiff::Timestamp::from_millisecond(clock::wall().unix_ms()).unwrap_or(jiff::Timestamp::UNIX_EPOCH));
        Event {
            metadata: ObjectMeta {
                name: Some(format!(
                    "gpuheal-{}-{}-{}",
                    command.id,
                    moment.name,
                    about.kind.as_deref().unwrap_or_default().to_lowercase()
                )),
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
            action: Some(moment.what.to_owned()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_stands_there_for_an_owner_makes_a_name_that_fits_and_is_the_same_each_time() {
        let long = "x".repeat(10_000);
        for uid in ["0b8a9c5e-5a3f-4a39-8a67-2a1f3b1c9d10", "", "Bad/UID_ of:somebody", &long] {
            let moment = Moment::of("returns", uid);
            assert_eq!(moment, Moment::of("returns", uid));
            let hash = moment.name.strip_prefix("returns-").unwrap();
            assert!(hash.len() == 16 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{hash}");
            assert_eq!(moment.what, "returns", "what is counted by its action tells nobody's UID");
        }
        assert_ne!(Moment::of("returns", "a"), Moment::of("returns", "b"));
    }

    #[test]
    fn moments_of_two_kinds_are_two_of_one_action() {
        let (one, other) = (Moment::of_kind("blocked", "budget", "a"), Moment::of_kind("blocked", "admission", "a"));
        assert_ne!(one.name, other.name);
        assert_eq!((one.what, other.what), ("blocked", "blocked"));
        assert_eq!(one, Moment::of_kind("blocked", "budget", "a"));
        assert_ne!(one, Moment::of_kind("blocked", "budget", "b"));
    }
}
