//! The target named by GPUHEAL_FUZZ_TARGET under libFuzzer; `main` is libFuzzer's own, and so are its flags. Writes the target's
//! seeds to the folder GPUHEAL_FUZZ_SEEDS first. Without a target it lists them, each with its longest input, and ends.
//! Called by `run.sh` alone.

#![no_main]

use std::{env, fs, path::Path, process, sync::OnceLock};

use gpuheal_fuzz::{TARGETS, Target, named};

static TARGET: OnceLock<&'static Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(init: choose(), |input: &[u8]| {
    (TARGET.get().expect("libFuzzer calls init first").run)(input);
});

fn choose() {
    let Ok(name) = env::var("GPUHEAL_FUZZ_TARGET") else {
        for target in &TARGETS {
            println!("{} {}", target.name, target.bytes_max);
        }
        process::exit(0);
    };
    let Some(target) = named(&name) else {
        let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("error: no fuzz target {name:?}; there are {}", known.join(", "));
        process::exit(2);
    };
    if let Some(dir) = env::var_os("GPUHEAL_FUZZ_SEEDS") {
        for (number, seed) in (target.seeds)().iter().enumerate() {
            let path = Path::new(&dir).join(format!("{number:03}"));
            if let Err(error) = fs::write(&path, seed) {
                eprintln!("error: cannot write the seed {}: {error}", path.display());
                process::exit(1);
            }
        }
    }
    TARGET.set(target).expect("libFuzzer calls init once");
}
