//! Where log lines go: to standard error, as many as `PENSTOCK_LOG` says.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Starts logging. A daemon tells what it does, other verbs only what goes wrong.
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
        // A line that cannot be written would be told on the same standard error, with a panic.
        .log_internal_errors(false);
    // systemd sets it for services whose output is the journal, which has its own clock.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        lines.without_time().init();
    } else {
        lines.init();
    }
}
