//! Remembers every request: what was asked, by whom, and what was answered.
//! A request is recorded before its answer leaves, so a client that has the answer finds the record.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

/// 20,000 requests of about 1 kB are 20 MB, and more than any test sends.
pub const RECORDS_MAX: usize = 20_000;

/// One request.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Number since the start; never reused.
    pub seq: u64,
    /// Milliseconds since the cluster's start, on the monotonic clock.
    pub at_ms: u64,
    /// HTTP method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// API verb: get, list, watch, create, update, patch, delete, deletecollection.
    pub verb: String,
    /// API group.
    pub group: String,
    /// Plural name; empty for paths that name no resource.
    pub resource: String,
    /// Subresource; empty for the object itself.
    pub subresource: String,
    /// Namespace; empty for cluster-wide.
    pub namespace: String,
    /// Object name.
    pub name: String,
    /// `User-Agent` header.
    pub user_agent: String,
    /// Authenticated user.
    pub user: String,
    /// `Content-Type` of the body.
    pub content_type: String,
    /// Body of a write.
    pub body: Option<Value>,
    /// Fields of the body that the server does not know and ignored in silence.
    pub ignored_fields: Vec<String>,
    /// Asked with dryRun: nothing was changed.
    pub dry_run: bool,
    /// HTTP code of the answer; 0 when the connection was cut instead.
    pub code: u16,
}

impl Record {
    /// Whether the request asked for a change, refused or not. Reviews of access count as reads.
    pub fn is_write(&self) -> bool {
        let review = self.group.ends_with("authorization.k8s.io") && self.group != "rbac.authorization.k8s.io"
            || self.group == "authentication.k8s.io";
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection") && !review && !self.dry_run
    }

    /// `pods` or `pods/eviction`.
    pub fn target(&self) -> String {
        if self.subresource.is_empty() { self.resource.clone() } else { format!("{}/{}", self.resource, self.subresource) }
    }
}

#[derive(Debug, Default)]
struct Ring {
    next: u64,
    records: VecDeque<Record>,
}

/// The record of one cluster; clones share it.
#[derive(Debug, Clone)]
pub struct Recorder {
    ring: Arc<Mutex<Ring>>,
    start: Instant,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { ring: Arc::default(), start: Instant::now() }
    }
}

impl Recorder {
    pub(crate) fn push(&self, mut record: Record) {
        let mut ring = self.lock();
        record.seq = ring.next;
        record.at_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        ring.next += 1;
        if ring.records.len() == RECORDS_MAX {
            ring.records.pop_front();
        }
        ring.records.push_back(record);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The number that the next request will get.
    pub fn mark(&self) -> u64 {
        self.lock().next
    }

    /// Requests from a mark on.
    pub fn requests_since(&self, mark: u64) -> Vec<Record> {
        self.lock().records.iter().filter(|record| record.seq >= mark).cloned().collect()
    }

    /// All requests that are still remembered.
    pub fn requests(&self) -> Vec<Record> {
        self.requests_since(0)
    }

    /// All writes.
    pub fn writes(&self) -> Vec<Record> {
        self.writes_since(0)
    }

    /// Writes from a mark on.
    pub fn writes_since(&self, mark: u64) -> Vec<Record> {
        self.requests_since(mark).into_iter().filter(Record::is_write).collect()
    }

    /// Writes to a resource or subresource: `nodes`, `pods/eviction`. A plain resource includes its subresources.
    pub fn writes_to(&self, target: &str) -> Vec<Record> {
        self.writes().into_iter().filter(|record| record.resource == target || record.target() == target).collect()
    }

    /// Forgets what was recorded; numbering goes on.
    pub fn clear(&self) {
        self.lock().records.clear();
    }
}
