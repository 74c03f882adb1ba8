//! Errors of a controller as a whole: start, simulation and rehearsal.

use std::error::Error;
use std::io;

use penstock_http::tokens::TokenError;
use penstock_tokens::IssuerFileError;

/// A failure of a controller: it cannot start, or its database does not answer.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// A file of tokens cannot be used.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// A file of an issuer of tokens cannot be used.
    #[error("[[controller.issuer]] {0}")]
    Issuers(#[from] IssuerFileError),
    /// The runtime of its tasks cannot start.
    #[error("cannot start the runtime of the controller: {0}")]
    Runtime(io::Error),
    /// The database cannot be opened, or a statement failed.
    #[error(transparent)]
    Database(Box<dyn Error + Send + Sync>),
}

impl ControllerError {
    pub(crate) fn database(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Database(Box::new(error))
    }
}
