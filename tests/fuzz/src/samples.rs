//! The samples of `tests/data`, and pieces of them: what sources really say is where fuzzing starts.

use std::{fs, path::Path};

/// A sample whole.
pub(crate) fn sample(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/samples").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

/// A sample in pieces of so many lines: small inputs are tried faster and combined in more ways.
pub(crate) fn pieces(name: &str, lines: usize) -> Vec<Vec<u8>> {
    let whole = sample(name);
    let all: Vec<&[u8]> = whole.split_inclusive(|&byte| byte == b'\n').collect();
    all.chunks(lines).map(<[&[u8]]>::concat).collect()
}
