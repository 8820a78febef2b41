//! What the hub was told: of each node and each source a digest, so that what is not as it was told is found without a second
//! copy of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_proto::{
    link::v1,
    state_digest::{self, NodeWord},
};
use prost::Message;
use sha2::{Digest as _, Sha256};

/// Half of a SHA-256: nobody gains by a collision, and by chance none comes.
type Digest = [u8; 16];

/// What was told, to tell only what changed.
#[derive(Debug, Default)]
pub(super) struct Told {
    nodes: BTreeMap<Box<str>, Word>,
    pub(super) config: v1::ClusterConfig,
    sources: BTreeSet<Digest>,
    pub(super) cordons: BTreeMap<String, bool>,
}

/// The last word about a node.
#[derive(Debug)]
struct Word {
    uid: Box<str>,
    digest: Digest,
    /// Its share of the digest that the hub makes too.
    share: u64,
}

/// What is new in a word about a node.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct News {
    /// Anything.
    pub(super) changed: bool,
    /// The UID of another machine that was told under this name before, and is gone.
    pub(super) gone: Option<String>,
}

impl Told {
    /// Nothing but the owner's configuration and whose the cordons are.
    pub(super) fn begin(config: v1::ClusterConfig, cordons: BTreeMap<String, bool>) -> Self {
        Self { config, cordons, ..Self::default() }
    }

    /// Takes a word about a node as told.
    pub(super) fn takes(&mut self, node: &v1::NodeState) -> News {
        let word = Word { uid: node.uid.as_str().into(), digest: digest(node), share: NodeWord::from(node).share() };
        let Some(known) = self.nodes.get_mut(node.name.as_str()) else {
            self.nodes.insert(node.name.as_str().into(), word);
            return News { changed: true, gone: None };
        };
        let before = std::mem::replace(known, word);
        let gone = (before.uid != known.uid).then(|| before.uid.into());
        News { changed: before.digest != known.digest, gone }
    }

    /// The node is gone; its UID, if it was told.
    pub(super) fn forgets(&mut self, name: &str) -> Option<String> {
        self.nodes.remove(name).map(|word| word.uid.into())
    }

    /// Whether a node of this name was told.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
    }

    /// What the hub must make of all that was told.
    pub(super) fn digest(&self) -> v1::StateDigest {
        state_digest::digest(self.nodes.values().map(|word| word.share))
    }

    /// Nodes that were told and whose cordon is not whose it was.
    pub(super) fn moved<'a>(&'a self, cordons: &'a BTreeMap<String, bool>) -> impl Iterator<Item = String> + 'a {
        let moved = |word: &Word| cordons.get(&*word.uid) != self.cordons.get(&*word.uid);
        self.nodes.iter().filter(move |(_, word)| moved(word)).map(|(name, _)| name.to_string())
    }

    /// Takes the sources as told; those whose state or reason changed. That one was seen again is not worth a message.
    pub(super) fn takes_sources(&mut self, sources: &[v1::SourceState]) -> Vec<v1::SourceState> {
        let known = |source: &v1::SourceState| digest(&v1::SourceState { last_seen_unix_ms: 0, ..source.clone() });
        let now: BTreeSet<Digest> = sources.iter().map(known).collect();
        let before = std::mem::replace(&mut self.sources, now);
        sources.iter().filter(|source| !before.contains(&known(source))).cloned().collect()
    }
}

/// Maps of our messages are sorted, so that what is equal is written equally.
fn digest(message: &impl Message) -> Digest {
    let whole: [u8; 32] = Sha256::digest(message.encode_to_vec()).into();
    std::array::from_fn(|at| whole[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(uid: &str, pods: usize) -> v1::NodeState {
        let pod = |n: usize| v1::PodSummary { name: format!("p{n}"), ..Default::default() };
        v1::NodeState { name: "n1".into(), uid: uid.into(), gpu_pods: (0..pods).map(pod).collect(), ..Default::default() }
    }

    #[test]
    fn a_word_is_new_once_and_another_machine_under_the_name_ends_the_one_before() {
        let mut told = Told::default();
        let new = |changed, gone: Option<&str>| News { changed, gone: gone.map(str::to_owned) };
        assert_eq!(told.takes(&node("a", 1)), new(true, None));
        assert_eq!(told.takes(&node("a", 1)), new(false, None));
        assert_eq!(told.takes(&node("a", 2)), new(true, None));
        assert_eq!(told.takes(&node("b", 2)), new(true, Some("a")));
        assert_eq!((told.forgets("n1").as_deref(), told.forgets("n1")), (Some("b"), None));
    }

    #[test]
    fn a_source_that_was_only_seen_again_is_no_news() {
        let source = |state: &str, at| v1::SourceState {
            source: "exporter".into(),
            state: state.into(),
            last_seen_unix_ms: at,
            ..Default::default()
        };
        let mut told = Told::default();
        for (state, at, news) in [("fresh", 1, 1), ("fresh", 2, 0), ("stale", 2, 1), ("fresh", 3, 1)] {
            assert_eq!(told.takes_sources(&[source(state, at)]).len(), news, "{state} at {at}");
        }
    }
}
