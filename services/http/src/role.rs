//! The interface between a role and the HTTP server.

use std::fmt;

use axum::Router;
use utoipa::openapi::OpenApi;

use crate::MetricWriter;

/// Failed reload of a role, in one line.
pub type RoleReloadError = Box<dyn std::error::Error + Send + Sync>;

/// A role of `penstock serve` as the server sees it: routes, API document, metrics.
pub trait ServiceRole: Send + Sync + fmt::Debug + 'static {
    /// Routes with full paths. The server checks access before it calls them.
    fn router(&self) -> Router;

    /// OpenAPI document of the routes, which the server merges with those of other roles.
    fn document(&self) -> OpenApi;

    /// Writes the role's metrics for `/metrics`.
    ///
    /// # Errors
    /// When encoding fails.
    fn metrics(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result;

    /// Reloads the role's own files after SIGHUP.
    ///
    /// # Errors
    /// When a file cannot be used; the role then keeps its state.
    fn reload(&self) -> Result<(), RoleReloadError> {
        Ok(())
    }

    /// Returns true if the role checks access to `path` itself, by the [`crate::ApiCaller`] in the
    /// request.
    fn guards(&self, path: &str) -> bool {
        let _ = path;
        false
    }

    /// Returns true if clients may use `path` with the tokens with which they move files. The role checks such a token by
    /// the [`crate::ApiCaller`] in the request; requests without one need no check.
    fn admits_mover_tokens(&self, path: &str) -> bool {
        let _ = path;
        false
    }

    /// Returns whether `token` may read the endpoints of every role; `None` if the role does not know it.
    fn may_read(&self, token: &str) -> Option<bool> {
        let _ = token;
        None
    }

    /// Describes the work under way in one line, for the service manager, which restarts a service whose role does not
    /// return.
    fn status(&self) -> Option<String> {
        None
    }

    /// Reason why the role is not ready for clients yet, in one line, for `/readyz`; does not block.
    fn unready_reason(&self) -> Option<String> {
        None
    }

    /// Ends endless answers and begins to end the work, because the service stops.
    fn stop(&self) {}

    /// Waits after [`Self::stop`] until the work has ended; blocks its thread.
    fn shut_down(&self) {}
}
