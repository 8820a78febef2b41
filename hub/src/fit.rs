//! Texts of spokes, made fit for Postgres, whose texts and JSON hold no zero byte: a stage that met one would fail, its
//! session would end, and the spoke would send the same again for ever. The one place for it, before any stage has the
//! message: each zero byte becomes U+FFFD, and what that leaves unreadable the stages set aside as they do with any id.
//!
//! Two kinds are left as they came, since their stages answer for them: a fault that cannot be believed is kept raw and
//! told (`ingest`), a person's request is answered with the name of its field (`decide`).

use std::collections::BTreeMap;

use gpuheal_proto::{
    ids::ClusterId,
    link::v1::{self, attach_request::Message, cluster_state::Body},
};

use crate::metrics;

/// The message as it may be stored. `kind` is what metrics call it.
pub(crate) fn fitted(cluster: &ClusterId, kind: &'static str, mut message: Message) -> Message {
    let texts = message.fit();
    if texts > 0 {
        metrics::TEXTS_MENDED.add([kind], texts as u64);
        tracing::warn!(cluster.id = %cluster, kind, texts, "texts held zero bytes, which were replaced");
    }
    message
}

/// Replaces zero bytes; returns in how many texts.
trait Fit {
    fn fit(&mut self) -> usize;
}

impl Fit for String {
    fn fit(&mut self) -> usize {
        let broken = self.contains('\0');
        if broken {
            *self = self.replace('\0', "\u{fffd}");
        }
        usize::from(broken)
    }
}

impl Fit for u64 {
    fn fit(&mut self) -> usize {
        0
    }
}

impl<T: Fit> Fit for Option<T> {
    fn fit(&mut self) -> usize {
        self.as_mut().map_or(0, Fit::fit)
    }
}

impl<T: Fit> Fit for Vec<T> {
    fn fit(&mut self) -> usize {
        self.iter_mut().map(Fit::fit).sum()
    }
}

impl<T: Fit> Fit for BTreeMap<String, T> {
    fn fit(&mut self) -> usize {
        let keys = self.keys().filter(|key| key.contains('\0')).count();
        if keys > 0 {
            *self = std::mem::take(self).into_iter().map(|(key, value)| (key.replace('\0', "\u{fffd}"), value)).collect();
        }
        keys + self.values_mut().map(Fit::fit).sum::<usize>()
    }
}

impl Fit for Message {
    fn fit(&mut self) -> usize {
        match self {
            Self::Hello(message) => message.fit(),
            Self::Gap(message) => message.fit(),
            Self::ClusterState(message) => message.body.as_mut().map_or(0, |body| match body {
                Body::Snapshot(part) => part.fit(),
                Body::Delta(delta) => delta.fit(),
            }),
            Self::Evidence(message) => message.fit(),
            Self::CommandStatus(message) => message.fit(),
            Self::SettingsAck(message) => message.fit(),
            Self::Heartbeat(message) => message.fit(),
            Self::FaultBatch(_) | Self::Process(_) => 0,
        }
    }
}

/// Every field of a message that holds text, or messages that do.
macro_rules! texts {
    ($($message:ident: $($field:ident),+;)+) => {
        $(impl Fit for v1::$message {
            fn fit(&mut self) -> usize {
                [$(self.$field.fit()),+].iter().sum()
            }
        })+

        #[cfg(test)]
        const TEXTS: &[(&str, &[&str])] = &[$((stringify!($message), &[$(stringify!($field)),+])),+];
    };
}

texts!(
    Hello: cluster_id, kube_system_uid, replica_id, boot_id, version, caps, journals, open_commands, cmd_id_seen;
    JournalHead: stream_id;
    Gap: stream_id, reason, counts_by_class;
    SnapshotPart: nodes, config, sources;
    StateDelta: changed, gone_uids, config, sources;
    NodeState: name, uid, boot_id, labels, gpus, unschedulable_by, mark, foreign_markers, gpu_pods;
    GpuRef: slot, uuid, model;
    Mark: incident_id;
    PodSummary: namespace, name, uid, owner;
    SourceState: source, node, state, reason;
    ClusterConfig: resource_version, yaml, errors;
    EvidenceBatch: items;
    Evidence: fault_key;
    CommandStatus: command_id, envelope_sha256, reason, steps, undo;
    StepStatus: name, message, pods;
    PodStatus: namespace, name, uid, state, reason;
    UndoRecord: fields;
    UndoField: key, before, after, resource_version;
    SettingsAck: errors;
    Heartbeat: head, cmd_id_seen;
);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gpuheal_proto::DESCRIPTORS;
    use prost::Message as _;
    use prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};

    use super::*;

    /// Answered for by their own stages.
    const LEFT: [&str; 2] = ["FaultBatch", "Process"];

    fn holds_text(all: &[DescriptorProto], message: &DescriptorProto) -> Vec<String> {
        let told = |kind: &str| {
            let entry = message.nested_type.iter().find(|entry| kind.ends_with(entry.name()));
            entry.is_some()
                || all
                    .iter()
                    .find(|other| other.name() == kind.rsplit('.').next().unwrap())
                    .is_some_and(|other| !holds_text(all, other).is_empty())
        };
        let text = |field: &&prost_types::FieldDescriptorProto| match field.r#type() {
            Type::String => true,
            Type::Message => told(field.type_name()),
            _ => false,
        };
        message.field.iter().filter(text).map(|field| field.name().to_owned()).collect()
    }

    #[test]
    fn every_text_that_a_spoke_may_send_is_made_fit() {
        let set = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
        let all: Vec<DescriptorProto> =
            set.file.into_iter().filter(|file| file.package() == "gpuheal.link.v1").flat_map(|file| file.message_type).collect();
        let named = |name: &str| all.iter().find(|message| message.name() == name).unwrap();
        let (mut open, mut seen) = (vec!["AttachRequest".to_owned()], BTreeSet::new());
        while let Some(name) = open.pop() {
            let message = named(&name);
            let inner = message.field.iter().filter(|field| field.r#type() == Type::Message);
            let inner = inner.map(|field| field.type_name().rsplit('.').next().unwrap().to_owned());
            let next: Vec<String> = inner.filter(|name| all.iter().any(|message| message.name() == name)).collect();
            open.extend(next.into_iter().filter(|name| !LEFT.contains(&name.as_str()) && seen.insert(name.clone())));
        }
        for name in seen.iter().filter(|name| name.as_str() != "ClusterState") {
            let listed: &[&str] = TEXTS.iter().find(|(message, _)| message == name).map_or(&[], |(_, fields)| fields);
            let (listed, wanted): (BTreeSet<&str>, Vec<String>) = (listed.iter().copied().collect(), holds_text(&all, named(name)));
            assert_eq!(listed, wanted.iter().map(String::as_str).collect(), "texts of {name}");
        }
    }

    #[test]
    fn a_zero_byte_is_shown_and_nothing_else_is_touched() {
        let node = v1::NodeState { name: "n1".into(), labels: [("a\0".into(), "b\0c\0".into())].into(), ..Default::default() };
        let delta = v1::StateDelta { changed: vec![node], gone_uids: vec!["u\0".into(), "u2".into()], ..Default::default() };
        let mut message = Message::ClusterState(v1::ClusterState { body: Some(Body::Delta(delta)), ..Default::default() });
        assert_eq!(message.fit(), 3);
        let Message::ClusterState(v1::ClusterState { body: Some(Body::Delta(delta)), .. }) = &message else {
            panic!("{message:?}")
        };
        assert_eq!(delta.gone_uids, ["u\u{fffd}", "u2"]);
        assert_eq!(delta.changed[0].labels, [("a\u{fffd}".to_owned(), "b\u{fffd}c\u{fffd}".to_owned())].into());
        assert_eq!(message.fit(), 0);
    }
}
