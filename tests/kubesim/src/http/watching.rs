//! Watches: changes after a version, bookmarks on quiet ones, 410 for what the window no longer covers.
//! A stalled watch stays open and says nothing; a cut one ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures::StreamExt;
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::answer::Answer;
use super::list::Selection;
use super::{App, Asked, table};
use crate::faults::Subject;
use crate::registry::ResourceKind;
use crate::status::ApiError;
use crate::store::{Change, ChangeKind, Stored};

/// How long a watch lives that names no timeout: half an hour.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30 * 60);

/// A bookmark is also sent this long before the end, so that the next watch starts from there.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

struct Watch {
    app: Arc<App>,
    kind: Arc<ResourceKind>,
    selection: Selection,
    shape: table::Shape,
    cursor: u64,
    ready: VecDeque<Bytes>,
    commits: watch::Receiver<u64>,
    cuts: watch::Receiver<(u64, String)>,
    bookmarks: bool,
    next_bookmark: Instant,
    end: Instant,
    over: bool,
    who: Who,
}

/// Enough of the request to look up faults later.
struct Who {
    namespace: String,
    user: String,
    user_agent: String,
}

pub(super) fn answer(asked: &Asked, kind: &Arc<ResourceKind>) -> Result<Answer, ApiError> {
    let selection = Selection::of(asked, kind)?;
    let info = &asked.info;
    let asked_version = info.param("resourceVersion");
    let from = match asked_version {
        "" | "0" => None,
        text => Some(text.parse::<u64>().map_err(|_| {
            ApiError::bad_request(format!("Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"))
        })?),
    };
    let initial = info.flag("sendInitialEvents");
    let app = asked.app.clone();
    let mut watch = Watch {
        commits: app.store.subscribe(),
        cuts: app.faults.cuts(),
        shape: table::Shape::of(asked),
        cursor: from.unwrap_or_default(),
        ready: VecDeque::new(),
        bookmarks: info.flag("allowWatchBookmarks"),
        next_bookmark: Instant::now() + app.bookmark_every,
        end: Instant::now() + info.number("timeoutSeconds").filter(|s| *s > 0).map_or(TIMEOUT_DEFAULT, Duration::from_secs),
        over: false,
        who: Who {
            namespace: info.namespace.clone(),
            user: asked.user.name.clone(),
            user_agent: asked.subject().user_agent.to_owned(),
        },
        kind: kind.clone(),
        selection,
        app,
    };
    watch.plan_bookmark();
    if from.is_none() || initial {
        watch.replay(initial);
    }
    watch.cuts.mark_unchanged();
    Ok(Answer::stream(stream::unfold(watch, |mut watch| async move { watch.next().await.map(|bytes| (bytes, watch)) }).boxed()))
}

impl Watch {
    /// Everything there is, as if it had just been added.
    fn replay(&mut self, end_marked: bool) {
        let (mut rows, version) = self.app.store.snapshot(&self.kind.storage);
        rows.retain(|(key, stored)| self.selection.matches(key, stored));
        for (_, stored) in &rows {
            self.emit("ADDED", stored);
        }
        self.cursor = version;
        if end_marked && self.bookmarks {
            let marked = json!({ "k8s.io/initial-events-end": "true" });
            self.push_bookmark(Some(marked));
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.was_cut() {
                return None;
            }
            if !self.stalled() {
                if let Some(bytes) = self.ready.pop_front() {
                    return Some(bytes);
                }
                if self.over {
                    return None;
                }
                self.collect();
                if !self.ready.is_empty() {
                    continue;
                }
                if self.bookmarks && Instant::now() >= self.next_bookmark {
                    self.push_bookmark(None);
                    continue;
                }
            }
            if Instant::now() >= self.end {
                return None;
            }
            self.wait().await;
        }
    }

    async fn wait(&mut self) {
        let wake = if self.bookmarks { self.end.min(self.next_bookmark) } else { self.end };
        // A stalled watch looks every now and then whether it may speak again.
        let wake = if self.stalled() { Instant::now() + Duration::from_millis(5) } else { wake };
        tokio::select! {
            _ = self.commits.changed() => {}
            _ = self.cuts.changed() => self.mark_cut(),
            () = tokio::time::sleep_until(wake) => {}
        }
    }

    fn mark_cut(&mut self) {
        let resource = self.cuts.borrow_and_update().1.clone();
        if resource == "*" || resource == self.kind.plural {
            self.over = true;
            self.ready.clear();
        }
    }

    fn was_cut(&mut self) -> bool {
        if self.cuts.has_changed().unwrap_or_default() {
            self.mark_cut();
        }
        self.over && self.ready.is_empty()
    }

    fn stalled(&self) -> bool {
        self.app.faults.stalls(&Subject {
            verb: "watch",
            resource: &self.kind.plural,
            subresource: "",
            name: "",
            namespace: &self.who.namespace,
            user: &self.who.user,
            user_agent: &self.who.user_agent,
        })
    }

    fn collect(&mut self) {
        self.commits.mark_unchanged();
        match self.app.store.changes_after(self.cursor, Some(&self.kind.storage)) {
            Ok((changes, version)) => {
                for change in &changes {
                    self.offer(change);
                }
                self.cursor = self.cursor.max(version);
            }
            Err(_) => {
                let error = ApiError::expired(&format!("too old resource version: {} ({})", self.cursor, self.app.store.version()));
                self.ready.push_back(line("ERROR", &error.to_value().to_string()));
                self.over = true;
            }
        }
    }

    /// A change as the selector sees it: what starts to match is added, what ceases to is deleted.
    fn offer(&mut self, change: &Change) {
        let matched = change.before.as_ref().is_some_and(|before| self.selection.matches(&change.key, before));
        let matches = change.kind != ChangeKind::Deleted && self.selection.matches(&change.key, &change.now);
        match (matched, matches) {
            (false, true) => self.emit("ADDED", &change.now),
            (true, true) => self.emit("MODIFIED", &change.now),
            (true, false) => self.emit("DELETED", &change.now),
            (false, false) => {}
        }
    }

    fn emit(&mut self, event: &str, stored: &Stored) {
        let object = self.shape.text(&self.app, &self.kind, stored);
        self.ready.push_back(line(event, &object));
    }

    fn push_bookmark(&mut self, annotations: Option<Value>) {
        let mut metadata = json!({ "resourceVersion": self.cursor.to_string(), "creationTimestamp": null });
        if let Some(annotations) = annotations {
            metadata["annotations"] = annotations;
        }
        let object = json!({ "kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata });
        self.ready.push_back(line("BOOKMARK", &self.shape.bookmark(object).to_string()));
        self.plan_bookmark();
    }

    fn plan_bookmark(&mut self) {
        let now = Instant::now();
        let regular = now + self.app.bookmark_every;
        let last = self.end - LAST_BOOKMARK;
        self.next_bookmark = if last > now { regular.min(last) } else { regular };
    }
}

fn line(event: &str, object: &str) -> Bytes {
    Bytes::from(format!("{{\"type\":\"{event}\",\"object\":{object}}}\n"))
}
