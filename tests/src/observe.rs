//! What happens in a cluster as its API server tells it: when a node was tainted, when a pod was told to end and when it
//! was gone. A pair of watches on the harness's own client; it writes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use futures::StreamExt as _;
use gpuheal_proto::kubernetes::{LABEL_STATUS, TAINT_FAULTY};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::task::JoinHandle;

/// A moment in a node's story.
#[derive(Clone, Debug)]
pub struct NodeChange {
    /// When it was seen.
    pub at: Instant,
    /// The node.
    pub node: String,
    /// Our taint is there.
    pub tainted: bool,
    /// Our label is there.
    pub labelled: bool,
    /// `spec.unschedulable`.
    pub cordoned: bool,
}

/// A pod's story.
#[derive(Clone, Debug)]
pub struct PodStory {
    /// Namespace and name.
    pub name: String,
    /// Value of its label `app`.
    pub app: String,
    /// Node that it was bound to.
    pub node: String,
    /// When it was first seen with a deletion time.
    pub ending_at: Option<Instant>,
    /// When it was gone.
    pub gone_at: Option<Instant>,
}

#[derive(Default)]
struct Seen {
    nodes: Vec<NodeChange>,
    pods: BTreeMap<String, PodStory>,
}

/// The watches of one cluster.
pub struct Observer {
    seen: Arc<Mutex<Seen>>,
    tasks: [JoinHandle<()>; 2],
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().expect("no holder of the observer's state panics")
}

impl Observer {
    /// Starts watching.
    #[must_use]
    pub fn start(client: &Client) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let nodes = tokio::spawn(watch_nodes(client.clone(), Arc::clone(&seen)));
        let pods = tokio::spawn(watch_pods(client.clone(), Arc::clone(&seen)));
        Self { seen, tasks: [nodes, pods] }
    }

    /// A handle on what is seen, for whoever only reads it.
    #[must_use]
    pub fn view(&self) -> View {
        View(Arc::clone(&self.seen))
    }

    /// Every change of a node's marks, in order.
    #[must_use]
    pub fn node_changes(&self, node: &str) -> Vec<NodeChange> {
        lock(&self.seen).nodes.iter().filter(|change| change.node == node).cloned().collect()
    }

    /// When our taint first appeared on a node after `since`.
    #[must_use]
    pub fn tainted_at(&self, node: &str, since: Instant) -> Option<Instant> {
        self.node_changes(node).into_iter().find(|change| change.tainted && change.at >= since).map(|change| change.at)
    }

    /// How often our taint was put on a node: from absent to present.
    #[must_use]
    pub fn times_tainted(&self, node: &str) -> usize {
        let changes = self.node_changes(node);
        let mut before = false;
        let mut times = 0;
        for change in changes {
            times += usize::from(change.tainted && !before);
            before = change.tainted;
        }
        times
    }

    /// The pods that were ever bound to a node, by UID.
    #[must_use]
    pub fn pods_of(&self, node: &str) -> BTreeMap<String, PodStory> {
        lock(&self.seen).pods.iter().filter(|(_, pod)| pod.node == node).map(|(uid, pod)| (uid.clone(), pod.clone())).collect()
    }

    /// Whether a node carries our taint or label, as it was seen last.
    #[must_use]
    pub fn marked_now(&self, node: &str) -> bool {
        self.node_changes(node).last().is_some_and(|change| change.tainted || change.labelled)
    }

    /// Nodes that carry our taint now.
    #[must_use]
    pub fn tainted_now(&self) -> Vec<String> {
        let mut last = BTreeMap::new();
        for change in &lock(&self.seen).nodes {
            last.insert(change.node.clone(), change.tainted);
        }
        last.into_iter().filter_map(|(node, tainted)| tainted.then_some(node)).collect()
    }
}

/// What an observer sees, without the watches.
#[derive(Clone)]
pub struct View(Arc<Mutex<Seen>>);

impl View {
    /// The changes of nodes' marks from the one of this number on.
    #[must_use]
    pub fn node_changes_from(&self, number: usize) -> Vec<NodeChange> {
        lock(&self.0).nodes.get(number..).unwrap_or_default().to_vec()
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn watch_nodes(client: Client, seen: Arc<Mutex<Seen>>) {
    let stream = watcher(Api::<Node>::all(client), watcher::Config::default()).default_backoff().applied_objects();
    let mut stream = std::pin::pin!(stream);
    while let Some(next) = stream.next().await {
        let Ok(node) = next else { continue };
        let spec = node.spec.as_ref();
        let change = NodeChange {
            at: Instant::now(),
            node: node.name_any(),
            tainted: spec
                .and_then(|spec| spec.taints.as_ref())
                .is_some_and(|taints| taints.iter().any(|taint| taint.key == TAINT_FAULTY)),
            labelled: node.labels().contains_key(LABEL_STATUS),
            cordoned: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
        };
        let mut seen = lock(&seen);
        let last = seen.nodes.iter().rev().find(|last| last.node == change.node);
        let same = last
            .is_some_and(|last| (last.tainted, last.labelled, last.cordoned) == (change.tainted, change.labelled, change.cordoned));
        if !same {
            seen.nodes.push(change);
        }
    }
}

async fn watch_pods(client: Client, seen: Arc<Mutex<Seen>>) {
    let stream = watcher(Api::<Pod>::all(client), watcher::Config::default()).default_backoff();
    let mut stream = std::pin::pin!(stream);
    let mut listed = BTreeSet::new();
    while let Some(next) = stream.next().await {
        // A watch that broke is opened again by the stream itself.
        let Ok(event) = next else { continue };
        let now = Instant::now();
        match event {
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(pod) => {
                listed.extend(pod.uid());
                note_pod(&mut lock(&seen), &pod, now);
            }
            // What went while nobody watched.
            watcher::Event::InitDone => {
                for (_, story) in lock(&seen).pods.iter_mut().filter(|(uid, _)| !listed.contains(*uid)) {
                    story.gone_at.get_or_insert(now);
                }
            }
            watcher::Event::Apply(pod) => note_pod(&mut lock(&seen), &pod, now),
            watcher::Event::Delete(pod) => {
                let mut seen = lock(&seen);
                note_pod(&mut seen, &pod, now);
                if let Some(story) = pod.uid().and_then(|uid| seen.pods.get_mut(&uid)) {
                    story.gone_at.get_or_insert(now);
                }
            }
        }
    }
}

fn note_pod(seen: &mut Seen, pod: &Pod, now: Instant) {
    let Some(uid) = pod.uid() else { return };
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let story = seen.pods.entry(uid).or_insert_with(|| PodStory {
        name: format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()),
        app: pod.labels().get("app").cloned().unwrap_or_default(),
        node: String::new(),
        ending_at: None,
        gone_at: None,
    });
    if story.node.is_empty() {
        story.node = node;
    }
    if pod.metadata.deletion_timestamp.is_some() {
        story.ending_at.get_or_insert(now);
    }
}
