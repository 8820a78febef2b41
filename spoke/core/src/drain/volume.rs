//! Whether a volume can follow its pod to another node, as the VolumeAttachments of its cluster say. A volume of which there is
//! none needs no attaching. Pure.

use serde_json::Value;

/// Of what the attacher says of an error so much is told.
const WORDS_CHARS_MAX: usize = 200;

/// What a VolumeAttachment says, as far as it is looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    /// The PersistentVolume.
    pub volume: String,
    /// The node.
    pub node: String,
    /// It is attached there.
    pub attached: bool,
    /// Why it could not be attached; empty when nothing is said.
    pub attach_error: String,
    /// Why it could not be detached, likewise.
    pub detach_error: String,
}

impl Attachment {
    /// From the object's JSON; nothing where it is about no PersistentVolume.
    #[must_use]
    pub fn from_json(object: &Value) -> Option<Self> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let error = |pointer: &str| match object.pointer(pointer) {
            None | Some(Value::Null) => String::new(),
            Some(error) => error["message"]
                .as_str()
                .filter(|words| !words.is_empty())
                .unwrap_or("no reason given")
                .chars()
                .take(WORDS_CHARS_MAX)
                .collect(),
        };
        Some(Self {
            volume: text("/spec/source/persistentVolumeName")?.to_owned(),
            node: text("/spec/nodeName")?.to_owned(),
            attached: object.pointer("/status/attached") == Some(&Value::Bool(true)),
            attach_error: error("/status/attachError"),
            detach_error: error("/status/detachError"),
        })
    }

    /// What stands in the way of attaching the volume elsewhere.
    fn trouble(&self) -> Option<String> {
        let Self { volume, node, .. } = self;
        if !self.detach_error.is_empty() {
            return Some(format!("volume {volume} cannot be detached from node {node}: {}", self.detach_error));
        }
        if !self.attach_error.is_empty() {
            return Some(format!("volume {volume} cannot be attached to node {node}: {}", self.attach_error));
        }
        (!self.attached).then(|| format!("volume {volume} is not attached to node {node} yet"))
    }
}

/// Why a pod with this volume had better stay where it is: it could not start anywhere else. Nothing when all is well.
#[must_use]
pub fn trouble(attachments: &[Attachment], volume: &str) -> Option<String> {
    attachments.iter().filter(|one| one.volume == volume).find_map(Attachment::trouble)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn attachment(status: Value) -> Attachment {
        let spec = json!({"attacher": "csi.example.com", "nodeName": "n1", "source": {"persistentVolumeName": "pv-1"}});
        Attachment::from_json(&json!({"spec": spec, "status": status})).unwrap()
    }

    fn told(status: Value) -> Option<String> {
        trouble(&[attachment(json!({"attached": true})), attachment(status)], "pv-1")
    }

    #[test]
    fn a_volume_that_is_attached_and_of_which_no_error_is_told_can_follow_its_pod() {
        assert_eq!(told(json!({"attached": true})), None);
        assert_eq!(trouble(&[attachment(json!({"attached": false}))], "pv-2"), None, "another volume's");
        assert_eq!(trouble(&[], "pv-1"), None, "it needs no attaching");
    }

    #[test]
    fn each_trouble_of_a_volume_is_named_with_its_node() {
        assert_eq!(told(json!({"attached": false})).as_deref(), Some("volume pv-1 is not attached to node n1 yet"));
        assert_eq!(told(json!(null)).as_deref(), Some("volume pv-1 is not attached to node n1 yet"));
        let error = json!({"attached": true, "detachError": {"message": "device busy"}});
        assert_eq!(told(error).as_deref(), Some("volume pv-1 cannot be detached from node n1: device busy"));
        let error = json!({"attached": false, "attachError": {"time": "2026-01-01T00:00:00Z"}});
        assert_eq!(told(error).as_deref(), Some("volume pv-1 cannot be attached to node n1: no reason given"));
        let long = json!({"attached": true, "detachError": {"message": "x".repeat(10_000)}});
        assert!(told(long).unwrap().len() < 300);
    }

    #[test]
    fn what_is_about_no_persistent_volume_is_passed_over() {
        assert_eq!(Attachment::from_json(&json!({"spec": {"nodeName": "n1", "source": {"inlineVolumeSpec": {}}}})), None);
    }
}
