//! Errors as responses carry them.

/// Code of an error response (`XErrorCode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum XrdErrorCode {
    /// An argument has an invalid value.
    ArgInvalid = 3000,
    /// An argument is missing.
    ArgMissing = 3001,
    /// An argument is longer than the server accepts.
    ArgTooLong = 3002,
    /// The file handle names no open file.
    FileNotOpen = 3004,
    /// A file operation failed.
    FsError = 3005,
    /// The request is not valid in this state.
    InvalidRequest = 3006,
    /// Reading failed.
    IoError = 3007,
    /// The client may not do this.
    NotAuthorized = 3010,
    /// The path does not exist.
    NotFound = 3011,
    /// The server failed.
    ServerError = 3012,
    /// The server does not know the request.
    Unsupported = 3013,
    /// The path is no regular file.
    NotFile = 3015,
    /// The path is a directory.
    IsDirectory = 3016,
    /// A limit of the server is reached.
    Overloaded = 3024,
    /// The server does not write.
    FsReadOnly = 3025,
    /// The request needs TLS.
    TlsRequired = 3028,
    /// The credentials are not accepted.
    AuthFailed = 3030,
}

/// An error that the client receives.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct XrdError {
    /// Code of the error response.
    pub code: XrdErrorCode,
    /// Reason and remedy, for people.
    pub text: String,
}

impl XrdError {
    /// Returns an error with a code and a text.
    pub fn new(code: XrdErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}
