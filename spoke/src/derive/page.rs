//! Pages of exporters on their way to the detectors.

use gpuheal_proto::time::Timestamp;
use gpuheal_spoke_core::{
    derive::{NoPage, Source},
    scrape::dcgm::{self, Skip},
};

use super::Derive;
use crate::{
    clock, metrics,
    scrape::{Failure, Target},
};

impl Derive {
    /// Takes what a scrape brought: a page, or why there is none.
    pub async fn page(&self, target: &Target, page: Result<&[u8], &Failure>, now: Timestamp) {
        let Some(node) = self.node_named(&target.node) else {
            self.deps.metrics.inc(metrics::SIGNALS_SKIPPED, &[("reason", "node_unknown")]);
            return;
        };
        let settings = self.deps.settings.detect();
        let name = format!("exporter {}", target.address());
        let source = Source { name: &name, start: &target.start };
        let named = [node.uid.clone()].into();
        let decoded = page.map(|bytes| dcgm::decode(bytes, &settings.aliases));
        let before = self.gpus(&node.uid);
        // A journal that refuses has said so; the next page finds it again.
        let _ = match decoded {
            Ok(Ok(page)) => {
                self.count(&page, &name);
                if self.leads() {
                    self.take(&named, false, |held| held.take_page(&node, &source, &page, &settings, now)).await
                } else {
                    self.held.lock().expect("no holder of this lock panics").take_inventory(&node, &page, &settings, now);
                    return;
                }
            }
            _ if !self.leads() => return,
            // The fetcher stops before a page is too large.
            Ok(Err(_)) => {
                self.take(&named, false, |held| held.take_no_page(&node, &source, NoPage::Unreadable, &settings, now)).await
            }
            Err(failure) => {
                let why = why(failure);
                self.take(&named, false, |held| held.take_no_page(&node, &source, why, &settings, now)).await
            }
        };
        if self.gpus(&node.uid) != before {
            self.deps.touched.add(&target.node);
        }
    }

    /// Lines and rows that were not used, by reason; the first bad line goes to the log, once a minute for each exporter.
    fn count(&self, page: &dcgm::Page<'_>, exporter: &str) {
        for (reason, count) in page.errors.counts() {
            self.deps.metrics.add(metrics::ROWS_REFUSED, &[("reason", &snake(&format!("{reason:?}")))], f64::from(*count));
        }
        if let Some(first) = page.errors.first().first()
            && let Some(lines) = self.complaints.due(exporter, page.errors.total().into(), clock::boottime())
        {
            tracing::warn!(exporter, lines, line = first.line, reason = ?first.reason, "lines of an exporter's page could not be read, the others were used");
        }
        for (skip, count) in &page.skipped {
            let reason = match skip {
                // Most rows of a page are of metrics that no detector reads.
                Skip::UnknownMetric => continue,
                Skip::NoReading(why) => format!("no_reading_{}", snake(&format!("{why:?}"))),
                Skip::NoGpu | Skip::Duplicate | Skip::TooMany => snake(&format!("{skip:?}")),
            };
            self.deps.metrics.add(metrics::ROWS_REFUSED, &[("reason", &reason)], f64::from(*count));
        }
    }
}

fn why(failure: &Failure) -> NoPage {
    match failure {
        Failure::Connect(_) | Failure::Timeout => NoPage::Unreachable,
        Failure::Broken(_) => NoPage::Unreadable,
        Failure::Status { status } => NoPage::Status(*status),
        Failure::Empty => NoPage::Empty,
    }
}

/// `HalfLine` as `half_line`: a closed enum's name as a label.
fn snake(name: &str) -> String {
    let mut out = String::new();
    for (at, c) in name.chars().enumerate() {
        if c.is_ascii_uppercase() && at > 0 {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::snake;

    #[test]
    fn reasons_are_labels_in_snake_case() {
        assert_eq!(snake("ValueNotNumber"), "value_not_number");
    }
}
