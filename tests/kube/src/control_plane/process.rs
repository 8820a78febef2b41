//! The control plane's processes: started, watched, and ended by their own pid.
//! They end with the test process even when that is killed: a shell holds the end of a pipe whose other
//! end only the test process has, and kills them when it closes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// A part did not start or did not stay.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be started at all.
    #[error("starting {name}")]
    Spawn {
        /// Which part.
        name: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// It started and ended by itself.
    #[error("{name} ended with {status}; the end of its log:\n{log}")]
    Ended {
        /// Which part.
        name: &'static str,
        /// How.
        status: ExitStatus,
        /// Last lines that it wrote.
        log: String,
    },
}

/// Lines of a log that an error carries: enough for a flag's error with its usage text cut off.
const LOG_LINES: usize = 12;

/// One running part. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Part {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Part {
    /// Starts `<assets>/<name>` with `args`, its output in `<dir>/<name>.log`.
    pub(crate) fn start(assets: &Path, dir: &Path, name: &'static str, args: &[String]) -> Result<Self, Error> {
        let log = dir.join(format!("{name}.log"));
        let spawn = || {
            let out = File::create(&log)?;
            let err = out.try_clone()?;
            Command::new(assets.join(name)).args(args).current_dir(dir).stdin(Stdio::null()).stdout(out).stderr(err).spawn()
        };
        let child = spawn().map_err(|source| Error::Spawn { name, source })?;
        Ok(Self { name, child, log })
    }

    /// Fails when the part has ended.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        match self.child.try_wait() {
            Ok(Some(status)) => Err(Error::Ended { name: self.name, status, log: self.log_end() }),
            Ok(None) => Ok(()),
            Err(source) => Err(Error::Spawn { name: self.name, source }),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log_end(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // It keeps nothing that is worth an orderly end.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Kills `pids` when this process is gone, however it went.
#[derive(Debug)]
pub(crate) struct Reaper(Child);

impl Reaper {
    pub(crate) fn over(pids: &[u32]) -> Result<Self, Error> {
        let script = "cat >/dev/null; kill -9 \"$@\" 2>/dev/null";
        let child = Command::new("sh")
            .args(["-c", script, "control-plane-reaper"])
            .args(pids.iter().map(u32::to_string))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|source| Error::Spawn { name: "sh", source })?;
        Ok(Self(child))
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        // First the shell, then its pipe: by now its pids may belong to somebody else.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
