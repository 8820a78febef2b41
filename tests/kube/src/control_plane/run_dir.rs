//! Folders for control planes that nobody gave a folder: `target/kube/run/<pid>`.
//! Those of processes that are gone are removed by the next one; a running one's is never touched.

use std::path::{Path, PathBuf};

/// An empty folder for this process.
pub(super) fn fresh() -> PathBuf {
    let root = root();
    remove_abandoned(&root);
    let dir = root.join(std::process::id().to_string());
    std::fs::remove_dir_all(&dir).ok();
    dir
}

fn root() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
    target.join("kube/run")
}

fn remove_abandoned(root: &Path) {
    let Ok(entries) = std::fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        if !Path::new("/proc").join(entry.file_name()).exists() {
            std::fs::remove_dir_all(entry.path()).ok();
        }
    }
}
