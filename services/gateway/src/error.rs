//! Errors as HTTP responses.

use std::io;

use axum::http::StatusCode;
use penstock_http::ProblemDetails;
use penstock_protocol::open::{Refusal, RefusalKind};
use penstock_sys::fs::{describe, is_link_error};

/// Pause that a client is asked for when a limit of the agent is reached, in seconds.
const BUSY_RETRY_AFTER_S: u16 = 5;

/// Problem of a refusal by the agent or its gatekeeper.
pub(crate) fn refused(refusal: Refusal) -> ProblemDetails {
    let status = match refusal.kind {
        RefusalKind::Identity => StatusCode::UNAUTHORIZED,
        RefusalKind::Permission => StatusCode::FORBIDDEN,
        RefusalKind::NotFound => StatusCode::NOT_FOUND,
        RefusalKind::Busy => StatusCode::SERVICE_UNAVAILABLE,
        RefusalKind::Request => StatusCode::BAD_REQUEST,
        RefusalKind::UnknownSession | RefusalKind::Agent => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let problem = ProblemDetails::new(status, refusal.text);
    match refusal.kind {
        RefusalKind::Busy => problem.retry_after(BUSY_RETRY_AFTER_S),
        _ => problem,
    }
}

/// Problem of a file operation on the path `shown`.
pub(crate) fn failed(shown: &str, error: &io::Error) -> ProblemDetails {
    use io::ErrorKind::{
        AlreadyExists, DirectoryNotEmpty, InvalidFilename, InvalidInput, IsADirectory,
        NotADirectory, NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    let status = match error.kind() {
        // Below a file nothing exists.
        NotFound | NotADirectory => StatusCode::NOT_FOUND,
        PermissionDenied | ReadOnlyFilesystem => StatusCode::FORBIDDEN,
        AlreadyExists | IsADirectory | DirectoryNotEmpty => StatusCode::CONFLICT,
        StorageFull | QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
        InvalidFilename | InvalidInput => StatusCode::BAD_REQUEST,
        _ if is_link_error(error) => StatusCode::CONFLICT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    ProblemDetails::new(status, format!("{shown}: {}", describe(error)))
}
