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

/// A volume of a bound claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// The PersistentVolume.
    pub name: String,
    /// It may be attached to many nodes at once.
    pub shared: bool,
}

impl Volume {
    /// Of a claim with these access modes. One that asks for a single node's too is taken for that one's, unless all may write.
    #[must_use]
    pub fn of_claim(name: String, access_modes: &[String]) -> Self {
        let written = access_modes.iter().any(|mode| mode == "ReadWriteMany");
        let read = !access_modes.is_empty() && access_modes.iter().all(|mode| mode == "ReadOnlyMany");
        Self { name, shared: written || read }
    }
}

/// Why a pod of this node with this volume had better stay where it is: it could not start anywhere else. Nothing when all is well.
/// A volume that many nodes share says by its other attachments nothing of whether it could follow: those are other pods'.
#[must_use]
pub fn trouble(attachments: &[Attachment], volume: &Volume, node: &str) -> Option<String> {
    let matters = |one: &&Attachment| one.volume == volume.name && (!volume.shared || one.node == node);
    attachments.iter().filter(matters).find_map(Attachment::trouble)
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
        trouble(&[attachment(json!({"attached": true})), attachment(status)], &volume("pv-1", "ReadWriteOnce"), "n1")
    }

    fn volume(name: &str, mode: &str) -> Volume {
        Volume::of_claim(name.to_owned(), &[mode.to_owned()])
    }

    #[test]
    fn of_a_volume_that_many_nodes_share_only_this_nodes_attachment_counts() {
        let ill = [attachment(json!({"attached": false}))];
        for mode in ["ReadWriteMany", "ReadOnlyMany"] {
            assert_eq!(trouble(&ill, &volume("pv-1", mode), "n2"), None, "{mode}: another node's");
            assert!(trouble(&ill, &volume("pv-1", mode), "n1").is_some(), "{mode}: its own");
        }
        for mode in ["ReadWriteOnce", "ReadWriteOncePod"] {
            assert!(trouble(&ill, &volume("pv-1", mode), "n2").is_some(), "{mode}: it can be nowhere else");
        }
        let both = Volume::of_claim("pv-1".to_owned(), &["ReadWriteOnce".to_owned(), "ReadOnlyMany".to_owned()]);
        assert!(!both.shared && !Volume::of_claim("pv-1".to_owned(), &[]).shared);
    }

    #[test]
    fn a_volume_that_is_attached_and_of_which_no_error_is_told_can_follow_its_pod() {
        assert_eq!(told(json!({"attached": true})), None);
        assert_eq!(
            trouble(&[attachment(json!({"attached": false}))], &volume("pv-2", "ReadWriteOnce"), "n1"),
            None,
            "another volume's"
        );
        assert_eq!(trouble(&[], &volume("pv-1", "ReadWriteOnce"), "n1"), None, "it needs no attaching");
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
