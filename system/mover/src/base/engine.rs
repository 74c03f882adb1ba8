//! Storage engines: direct or buffered I/O, with io_uring or threads.

use std::fmt;
use std::str::FromStr;

use penstock_sys::ring::Ring;

/// Storage engine with per-file fallback: direct I/O falls back to the page cache if the file system
/// does not support it, io_uring to threads if the kernel refuses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Engine {
    /// Bypass the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Several operations in flight per thread (io_uring).
    pub uring: bool,
}

impl Engine {
    /// Returns the fastest engine of this kernel; warns if io_uring is not available.
    #[must_use]
    pub fn probe() -> Self {
        let uring = match Ring::probe() {
            Ok(()) => true,
            Err(reason) => {
                tracing::warn!("file I/O without io_uring: {reason}");
                false
            }
        };
        Self { direct: true, uring }
    }

    /// Name of the engine for a file that was opened `direct` or not.
    #[must_use]
    pub fn name(self, direct: bool) -> &'static str {
        match (direct, self.uring) {
            (true, true) => "direct+io_uring",
            (true, false) => "direct+threads",
            (false, _) => "buffered",
        }
    }
}

/// Name that is no storage engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no storage engine: use auto, direct, threads or buffered")]
pub struct UnknownEngine(String);

impl FromStr for Engine {
    type Err = UnknownEngine;

    fn from_str(text: &str) -> Result<Self, UnknownEngine> {
        match text {
            "auto" => Ok(Self::probe()),
            "direct" => Ok(Self { direct: true, uring: true }),
            "threads" => Ok(Self { direct: true, uring: false }),
            "buffered" => Ok(Self { direct: false, uring: false }),
            _ => Err(UnknownEngine(text.to_owned())),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name(self.direct))
    }
}
