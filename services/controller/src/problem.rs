//! Failures of the database as problem documents (RFC 9457).

use axum::http::StatusCode;
pub use penstock_http::{FieldProblem, ProblemDetails};

use crate::repository::{DatabaseError, WriteError};

impl From<WriteError> for ProblemDetails {
    fn from(error: WriteError) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error}: try it again"))
    }
}

/// Logs a failed query and returns a 503 problem.
pub(crate) fn unavailable(error: DatabaseError) -> ProblemDetails {
    tracing::warn!("the database did not answer: {error}");
    let text = "the database did not answer: try it again";
    ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, text)
}
