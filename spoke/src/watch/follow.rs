//! One watch, followed for ever: of each object only what is named in `wire.rs` is read at all, errors are counted, and all is
//! listed from scratch now and then, in pages. A failed read deletes nothing: only an event or a full list does. Lists and
//! watches by itself, because kube's watcher swallows bookmarks, and on a quiet cluster they are the only sign that a watch is
//! alive.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use gpuheal_proto::chain::chain;
use kube::{
    Client,
    api::{ListParams, Request, WatchParams},
    core::WatchEvent,
};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    heard::{Heard, Hearing},
    wire::{Page, Seen},
};
use crate::{
    backoff::Backoff,
    chance::chance,
    clock,
    metrics::{self, Metrics},
};

/// Longest that one watch request stays open. The API server sends a bookmark two seconds before the end, so that each
/// watch is heard twice a minute however quiet the cluster is.
const WATCH_TIMEOUT_S: u32 = 30;
/// A watch that is silent beyond its end has died without a word.
const SILENT_AFTER: Duration = Duration::from_secs(WATCH_TIMEOUT_S as u64 + 10);
/// One page of a list, and the answer to a watch request: above what an API server takes for a request.
const ANSWER_WITHIN: Duration = Duration::from_secs(70);
/// Objects in one page: half of what clients of Kubernetes usually ask for. A page is twice in memory while it is read, and 250
/// pods of a real cluster are 2 MiB of text.
const PAGE: u32 = 250;
/// Waits after failures in a row.
const BACKOFF: Backoff = Backoff { base: Duration::from_millis(500), max: Duration::from_secs(30) };

/// Where what a watch brings is kept. Objects of one list come between `begin` and `end`; a list that breaks off has no end.
pub(crate) trait Keep<K>: Send {
    /// A list begins.
    fn begin(&mut self);
    /// It is there as it says.
    fn put(&mut self, seen: K);
    /// It is gone.
    fn remove(&mut self, seen: K);
    /// The list is whole: what it did not bring is gone.
    fn end(&mut self);
}

/// What is watched and where it goes.
pub(crate) struct Follow<K> {
    pub(crate) kind: &'static str,
    pub(crate) client: Client,
    /// Where the API server has these objects.
    pub(crate) path: String,
    pub(crate) labels: Option<String>,
    pub(crate) fields: Option<String>,
    pub(crate) keep: Box<dyn Keep<K>>,
    pub(crate) resync: Duration,
    pub(crate) shared: Shared,
}

/// What every watch shares.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) heard: Arc<Heard>,
    pub(crate) cancel: CancellationToken,
}

/// Why a list or a watch ended before its time.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error("API server did not answer within {}s", ANSWER_WITHIN.as_secs())]
    NoAnswer,
    #[error("nothing was heard for {}s, not even a bookmark", SILENT_AFTER.as_secs())]
    Silent,
    #[error("API server ended the watch: {0}")]
    Status(Box<kube::core::Status>),
    #[error("request cannot be built")]
    Request(#[from] kube::core::request::Error),
}

impl Error {
    /// The version is too old to go on from: all must be listed again.
    fn gone(&self) -> bool {
        match self {
            Self::Kube(kube::Error::Api(status)) | Self::Status(status) => status.code == 410,
            Self::Kube(_) | Self::NoAnswer | Self::Silent | Self::Request(_) => false,
        }
    }
}

impl<K: Seen> Follow<K> {
    /// Until cancelled.
    pub(crate) async fn run(mut self) {
        let hearing = self.shared.heard.begin(self.kind);
        let cancel = self.shared.cancel.clone();
        tokio::select! {
            () = cancel.cancelled() => {}
            () = self.forever(&hearing) => {}
        }
    }

    async fn forever(&mut self, hearing: &Hearing) {
        let mut failures = 0;
        let mut version: Option<String> = None;
        let mut list_at = Instant::now();
        loop {
            let round = match &mut version {
                Some(version) if Instant::now() < list_at => self.watch(version, hearing).await,
                _ => self.list(hearing).await.map(|listed| {
                    version = Some(listed);
                    list_at = Instant::now() + self.resync.mul_f64(0.9 + 0.2 * chance(0.5));
                }),
            };
            let Err(error) = round else {
                failures = 0;
                continue;
            };
            tracing::warn!(kind = self.kind, error = %chain(&error), "watch failed, it is tried again");
            self.shared.metrics.inc(metrics::WATCH_ERRORS, &[("kind", self.kind)]);
            if error.gone() {
                version = None;
            }
            tokio::time::sleep(BACKOFF.wait(failures, chance(0.5))).await;
            failures += 1;
        }
    }

    /// All objects, and the version that they are of. What was kept and is not among them is gone.
    async fn list(&mut self, hearing: &Hearing) -> Result<String, Error> {
        let started = clock::boottime();
        let (request, mut params) = (Request::new(self.path.as_str()), ListParams::default().limit(PAGE));
        (params.label_selector, params.field_selector) = (self.labels.clone(), self.fields.clone());
        self.keep.begin();
        let version = loop {
            let page = self.client.request::<Page<K>>(request.list(&params)?);
            let page = timeout(ANSWER_WITHIN, page).await.map_err(|_| Error::NoAnswer)??;
            page.items.into_iter().flatten().for_each(|object| self.keep.put(object));
            match page.metadata.more.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => break page.metadata.resource_version.unwrap_or_default(),
            }
        };
        self.keep.end();
        hearing.note(started);
        Ok(version)
    }

    /// Changes from `version` on, until the API server ends the watch.
    async fn watch(&mut self, version: &mut String, hearing: &Hearing) -> Result<(), Error> {
        let (request, mut params) = (Request::new(self.path.as_str()), WatchParams::default().timeout(WATCH_TIMEOUT_S));
        (params.label_selector, params.field_selector) = (self.labels.clone(), self.fields.clone());
        let events = self.client.request_events::<K>(request.watch(&params, version)?);
        let events = timeout(ANSWER_WITHIN, events).await.map_err(|_| Error::NoAnswer)??;
        let mut events = events.boxed();
        loop {
            let Some(event) = timeout(SILENT_AFTER, events.next()).await.map_err(|_| Error::Silent)? else { return Ok(()) };
            let heard = clock::boottime();
            match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    advance(version, object.version());
                    self.keep.put(object);
                }
                WatchEvent::Deleted(object) => {
                    advance(version, object.version());
                    self.keep.remove(object);
                }
                WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
                WatchEvent::Error(status) => return Err(Error::Status(status)),
            }
            hearing.note(heard);
        }
    }
}

fn advance(version: &mut String, to: Option<&str>) {
    if let Some(to) = to {
        to.clone_into(version);
    }
}

#[cfg(test)]
mod tests;
