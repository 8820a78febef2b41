//! Where the control plane's programs are: asks `build.sh`, which finds or builds them.
//! Never downloads or compiles anything itself, so that `make kube` and a test do the very same.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why there is no control plane to start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The script could not be run at all.
    #[error("running {script}")]
    Run {
        /// The script's path.
        script: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The script ran and failed; it has said why on stderr.
    #[error("{script} ended with {status}")]
    Build {
        /// The script's path.
        script: PathBuf,
        /// Its exit status.
        status: std::process::ExitStatus,
    },
    /// The script ended well but named no folder.
    #[error("{script} printed no folder")]
    NoFolder {
        /// The script's path.
        script: PathBuf,
    },
}

/// The folder that holds etcd, kube-apiserver, kube-controller-manager and kube-scheduler.
///
/// Blocks for minutes when they must be built first; progress is on stderr.
pub fn locate() -> Result<PathBuf, Error> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.sh");
    let output = Command::new(&script)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| Error::Run { script: script.clone(), source })?;
    if !output.status.success() {
        return Err(Error::Build { script, status: output.status });
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    match printed.lines().last().map(str::trim) {
        Some(folder) if !folder.is_empty() => Ok(PathBuf::from(folder)),
        _ => Err(Error::NoFolder { script }),
    }
}
