//! Logs to standard error, with fields. Secrets never get here: tokens and keys are in no Debug or Display.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::args::{LOG, LogFormat, Run};

/// Starts logging as the arguments say.
pub(super) fn init(run: &Run) {
    let filter = EnvFilter::try_new(&run.log).unwrap_or_else(|_| EnvFilter::new(LOG));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // By itself it uses colour unless NO_COLOR is set, whatever it writes to.
    let logs = if std::io::stderr().is_terminal() { logs } else { logs.with_ansi(false) };
    let started = match run.log_format {
        LogFormat::Json => logs.json().try_init(),
        LogFormat::Text => logs.try_init(),
    };
    // Only a test that logs already gets here twice.
    drop(started);
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::{Layer as _, layer::SubscriberExt as _};

    use super::*;

    #[test]
    fn by_default_the_kubernetes_clients_own_errors_are_quiet_and_ours_are_not() {
        let filter = EnvFilter::try_new(LOG).unwrap();
        let logs =
            tracing_subscriber::registry().with(tracing_subscriber::fmt::layer().with_writer(std::io::sink).with_filter(filter));
        tracing::subscriber::with_default(logs, || {
            assert!(!tracing::enabled!(target: "kube_client::client::builder", tracing::Level::ERROR));
            assert!(tracing::enabled!(target: "gpuheal_spoke::elector", tracing::Level::WARN));
        });
    }
}
