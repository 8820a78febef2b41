//! docs/claims.md names tests that exist: a claim whose test was renamed or deleted is no claim.

use std::{collections::BTreeSet, fs, path::Path};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests is in the project")
}

fn functions(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).expect("a source folder is readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("source is text");
            let names = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<', ' ']).next());
            found.extend(names.map(str::to_owned));
        }
    }
}

#[test]
fn every_test_that_the_docs_name_exists() {
    let mut found = BTreeSet::new();
    for folder in ["proto", "hub", "spoke", "tests"] {
        functions(&root().join(folder), &mut found);
    }
    // The contract suite's claims are functions too, each run on both API servers.
    let claims = fs::read_to_string(root().join("docs/claims.md")).expect("docs/claims.md is there");
    let named: Vec<&str> =
        claims.split('`').skip(1).step_by(2).filter(|name| name.len() > 15 && !name.contains(['/', '.', ' '])).collect();
    assert!(named.len() > 40, "docs/claims.md names only {} tests", named.len());
    let missing: Vec<&&str> = named.iter().filter(|name| !found.contains(**name)).collect();
    assert!(missing.is_empty(), "docs/claims.md names tests that do not exist: {missing:?}");
}
