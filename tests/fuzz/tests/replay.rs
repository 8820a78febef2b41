//! Every seed, and every input that ever broke something (`found/<target>/`), through its target: what fuzzing found stays found.

use std::{
    fs,
    path::{Path, PathBuf},
};

use gpuheal_fuzz::{TARGETS, named};

fn found(target: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("found").join(target);
    let mut paths: Vec<_> = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_seed_holds_and_so_does_every_beginning_of_it() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} has seeds", target.name);
        for seed in seeds {
            (target.run)(&seed);
            // Torn at sixteen places.
            (0..16).for_each(|part| (target.run)(&seed[..seed.len() * part / 16]));
        }
    }
}

#[test]
fn every_input_that_broke_something_holds_now() {
    for target in TARGETS {
        for path in found(target.name) {
            println!("{} {}", target.name, path.display());
            (target.run)(&fs::read(&path).unwrap());
        }
    }
}

#[test]
fn every_folder_of_found_inputs_is_a_targets() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("found");
    for entry in fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).filter(|entry| entry.path().is_dir()) {
        let name = entry.file_name().into_string().unwrap();
        assert!(named(&name).is_some(), "found/{name} is no target's: its inputs are replayed by nobody");
    }
}
