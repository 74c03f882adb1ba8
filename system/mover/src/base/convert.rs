//! Conversions between types of the manifest and of the kernel.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use penstock_protocol::manifest::{RelativePath, Time};
use penstock_sys::fs;

/// Converts a time stamp to the manifest's type.
#[must_use]
pub(crate) fn time(time: fs::Timestamp) -> Time {
    Time { seconds: time.seconds, nanos: time.nanos }
}

/// Converts a manifest path to a file system path.
#[must_use]
pub(crate) fn native(path: &RelativePath) -> &Path {
    Path::new(OsStr::from_bytes(path.as_bytes()))
}
