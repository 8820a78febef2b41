//! A program that lives as long as its owner: run by a shell that waits for its own standard input to end, which it does when the
//! owner drops it or dies by any signal.

use std::{
    ffi::OsStr,
    fs::File,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::{binaries, server::Error};

/// Then stops the program by its process id and, if told, removes its directory.
const SCRIPT: &str = r#"
remove=$1; shift
"$@" &
pid=$!
read -r _
kill -INT "$pid" 2>/dev/null
wait "$pid"
[ -n "$remove" ] && rm -rf "$remove"
exit 0
"#;

/// The shell. Dropping it stops the program, and waits until it is gone.
#[derive(Debug)]
pub(crate) struct Keeper(Child);

impl Keeper {
    /// Runs a program as who may run one that refuses root; what it says goes into `log`.
    pub(crate) fn start(program: &Path, args: &[&OsStr], log: &Path, remove: Option<&Path>) -> Result<Self, Error> {
        let wrap = |source| Error::Directory { path: log.to_owned(), source };
        let out = File::create(log).map_err(wrap)?;
        let err = out.try_clone().map_err(wrap)?;
        let child = Command::new("sh")
            .args(["-c", SCRIPT, "keeper"])
            .arg(remove.unwrap_or_else(|| Path::new("")))
            .args(as_owner())
            .arg(program)
            .args(args)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(out)
            .stderr(err)
            // Out of the terminal's foreground group: an interrupt ends the owner first, and the keeper then tidies up.
            .process_group(0)
            .spawn();
        child.map(Self).map_err(|source| Error::Spawn { name: "sh".to_owned(), source })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _stopped = self.0.wait();
    }
}

/// Words that lead a command line which must not run as root.
pub(crate) fn as_owner() -> &'static [&'static str] {
    if binaries::root() { &["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] } else { &["env"] }
}
