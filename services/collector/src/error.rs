//! Errors of the collector's start and reload.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use penstock_flows::asn::AsnLineError;
use penstock_flows::prefixes::PrefixError;

use crate::host_names::HostLineError;

/// Failure to start the collector.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectorError {
    /// A required socket cannot be opened.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Networks of the configuration cannot be used.
    #[error(transparent)]
    Networks(#[from] PrefixError),
    /// A file of host names or prefixes cannot be used.
    #[error(transparent)]
    File(#[from] ListFileError),
    /// A directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The system has no thread left.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// A UDP socket that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot take {format} on UDP {address}: {source}: give another address in [collector] {format}, or [] for none"
)]
pub struct SocketError {
    /// Name of the format: `sflow`, `ipfix` or `fireflies`.
    pub format: &'static str,
    /// Address of the socket.
    pub address: SocketAddr,
    /// Error of the system.
    pub source: io::Error,
}

/// A directory that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}: give another directory in {key}", directory.display())]
pub struct DirectoryError {
    /// Path of the directory.
    pub directory: PathBuf,
    /// Key of the configuration that sets it.
    pub key: &'static str,
    /// Error of the system.
    pub source: io::Error,
}

/// A file of host names or prefixes that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListFileError {
    /// The file cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// Path of the file.
        file: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is too long.
    #[error("{}: {bytes} bytes are more than {bytes_max}", file.display())]
    TooLong {
        /// Path of the file.
        file: PathBuf,
        /// Its length.
        bytes: u64,
        /// Longest file.
        bytes_max: u64,
    },
    /// A line is no address with a name.
    #[error("{}:{source}", file.display())]
    HostName {
        /// Path of the file.
        file: PathBuf,
        /// Fault of the line.
        source: HostLineError,
    },
    /// A line is no prefix with its system.
    #[error("{}:{source}", file.display())]
    Prefix {
        /// Path of the file.
        file: PathBuf,
        /// Fault of the line.
        source: AsnLineError,
    },
}

/// Reads a text of at most `bytes_max` bytes.
pub(crate) fn read_text(file: &Path, bytes_max: u64) -> Result<String, ListFileError> {
    let failed = |source| ListFileError::Read { file: file.to_owned(), source };
    let bytes = std::fs::metadata(file).map_err(failed)?.len();
    if bytes > bytes_max {
        return Err(ListFileError::TooLong { file: file.to_owned(), bytes, bytes_max });
    }
    std::fs::read_to_string(file).map_err(failed)
}
