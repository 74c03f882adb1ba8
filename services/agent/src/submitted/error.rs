//! Errors of submissions and of changes to submitted transfers.

use axum::http::StatusCode;
use penstock_control::quota::QuotaExcess;
use penstock_daemon::state::StateError;
use penstock_http::ProblemDetails;
use penstock_protocol::open::{Refusal, RefusalKind};

/// A submission that is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// A field with a fault.
    #[error("{pointer}: {detail}")]
    Field {
        /// JSON pointer of the field.
        pointer: &'static str,
        /// Fault and remedy.
        detail: String,
    },
    /// The client may not do this, or a path does not exist.
    #[error("{}", .0.text)]
    Refused(Refusal),
    /// The idempotency key belongs to this transfer, whose body differs.
    #[error("transfer {0} has this key and asks for something else: give another key")]
    KeyInUse(u64),
    /// Too many transfers of this client have not ended.
    #[error("{0} transfers of this token have not ended: submit again when one has")]
    TooMany(usize),
    /// The client would exceed its quota.
    #[error(transparent)]
    OverQuota(#[from] QuotaExcess),
    /// The agent is shutting down.
    #[error("the agent is shutting down: submit again")]
    Stopping,
    /// The state directory cannot be written.
    #[error("the transfer cannot be recorded: {0}")]
    State(#[from] StateError),
}

impl SubmitError {
    pub(super) fn field(pointer: &'static str, detail: impl Into<String>) -> Self {
        Self::Field { pointer, detail: detail.into() }
    }
}

impl From<SubmitError> for ProblemDetails {
    fn from(error: SubmitError) -> Self {
        let text = error.to_string();
        match error {
            SubmitError::Field { pointer, detail } => Self::field(pointer, detail),
            SubmitError::Refused(refusal) => match refusal.kind {
                RefusalKind::Identity => Self::unauthorized(text),
                RefusalKind::Permission => Self::forbidden(text),
                RefusalKind::NotFound => Self::not_found(text),
                RefusalKind::Request | RefusalKind::UnknownSession => {
                    Self::new(StatusCode::UNPROCESSABLE_ENTITY, text)
                }
                RefusalKind::Busy => Self::new(StatusCode::SERVICE_UNAVAILABLE, text),
                RefusalKind::Agent => Self::new(StatusCode::INTERNAL_SERVER_ERROR, text),
            },
            SubmitError::KeyInUse(_) => Self::at(StatusCode::CONFLICT, "/key", text),
            SubmitError::TooMany(_) | SubmitError::OverQuota(_) => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, text).retry_after(10)
            }
            SubmitError::Stopping | SubmitError::State(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
            }
        }
    }
}
