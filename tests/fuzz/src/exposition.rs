//! Any bytes as an exporter's page. Proves: every line is a row, a comment or counted as bad; each line is read by itself, so that
//! a page in two halves says what the whole says and good rows of a bad page are used; every row is a sample or counted as
//! skipped, of a GPU that is listed, with a finite value and within the bounds of a node; and the faults that detectors make of
//! any two pages are ones that the hub believes, from a memory that survives a restart.

use std::{collections::BTreeMap, time::Duration};

use gpuheal_spoke_core::{
    derive::{Held, NoPage, Settings, Source},
    scrape::{
        dcgm::{self, GPUS_MAX, MIGS_MAX, WORKLOADS_MAX},
        exposition::{Reason, rows},
    },
};

use crate::{
    believable::{START, assert_believed, assert_remembered, cluster, node},
    samples::pieces,
};

/// A row by its line, without borrowing: name, labels, the value's bits and the time.
type Row = (u32, String, String, u64, Option<i64>);

/// What a page says, for comparing.
#[derive(Debug, Default, PartialEq)]
struct Said {
    rows: Vec<Row>,
    bad: BTreeMap<Reason, u32>,
}

pub(crate) fn run(page: &[u8]) {
    let whole = said(page);
    every_line_is_accounted_for(page, &whole);
    // At the end of a line near the middle.
    let cut = page.iter().skip(page.len() / 2).position(|&byte| byte == b'\n').map_or(page.len(), |at| page.len() / 2 + at + 1);
    let (first, second) = page.split_at(cut);
    assert_eq!(joined(said(first), said(second), first), whole, "a page in two halves says what the whole says");
    samples_are_sane(page, &whole);
    faults_are_believed(first, page);
}

fn said(page: &[u8]) -> Said {
    let mut walk = rows(page).expect("the page is within the limit");
    let mut out = Said::default();
    for row in walk.by_ref() {
        assert!(!row.name.is_empty(), "a row has a name");
        let mut labels = 0;
        for label in row.labels.iter().map_while(Result::ok) {
            assert!(!label.name.is_empty() && label.text().len() <= label.raw.len(), "undoing an escape makes no text longer");
            labels += 1;
        }
        assert!(labels <= row.labels.raw().len(), "each label takes room");
        out.rows.push((row.line, row.name.to_owned(), row.labels.raw().to_owned(), row.value.to_bits(), row.timestamp_ms));
    }
    out.bad.clone_from(walk.bad().counts());
    assert!(walk.bad().first().len() <= 8 && walk.bad().total() as usize >= walk.bad().first().len());
    out
}

fn every_line_is_accounted_for(page: &[u8], said: &Said) {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r');
    let lines = page.split(|&byte| byte == b'\n').filter_map(|line| line.iter().find(|byte| !blank(byte)));
    let counted = said.rows.len() + said.bad.values().sum::<u32>() as usize;
    assert_eq!(counted, lines.filter(|&&byte| byte != b'#').count(), "each line is a row or counted");
    assert!(said.rows.is_sorted_by(|one, next| one.0 < next.0), "in the order of the page");
}

/// What the second half says, with its lines counted on from the first.
fn joined(first: Said, second: Said, text: &[u8]) -> Said {
    let before = u32::try_from(text.iter().filter(|&&byte| byte == b'\n').count()).expect("a page is small");
    let mut out = first;
    out.rows.extend(second.rows.into_iter().map(|row| (row.0 + before, row.1, row.2, row.3, row.4)));
    for (reason, count) in second.bad {
        *out.bad.entry(reason).or_default() += count;
    }
    out
}

fn samples_are_sane(page: &[u8], said: &Said) {
    let page = dcgm::decode(page, &Settings::default().aliases).expect("the page is within the limit");
    assert_eq!(page.rows as usize, said.rows.len(), "every row is looked at");
    let used = page.samples.len() as u32 + page.skipped.values().sum::<u32>() + page.errors.count(Reason::LabelsMalformed);
    assert_eq!(used, page.rows, "every row is a sample or counted");
    assert!(page.gpus.len() <= GPUS_MAX);
    assert!(page.gpus.iter().all(|gpu| gpu.mig.len() <= MIGS_MAX && gpu.workloads.len() <= WORKLOADS_MAX));
    for sample in &page.samples {
        assert!(sample.value.is_finite() && usize::from(sample.gpu) < page.gpus.len(), "{sample:?}");
    }
}

/// Two pages, silence, and what is told again.
fn faults_are_believed(first: &[u8], second: &[u8]) {
    let (settings, node) = (Settings::default(), node());
    let source = Source { name: "exporter 10.0.3.7:9400", start: "1" };
    let mut held = Held::new(cluster());
    for (page, minutes) in [(first, 0), (second, 1)] {
        let page = dcgm::decode(page, &settings.aliases).expect("the page is within the limit");
        let now = START.after(Duration::from_secs(60 * minutes));
        assert_believed(&held.take_page(&node, &source, &page, &settings, now));
    }
    let later = |minutes: u64| START.after(Duration::from_secs(60 * minutes));
    assert_believed(&held.take_no_page(&node, &source, NoPage::Empty, &settings, later(2)));
    assert_believed(&held.tick(&settings, later(30)));
    assert_believed(&held.again(&node.uid, |_| true));
    assert_remembered(&held);
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let names = [
        "dcgm-a100-mig-2x.prom",
        "dcgm-a100-plain-2x.prom",
        "dcgm-constructed-exp-metrics.prom",
        "dcgm-a800-mig-mixed.prom",
        "dcgm-pods-full-4x.prom",
    ];
    let parts = names.iter().flat_map(|name| pieces(name, 5));
    let odd = [
        "DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",modelName=\"a \"quoted\" one\",Hostname=\"h\"} 61 1395066363000\n",
        "DCGM_FI_DEV_XID_ERRORS{gpu=\"0\",UUID=\"GPU-1\",pci_bus_id=\"00000000:5D:00.0\"} 79\nDCGM_FI_DEV_XID_ERRORS",
        "DCGM_EXP_XID_ERRORS_COUNT{gpu=\"0\",window_size_in_ms=\"300000\",xid=\"48\"} 3 # {trace_id=\"a\"} 1\n",
        "DCGM_FI_DEV_GPU_TEMP{gpu=\"1\",escaped=\"a\\\\b\\\"c\\nd\"} NaN\r\n\tdcgm_gpu_utilization 9223372036854775794\n",
    ];
    parts.chain(odd.iter().map(|text| text.as_bytes().to_vec())).collect()
}
