//! A line of progress on a terminal, and nothing elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Between two looks of the line.
const INTERVAL: Duration = Duration::from_millis(500);

/// The line, which is gone when this is.
#[derive(Debug)]
pub(crate) struct Progress {
    is_shown: bool,
    told: Option<Instant>,
}

impl Progress {
    /// A line that is empty so far.
    pub(crate) fn begin() -> Self {
        Self { is_shown: io::stderr().is_terminal(), told: None }
    }

    /// Says where it is: at once the first time, then at most twice a second.
    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        if self.is_shown && self.told.is_none_or(|told| told.elapsed() >= INTERVAL) {
            self.told = Some(Instant::now());
            let _ = write!(io::stderr(), "\r\x1b[K{}", line());
        }
    }

    /// Takes the line away, so that something else can be said.
    pub(crate) fn clear(&mut self) {
        if self.told.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
