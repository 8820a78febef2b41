//! The control plane's record of requests: read from the API server's audit log, from a mark on.
//! A request is logged just after it is answered; a reading waits until what was answered before it is there.

use std::io::{Read, Seek, SeekFrom};

use super::ControlPlane;
use crate::audit::{self, AuditEntry};
use crate::{raw, settled};

/// A place in the audit log: what follows it is what was asked since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(u64);

impl ControlPlane {
    /// Every request that has been recorded so far.
    #[must_use]
    pub fn audit(&self) -> Vec<AuditEntry> {
        audit::parse(&self.log_since(Mark(0)))
    }

    /// The place up to which the record reaches now.
    pub async fn mark(&self) -> Mark {
        self.settle().await;
        Mark(std::fs::metadata(&self.audit_log).map_or(0, |found| found.len()))
    }

    /// The requests that were answered after `mark` and before now.
    pub async fn requests_since(&self, mark: Mark) -> Vec<AuditEntry> {
        let settled = self.settle().await;
        let mut entries = audit::parse(&self.log_since(mark));
        entries.retain(|entry| !entry.uri.contains(&settled));
        entries
    }

    /// A request is recorded just after it is answered. Asks for something that leaves a trace of its
    /// own, and waits for that trace: what was answered before has left its own by then.
    async fn settle(&self) -> String {
        let trace = format!("settled-{}", uuid::Uuid::new_v4().simple());
        let from = Mark(std::fs::metadata(&self.audit_log).map_or(0, |found| found.len()));
        raw::get(&self.client().await, &format!("/version?trace={trace}")).await;
        settled::is_true("the audit log holds what was just asked", || async { self.log_since(from).contains(&trace) }).await;
        trace
    }

    fn log_since(&self, mark: Mark) -> String {
        let read = || {
            let mut file = std::fs::File::open(&self.audit_log)?;
            file.seek(SeekFrom::Start(mark.0))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_default()
    }
}
