//! What a role brings to the server.

use std::fmt;

use axum::Router;
use prometheus_client::encoding::DescriptorEncoder;
use utoipa::openapi::OpenApi;

/// A role of `penstock serve` as the server sees it: paths, what describes them, numbers.
pub trait Role: Send + Sync + fmt::Debug + 'static {
    /// Its paths, whole. Who may ask is checked before.
    fn router(&self) -> Router;

    /// Its paths as an OpenAPI document, which is merged with those of the other roles.
    fn document(&self) -> OpenApi;

    /// Its numbers for `/metrics`.
    ///
    /// # Errors
    /// When they cannot be written.
    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result;

    /// SIGHUP: reads anew what it reads from files of its own.
    ///
    /// # Errors
    /// With one line; everything stays as it was then.
    fn reload(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether it checks itself who may ask at `path`: it then finds a [`crate::Caller`] in the request.
    fn guards(&self, path: &str) -> bool {
        let _ = path;
        false
    }

    /// Whether it knows the bearer of `token` as one who may read what every role shows.
    fn reads(&self, token: &str) -> bool {
        let _ = token;
        false
    }

    /// The service ends: answers that have no end of their own end now.
    fn stop(&self) {}
}
