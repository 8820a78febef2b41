//! The watch of the pods of a node that is being drained. Read only while somebody asks for its next event: what happens
//! meanwhile waits in the connection, and no queue of ours grows. Its age is told like every watch's.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use gpuheal_spoke_core::drain::PodFacts;
use k8s_openapi::api::core::v1::Pod;
use kube::Resource as _;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::super::Ctx;
use crate::watch::{DRAINED_PODS, Follow, FollowShared, Keep, RESYNC, Seen};

/// What the watch brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A list begins: what comes until it is whole is all that is there.
    Listing,
    /// It is there as it says.
    Is(Box<PodFacts>),
    /// The pod of this UID is gone.
    Gone(String),
    /// The list is whole.
    Listed,
}

type Queue = Arc<Mutex<VecDeque<Event>>>;

/// The pods of one node.
pub(super) struct Pods {
    follow: BoxFuture<'static, ()>,
    /// What was read of the connection at once and was not asked for yet.
    read: Queue,
}

impl Pods {
    /// Nothing is asked of the API server before the first [`Self::next`].
    pub(super) fn on(ctx: &Ctx, node: &str) -> Self {
        let read = Queue::default();
        let follow = Follow {
            kind: DRAINED_PODS,
            client: ctx.kube.client(),
            path: Pod::url_path(&(), None),
            labels: None,
            fields: Some(format!("spec.nodeName={node}")),
            keep: Box::new(Tell(Arc::clone(&read))),
            resync: RESYNC,
            shared: FollowShared {
                metrics: Arc::clone(&ctx.deps.metrics),
                heard: Arc::clone(&ctx.deps.heard),
                // It ends with the drain, by being dropped.
                cancel: CancellationToken::new(),
            },
        };
        Self { follow: Box::pin(follow.run()), read }
    }

    /// The next event, in the order in which they came. Whoever gives up waiting loses none.
    pub(super) async fn next(&mut self) -> Event {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if let Some(event) = self.take() {
            return Poll::Ready(event);
        }
        // It never ends by itself: what fails is tried again.
        let _ = Pin::new(&mut self.follow).poll(cx);
        self.take().map_or(Poll::Pending, Poll::Ready)
    }

    fn take(&self) -> Option<Event> {
        self.read.lock().expect("no holder of this lock panics").pop_front()
    }
}

struct Tell(Queue);

impl Tell {
    fn tell(&self, event: Event) {
        self.0.lock().expect("no holder of this lock panics").push_back(event);
    }
}

impl Keep<PodNow> for Tell {
    fn begin(&mut self) {
        self.tell(Event::Listing);
    }

    fn put(&mut self, pod: PodNow) {
        if let Some(facts) = pod.facts {
            self.tell(Event::Is(Box::new(facts)));
        }
    }

    fn remove(&mut self, pod: PodNow) {
        if let Some(facts) = pod.facts {
            self.tell(Event::Gone(facts.uid));
        }
    }

    fn end(&mut self) {
        self.tell(Event::Listed);
    }
}

/// A pod as an event has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Value")]
struct PodNow {
    facts: Option<PodFacts>,
    version: Option<String>,
}

impl From<Value> for PodNow {
    fn from(pod: Value) -> Self {
        let version = pod.pointer("/metadata/resourceVersion").and_then(Value::as_str).map(ToOwned::to_owned);
        Self { facts: PodFacts::from_json(&pod), version }
    }
}

impl Seen for PodNow {
    fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }
}
