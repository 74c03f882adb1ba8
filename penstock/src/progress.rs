//! A progress line on terminals.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Least interval between redraws.
const REDRAW_INTERVAL: Duration = Duration::from_millis(500);

/// Progress line; cleared when dropped.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    is_shown: bool,
    drawn_at: Option<Instant>,
}

impl ProgressLine {
    /// Creates an empty line; inactive if standard error is no terminal.
    pub(crate) fn begin() -> Self {
        Self { is_shown: io::stderr().is_terminal(), drawn_at: None }
    }

    /// Redraws the line: at once the first time, then at most twice a second.
    pub(crate) fn update(&mut self, line: impl FnOnce() -> String) {
        if self.is_shown
            && self.drawn_at.is_none_or(|drawn_at| drawn_at.elapsed() >= REDRAW_INTERVAL)
        {
            self.drawn_at = Some(Instant::now());
            let _ = write!(io::stderr(), "\r\x1b[K{}", line());
        }
    }

    /// Clears the line, so that other text can be printed.
    pub(crate) fn clear(&mut self) {
        if self.drawn_at.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}
