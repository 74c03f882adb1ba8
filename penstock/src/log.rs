//! Logging to standard error, filtered by `PENSTOCK_LOG`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Starts logging: by default `info` for daemons, `warn` for other verbs.
pub(crate) fn start(daemon: bool) {
    let level = if daemon { LevelFilter::INFO } else { LevelFilter::WARN };
    let filter = EnvFilter::builder()
        .with_default_directive(level.into())
        .with_env_var("PENSTOCK_LOG")
        .from_env_lossy();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // Reporting a failed write on the same standard error would panic.
        .log_internal_errors(false);
    // systemd sets it for services that write to the journal, which adds timestamps.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        lines.without_time().init();
    } else {
        lines.init();
    }
}
