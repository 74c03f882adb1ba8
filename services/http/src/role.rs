//! The interface between a role and the HTTP server.

use std::fmt;

use axum::Router;
use prometheus_client::encoding::DescriptorEncoder;
use utoipa::openapi::OpenApi;

/// A role of `penstock serve` as the server sees it: routes, API document, metrics.
pub trait Role: Send + Sync + fmt::Debug + 'static {
    /// Routes with full paths. The server checks access before it calls them.
    fn router(&self) -> Router;

    /// OpenAPI document of the routes, which the server merges with those of other roles.
    fn document(&self) -> OpenApi;

    /// Encodes the role's metrics for `/metrics`.
    ///
    /// # Errors
    /// When encoding fails.
    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result;

    /// Reloads the role's own files after SIGHUP.
    ///
    /// # Errors
    /// With one line; the role then keeps its state.
    fn reload(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns true if the role checks access to `path` itself, by the [`crate::ApiCaller`] in the
    /// request.
    fn guards(&self, path: &str) -> bool {
        let _ = path;
        false
    }

    /// Returns whether `token` may read the endpoints of every role; `None` if the role does not know it.
    fn may_read(&self, token: &str) -> Option<bool> {
        let _ = token;
        None
    }

    /// Ends endless answers, because the service stops.
    fn stop(&self) {}
}
