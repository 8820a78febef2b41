//! The fleet's policy as a file: checked as a whole, stored as a revision, read again when it changes. A file that cannot be
//! used changes nothing: every error is logged with its place and shown in readiness, and the last good policy stays.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use gpuheal_hub_core::policy::Policy;
pub use gpuheal_hub_core::policy::Problem;
use gpuheal_proto::limits::POLICY_BYTES_MAX;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::{
    http::Check,
    store::{
        policy::{Followed, policy_follow},
        pool::answered,
    },
    wake::Wake,
};

/// How often the file is looked at. A mounted ConfigMap takes a minute to arrive; a person who edits waits for a second.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Problems that one log line and the readiness page show.
const PROBLEMS_SHOWN: usize = 5;

/// Reads a policy in its long or its short form.
///
/// # Errors
/// Everything that is wrong with it, by place.
pub fn check(yaml: &str) -> Result<Policy, Vec<Problem>> {
    if yaml.len() > POLICY_BYTES_MAX {
        let message = format!("{} bytes, at most {POLICY_BYTES_MAX} are allowed", yaml.len());
        return Err(vec![Problem { line: 1, column: 1, path: String::new(), message }]);
    }
    if let Some(at) = yaml.find('\0') {
        let line = u32::try_from(yaml[..at].lines().count().max(1)).unwrap_or(u32::MAX);
        return Err(vec![Problem { line, column: 1, path: String::new(), message: "it holds a zero byte".to_owned() }]);
    }
    Policy::parse(yaml)
}

/// The file that this hub was told to follow.
#[derive(Debug)]
pub struct PolicyFile {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The text that was dealt with last, for good or ill.
    seen: Option<String>,
    problem: Option<String>,
    applied: bool,
}

impl PolicyFile {
    /// Nothing is read yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Arc<Self> {
        Arc::new(Self { path, state: Mutex::default() })
    }

    /// Follows the file until told to stop.
    pub async fn watch(self: Arc<Self>, pool: PgPool, wake: Arc<Wake>, stop: CancellationToken) {
        loop {
            self.look(&pool, &wake).await;
            if stop.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_none() {
                return;
            }
        }
    }

    /// Looks once: applies the text if it is a new one and good.
    pub async fn look(&self, pool: &PgPool, wake: &Wake) {
        let yaml = match tokio::fs::read_to_string(&self.path).await {
            Ok(yaml) => yaml,
            Err(error) => return self.complain(None, format!("cannot read {}: {error}", self.path.display())),
        };
        if self.lock().seen.as_deref() == Some(yaml.as_str()) {
            return;
        }
        let policy = match check(&yaml) {
            Ok(policy) => policy,
            Err(problems) => {
                for problem in &problems {
                    tracing::error!(policy.file = %self.path.display(), %problem, "the policy cannot be used, the last good one stays in force");
                }
                let shown: Vec<String> = problems.iter().take(PROBLEMS_SHOWN).map(ToString::to_string).collect();
                let more = problems.len().saturating_sub(PROBLEMS_SHOWN);
                let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
                return self.complain(Some(yaml), format!("{}: {}{rest}", self.path.display(), shown.join("; ")));
            }
        };
        match answered("policy.follow", policy_follow(pool, &yaml, &policy.digest)).await {
            Ok(followed) => {
                match followed {
                    Followed::Applied { applied, .. } if applied.unchanged => {}
                    Followed::Applied { applied, file_before } => {
                        // Only a hub that starts can have another file than those that run: what changes under us is news.
                        if let Some(before) = file_before.filter(|_| self.lock().seen.is_none()) {
                            tracing::warn!(policy.file = %self.path.display(), policy.digest = policy.digest, before.digest = before, "the policy file says something else than the one that was followed last; of hubs with different files the last to start is heard");
                        }
                        tracing::info!(policy.revision = applied.revision, policy.digest = policy.digest, mode = %policy.settings.mode, "a new policy is in force");
                        wake.ingested.notify_one();
                    }
                    Followed::Kept { revision, by } => {
                        tracing::info!(policy.revision = revision, policy.by = by, policy.file = %self.path.display(), "the file says what it said before; what was applied since stays in force");
                    }
                }
                *self.lock() = State { seen: Some(yaml), problem: None, applied: true };
            }
            // The text is not noted as seen: it is tried again at the next look.
            Err(error) => self.complain(None, format!("{}: not stored: {error}", self.path.display())),
        }
    }

    fn complain(&self, seen: Option<String>, problem: String) {
        let mut state = self.lock();
        // What is wrong inside the text was logged problem by problem.
        if seen.is_none() && state.problem.as_ref() != Some(&problem) {
            tracing::error!(problem, "the policy file is not in force");
        }
        state.seen = seen.or(state.seen.take());
        state.problem = Some(problem);
    }

    /// What is wrong with the file; nothing once its text is in force.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let state = self.lock();
        state.problem.clone().or_else(|| (!state.applied).then(|| "not read yet".to_owned()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Readiness shows what is wrong with the file.
pub struct PolicyCheck(pub Arc<PolicyFile>);

#[tonic::async_trait]
impl Check for PolicyCheck {
    fn name(&self) -> &'static str {
        "policy"
    }

    async fn problem(&self) -> Option<String> {
        self.0.problem()
    }
}
