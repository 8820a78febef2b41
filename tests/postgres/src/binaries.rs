//! Where PostgreSQL's server programs are, and as whom they may run: the server refuses to run as root.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use crate::server::Error;

/// Where Debian and Ubuntu put server programs: one directory per major version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// The directory with `initdb` and `postgres`: the newest of Debian's, else from PATH.
pub(crate) fn directory() -> Result<PathBuf, Error> {
    let debian = fs::read_dir(DEBIAN).into_iter().flatten().flatten().map(|entry| entry.path().join("bin"));
    let mut candidates: Vec<PathBuf> = debian.filter(|dir| complete(dir)).collect();
    candidates.sort_by_key(|dir| major(dir));
    let path = env::var_os("PATH").unwrap_or_default();
    candidates.pop().or_else(|| env::split_paths(&path).find(|dir| complete(dir))).ok_or(Error::NotInstalled)
}

fn complete(dir: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|name| dir.join(name).is_file())
}

fn major(dir: &Path) -> u32 {
    dir.parent().and_then(Path::file_name).and_then(|name| name.to_str()).and_then(|name| name.parse().ok()).unwrap_or(0)
}

/// Whether we are root and must therefore run the server as user `postgres`.
pub(crate) fn root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}
