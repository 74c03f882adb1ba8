//! Placement of a session's threads on processors.

use penstock_host::placement::{self, Placement};

/// Pins the calling thread to the processors of `home`.
pub(super) fn pin_to(home: &Placement) {
    // The processors are unknown on a machine with too many of them.
    if !home.cpus.is_empty()
        && let Err(error) = placement::pin(&home.cpus)
    {
        tracing::warn!("a thread stays where it is: {error}");
    }
}
