//! Who else acts on the field: an Alertmanager, which tells until it is answered 200, and people with gpuhealctl, who try
//! again until the hub has taken their word.

use std::{process::Stdio, time::Duration};

use serde_json::Value;
use tokio::task::JoinSet;

use super::{
    field::Book,
    ledger::{Alert, Ledger, Touched},
    watcher::wall_ms,
};

/// Between two attempts.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);

/// What is still being told or asked; ends when dropped.
#[derive(Default)]
pub struct People(JoinSet<()>);

impl People {
    /// Tells an alert to any spoke of its cluster until one has acknowledged it, or the GPU was repaired.
    pub fn tell(&mut self, ledger: Ledger, number: usize, book: Book, token: String, body: Value) {
        self.0.spawn(async move {
            let Ok(client) = reqwest::Client::builder().timeout(ATTEMPT).build() else { return };
            let mut turn = 0;
            while let Some(injected) = ledger.one(number).filter(|i| matches!(i.touched, Touched::Not | Touched::Uncordoned)) {
                let addresses = book.of(injected.cluster);
                if let Some(address) = addresses.get(turn % addresses.len().max(1)) {
                    let post = client.post(format!("http://{address}/api/v1/alert")).bearer_auth(&token).json(&body);
                    if post.send().await.is_ok_and(|answer| answer.status().as_u16() == 200) {
                        ledger.change(number, |injected| injected.alert = Alert::Acked);
                        return;
                    }
                }
                turn += 1;
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        });
    }

    /// Asks for the release of a node until the hub has taken it.
    pub fn release(
        &mut self,
        ledger: Ledger,
        number: usize,
        ctl: (std::path::PathBuf, Vec<String>),
        cluster: String,
        node: String,
    ) {
        self.0.spawn(async move {
            loop {
                let asked_ms = wall_ms();
                let mut command = tokio::process::Command::new(&ctl.0);
                command.args(&ctl.1).args(["release", &node, "--cluster", &cluster, "--reason", "repaired by hand"]);
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
                if let Ok(Ok(status)) = tokio::time::timeout(ATTEMPT * 2, command.status()).await
                    && status.success()
                {
                    ledger.change(number, |injected| injected.touched = Touched::Released { asked_ms });
                    return;
                }
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        });
    }

    /// Nothing is being told or asked any more.
    pub fn done(&mut self) -> bool {
        while self.0.try_join_next().is_some() {}
        self.0.is_empty()
    }
}
