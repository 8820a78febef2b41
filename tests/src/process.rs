//! Child processes of a run: each started by us, logged to a file of its own, and ended by its id.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// How long a program may take to say that it is ready. A debug build on a busy two-core machine takes under 5 s.
const READY_WITHIN: Duration = Duration::from_secs(180);
/// How long a program may take to end after it was asked to.
const END_WITHIN: Duration = Duration::from_secs(60);

/// What the programs of the crash tests, and no others, read: at which point they die.
const FAILPOINTS: &str = "FAILPOINTS";

/// One running program.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    ready: PathBuf,
}

impl Process {
    /// Starts `program` with `args`, its output going to `dir/name.log`. It gets `--ready-file` beside that.
    pub fn start(dir: &Path, name: &str, program: &Path, args: &[String]) -> Result<Self> {
        Self::start_dying(dir, name, program, args, None)
    }

    /// The same for one of the crash tests' programs, which dies once it comes to a fail point.
    pub fn start_dying(dir: &Path, name: &str, program: &Path, args: &[String], at: Option<&str>) -> Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let ready = dir.join(format!("{name}.ready.json"));
        let _absent = std::fs::remove_file(&ready);
        let out = File::options().create(true).append(true).open(&log).with_context(|| format!("opening {}", log.display()))?;
        let mut command = Command::new(program);
        // What somebody has set for a fleet of their own must not steer this one.
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GPUHEAL_") && name != "GPUHEAL_LOG")
        {
            command.env_remove(name);
        }
        command.env_remove(FAILPOINTS);
        if let Some(point) = at {
            command.env(FAILPOINTS, point);
        }
        let child = command
            .args(args)
            .arg("--ready-file")
            .arg(&ready)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("starting {} (built by `cargo build --bins`)", program.display()))?;
        Ok(Self { name: name.to_owned(), child, log, ready })
    }

    /// Waits until the program has written its ready file, and gives what is in it.
    pub async fn ready(&mut self) -> Result<serde_json::Value> {
        let since = Instant::now();
        while since.elapsed() < READY_WITHIN {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status} before it was ready\n{}", self.name, self.log_tail());
            }
            if let Ok(text) = std::fs::read_to_string(&self.ready)
                && let Ok(value) = serde_json::from_str(&text)
            {
                return Ok(value);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("{} was not ready within {READY_WITHIN:?}\n{}", self.name, self.log_tail())
    }

    /// What is in its ready file, when it has written it already.
    #[must_use]
    pub fn ready_now(&self) -> Option<serde_json::Value> {
        serde_json::from_str(&std::fs::read_to_string(&self.ready).ok()?).ok()
    }

    /// Stops it where it is (SIGSTOP), as a paused machine would.
    pub fn pause(&self) -> Result<()> {
        self.signal(rustix::process::Signal::STOP)
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) -> Result<()> {
        self.signal(rustix::process::Signal::CONT)
    }

    /// Asks it to end (SIGTERM), and waits for nothing.
    pub fn terminate(&self) -> Result<()> {
        self.signal(rustix::process::Signal::TERM)
    }

    fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).context("a process id")?;
        rustix::process::kill_process(pid, signal).with_context(|| format!("signalling {}", self.name))
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as a crash would: SIGKILL, nothing flushed.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("killing {}", self.name))?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to end (SIGTERM) and waits. An end that is no success is an error, and so is none at all, after which it is
    /// killed. What had ended before is left at that.
    pub fn stop(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        self.terminate()?;
        let since = Instant::now();
        while since.elapsed() < END_WITHIN {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{} was asked to end and did so with {status}\n{}", self.name, self.log_tail()),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        self.kill()?;
        bail!("{} was asked to end, did not within {END_WITHIN:?} and was killed\n{}", self.name, self.log_tail())
    }

    /// How it ended, if it has.
    pub fn end(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Has it ended?
    pub fn ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Resident memory in KiB, as the kernel counts it.
    #[must_use]
    pub fn resident_kib(&self) -> Option<u64> {
        self.memory_kib("VmRSS")
    }

    /// A line of the kernel's account of its memory, in KiB.
    #[must_use]
    pub fn memory_kib(&self, line: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let value = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':'))?;
        value.trim().trim_end_matches(" kB").parse().ok()
    }

    /// The last lines of its log, for an error message.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(20)..].join("\n");
        format!("--- end of {}\n{tail}", self.log.display())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.ended() {
            let _ended_already = self.child.kill();
            let _reaped = self.child.wait();
        }
    }
}

/// The shipping programs of a run.
#[derive(Clone, Debug)]
pub struct Programs {
    /// gpuheal-hub.
    pub hub: PathBuf,
    /// gpuheal-spoke.
    pub spoke: PathBuf,
    /// gpuhealctl.
    pub ctl: PathBuf,
}

impl Programs {
    /// Those of this workspace, where they were built.
    pub fn built() -> Result<Self> {
        Ok(Self { hub: binary("gpuheal-hub")?, spoke: binary("gpuheal-spoke")?, ctl: binary("gpuhealctl")? })
    }

    /// The same, kept in `dir`: a run that starts them again and again must not meet what a build puts there meanwhile.
    pub fn kept_in(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let keep = |program: PathBuf| -> Result<PathBuf> {
            let kept = dir.join(program.file_name().context("a program has a name")?);
            // A link costs nothing; across file systems there are none.
            if std::fs::hard_link(&program, &kept).is_err() {
                std::fs::copy(&program, &kept).with_context(|| format!("copying {}", program.display()))?;
            }
            Ok(kept)
        };
        let Self { hub, spoke, ctl } = Self::built()?;
        Ok(Self { hub: keep(hub)?, spoke: keep(spoke)?, ctl: keep(ctl)? })
    }
}

/// Where a binary of this workspace is: beside the running one.
pub fn binary(name: &str) -> Result<PathBuf> {
    let me = std::env::current_exe()?;
    let mut dir = me.parent().context("a binary is in a folder")?;
    if dir.ends_with("deps") {
        dir = dir.parent().context("deps is in a folder")?;
    }
    let path = dir.join(name);
    if path.exists() { Ok(path) } else { bail!("{} does not exist: run `cargo build --bins` first (make does)", path.display()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that is ready once it listens for SIGTERM, and then does as it is told.
    async fn ends_by(dir: &Path, how: &str) -> Process {
        let script = format!("trap '{how}' TERM; echo '{{}}' > \"$1\"; while :; do sleep 0.05; done");
        let mut process = Process::start(dir, "shell", Path::new("/bin/sh"), &["-c".to_owned(), script]).unwrap();
        process.ready().await.unwrap();
        process
    }

    #[tokio::test]
    async fn a_program_that_does_not_end_well_when_asked_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        ends_by(dir.path(), "exit 0").await.stop().unwrap();
        let error = ends_by(dir.path(), "exit 3").await.stop().unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }
}
