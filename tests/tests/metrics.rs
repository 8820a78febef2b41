//! docs/metrics.md names every metric that the code has, and no other.

use std::{collections::BTreeSet, fs, path::Path};

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests is in the project");
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Metrics named between two of these marks.
fn named(text: &str, mark: char) -> BTreeSet<String> {
    let is_name = |part: &&str| part.starts_with("gpu_selfhealing_") && part.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    text.split(mark).filter(is_name).map(str::to_owned).collect()
}

#[test]
fn every_metric_is_documented_and_none_that_is_not_there() {
    let declared = |path: &str| named(read(path).split("#[cfg(test)]").next().unwrap_or_default(), '"');
    let code: BTreeSet<String> = ["hub/src/metrics.rs", "spoke/src/metrics.rs"].into_iter().flat_map(declared).collect();
    assert!(code.len() > 40, "{code:?}");
    let mut docs = named(&read("docs/metrics.md"), '`');
    docs.remove("gpu_selfhealing_");
    assert_eq!(docs, code);
}
