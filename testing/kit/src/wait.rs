//! Waiting for a condition, in place of a sleep of a fixed time.

use std::time::{Duration, Instant};

/// Time between two polls of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Polls `ask` every 5 ms until it returns a value.
///
/// # Panics
/// When `within` has passed without one; the message names `what`.
#[track_caller]
pub fn wait_until<T>(what: &str, within: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < within, "{what}: not within {within:?}");
        std::thread::sleep(POLL_INTERVAL);
    }
}
