//! Notification of the service manager (sd_notify(3)), where one supervises this process.

use std::time::Duration;

pub use sd_notify::NotifyState;

/// Sends states to systemd, if it supervises this process.
pub fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}

/// Time limit of the watchdog, if the unit enables one.
#[must_use]
pub fn watchdog_limit() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}
