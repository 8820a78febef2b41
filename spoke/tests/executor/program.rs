//! The spoke's own program: whole, as its account and without a hub; and its `doctor`, as whoever is to look.

use std::{path::Path, process::Stdio};

use serde_json::Value;
use testkube::settled;
use tokio::process::{Child, Command};

use crate::{hub::trust_json, world::World};

/// Ends when dropped, as a kill does it.
pub(crate) struct Program {
    http: String,
    client: reqwest::Client,
    child: Child,
    _dir: tempfile::TempDir,
}

impl Program {
    pub(crate) async fn start(w: &World) -> Self {
        Self::start_with(w, &[]).await
    }

    /// The same with more flags.
    pub(crate) async fn start_with(w: &World, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("kubeconfig"), w.account_kubeconfig()).unwrap();
        std::fs::create_dir(path("identity")).unwrap();
        identity(&path("identity"));
        let mut program = Command::new(env!("CARGO_BIN_EXE_gpuheal-spoke"));
        program.args(["run", "--hub", "https://127.0.0.1:1", "--replica-id", "whole", "--listen-http", "127.0.0.1:0"]);
        program.args(["--namespace", &w.home]);
        program.args(flags);
        for (flag, file) in
            [("--kubeconfig", "kubeconfig"), ("--identity", "identity"), ("--journal", "journal"), ("--ready-file", "ready")]
        {
            program.arg(flag).arg(path(file));
        }
        let child = program.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
        let http = settled::until("the program serves", || async {
            let ready = std::fs::read(path("ready")).ok()?;
            let ready: Value = serde_json::from_slice(&ready).ok()?;
            ready["http"].as_str().map(str::to_owned)
        })
        .await;
        Self { http, client: reqwest::Client::builder().no_proxy().build().unwrap(), child, _dir: dir }
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.http)
    }

    async fn get(&self, path: &str) -> String {
        let answer = self.client.get(format!("http://{}{path}", self.http)).send().await;
        match answer {
            Ok(answer) => answer.text().await.unwrap_or_default(),
            Err(_) => String::new(),
        }
    }

    /// All else that readiness asks for is there.
    pub(crate) async fn waits_for_nothing_but_the_hub(&self) {
        settled::is_true("only the hub is missing", || async {
            self.get("/readyz").await == "hub does not answer: faults are journaled, nothing new is done\n"
        })
        .await;
    }

    /// By a whole line: the help text of the gauge begins with its name and a 1 too.
    pub(crate) async fn leads(&self) {
        settled::is_true("it leads", || async { self.get("/metrics").await.contains("\ngpu_selfhealing_leader_active 1\n") }).await;
    }
}

impl Program {
    fn signal(&self, signal: rustix::process::Signal) {
        let pid = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id.try_into().unwrap()));
        rustix::process::kill_process(pid.expect("it runs"), signal).unwrap();
    }

    /// Stops it where it is, as a paused machine would.
    pub(crate) fn pause(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    pub(crate) fn goes_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// Its exit code, once it has ended by itself.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        tokio::time::timeout(settled::BOUND, self.child.wait()).await.expect("it ends").unwrap().code()
    }
}

/// What `doctor` said.
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
    /// Null unless it was asked for JSON.
    pub(crate) report: Value,
}

impl Said {
    /// The finding that fits, by its check, what it is about (`""`: whatever) and a part of what was found.
    pub(crate) fn finding(&self, check: &str, about: &str, found: &str) -> Option<&Value> {
        let fits = |one: &&Value| {
            let text = |field: &str| one[field].as_str().unwrap_or_default();
            text("check") == check && (about.is_empty() || text("about") == about) && text("found").contains(found)
        };
        self.report["findings"].as_array()?.iter().find(fits)
    }

    /// The same, which must be there and of this level.
    pub(crate) fn is(&self, level: &str, check: &str, about: &str, found: &str) -> &Value {
        let Some(finding) = self.finding(check, about, found) else { panic!("no {check} {about} {found:?} in {}", self.text) };
        assert_eq!(finding["level"], level, "{finding}");
        finding
    }
}

/// Runs `doctor` to its end.
pub(crate) async fn doctor(kubeconfig: &str, args: &[&str]) -> Said {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("kubeconfig");
    std::fs::write(&config, kubeconfig).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_gpuheal-spoke"));
    program.arg("doctor").arg("--kubeconfig").arg(config).args(args).stdin(Stdio::null()).kill_on_drop(true);
    let output = program.output().await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_str(&text).unwrap_or_default();
    Said { code: output.status.code(), text, report }
}

/// One that signs itself: the hub that it would be for is not there.
fn identity(dir: &Path) {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.subject_alt_names.push(rcgen::SanType::URI("spiffe://t/cluster/c1/spoke".try_into().unwrap()));
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let trust = trust_json();
    for (name, text) in
        [("tls.crt", &*certificate), ("tls.key", &*key.serialize_pem()), ("ca.crt", &*certificate), ("trust.json", &*trust)]
    {
        std::fs::write(dir.join(name), text).unwrap();
    }
}
