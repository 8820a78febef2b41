//! The tree is as docs/architecture.md says: the eleven stages are found by name, and the pure parts can do no IO because
//! their packages do not depend on anything that can.

use std::{path::Path, process::Command};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests is in the project")
}

#[test]
fn each_of_the_eleven_stages_is_a_file_that_bears_its_name() {
    for stage in [
        "spoke/src/scrape.rs",
        "spoke/src/derive.rs",
        "spoke/src/send.rs",
        "hub/src/ingest.rs",
        "hub/src/decide.rs",
        "hub/src/sign.rs",
        "hub/src/deliver.rs",
        "spoke/src/verify.rs",
        "spoke/src/execute.rs",
        "spoke/src/report.rs",
        "hub/src/settle.rs",
        "hub/src/audit.rs",
    ] {
        assert!(root().join(stage).is_file(), "{stage} is not there");
    }
}

#[test]
fn the_pure_parts_of_the_stages_are_in_packages_without_io() {
    for part in ["scrape.rs", "derive.rs", "verify.rs", "drain.rs", "mark.rs", "release.rs", "ceiling.rs"] {
        assert!(root().join("spoke/core/src").join(part).is_file(), "spoke/core has no {part}");
    }
    for part in ["decide.rs", "policy.rs", "classify.rs", "corroborate.rs", "audit.rs"] {
        assert!(root().join("hub/core/src").join(part).is_file(), "hub/core has no {part}");
    }
}

/// What gives a package the means to wait, to talk, to store, or to know the time.
const IO: [&str; 8] = ["tokio", "tonic", "sqlx", "kube", "hyper", "reqwest", "axum", "mio"];

#[test]
fn the_cores_depend_on_nothing_that_does_io() {
    for package in ["gpuheal-proto", "gpuheal-hub-core", "gpuheal-spoke-core"] {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--format", "{p}", "--package", package])
            .current_dir(root())
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "cargo tree failed: {}", String::from_utf8_lossy(&output.stderr));
        let tree = String::from_utf8(output.stdout).expect("package names are text");
        assert!(tree.starts_with(package), "cargo tree said nothing of {package}");
        for line in tree.lines() {
            let name = line.split(' ').next().unwrap_or_default();
            assert!(!IO.contains(&name), "{package} depends on {name}");
        }
    }
}

#[test]
fn hub_and_spoke_never_depend_on_each_other() {
    for (package, other) in [("gpuheal-hub", "gpuheal-spoke"), ("gpuheal-spoke", "gpuheal-hub")] {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--format", "{p}", "--package", package])
            .current_dir(root())
            .output()
            .expect("cargo runs");
        let tree = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(tree.starts_with(package), "cargo tree said nothing of {package}");
        assert!(tree.lines().all(|line| !line.starts_with(other)), "{package} depends on {other}");
    }
}
