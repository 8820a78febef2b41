//! How fast the exposition parser is on the sample scrapes, in GB/s, beside the crate prometheus-parse in the same run.
//!
//! `cargo run --release -p gpuheal-spoke-core --example parse_bench`. Each page is a sample repeated to about 1 MB, as a
//! node with many GPUs would give. "rows" finds name, label text, value and time; "labels" also parses every label, which
//! is what the other crate does; "samples" is the whole of `scrape` on one sample as it is: typed samples of known GPUs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use gpuheal_spoke_core::scrape::{alias::Aliases, dcgm, exposition};

const SAMPLES: [&str; 4] = ["dcgm-a100-plain-2x", "dcgm-a100-mig-2x", "dcgm-pods-full-4x", "dcgm-a800-mig-mixed"];
const PAGE_BYTES: usize = 1_000_000;
const SPAN: Duration = Duration::from_millis(300);

fn main() {
    println!("{:<22} {:>10} {:>10} {:>10} {:>18} {:>10}", "GB/s", "rows", "labels", "samples", "prometheus-parse", "labels/it");
    for sample in SAMPLES {
        let path = format!("{}/../../tests/data/samples/{sample}.prom", env!("CARGO_MANIFEST_DIR"));
        let one = std::fs::read(path).expect("the samples are part of the repository");
        let page = one.repeat(PAGE_BYTES.div_ceil(one.len()));
        let text = String::from_utf8(page.clone()).expect("the samples are text");
        let rows = speed(page.len(), || exposition::rows(&page).expect("fits").map(|row| row.value).sum::<f64>());
        let labels = speed(page.len(), || {
            let rows = exposition::rows(&page).expect("fits");
            rows.map(|row| row.labels.iter().filter_map(Result::ok).map(|label| label.raw.len()).sum::<usize>()).sum::<usize>()
        });
        let aliases = Aliases::new();
        let samples = speed(one.len(), || dcgm::decode(&one, &aliases).expect("fits").samples.len());
        let theirs = speed(page.len(), || {
            let lines = text.lines().map(|line| Ok(line.to_owned()));
            prometheus_parse::Scrape::parse(lines).expect("the samples are well-formed").samples.len()
        });
        println!("{sample:<22} {rows:>10.3} {labels:>10.3} {samples:>10.3} {theirs:>18.4} {:>9.0}x", labels / theirs);
    }
}

/// GB/s of the best of the rounds that fit the span: the one that was disturbed least.
fn speed<T>(bytes: usize, mut round: impl FnMut() -> T) -> f64 {
    let started = Instant::now();
    let mut best = Duration::MAX;
    while started.elapsed() < SPAN {
        let round_started = Instant::now();
        black_box(round());
        best = best.min(round_started.elapsed());
    }
    bytes as f64 / best.as_secs_f64() / 1e9
}
