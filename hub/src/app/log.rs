//! Where log lines go: standard error, as text or as JSON.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

use crate::args::LogFormat;

/// Starts logging.
///
/// # Errors
/// When the filter cannot be read.
pub(super) fn start(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).with_context(|| format!("--log: {filter:?} cannot be read"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // By itself it uses colour unless NO_COLOR is set, whatever it writes to.
    let builder = if std::io::stderr().is_terminal() { builder } else { builder.with_ansi(false) };
    match format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}
