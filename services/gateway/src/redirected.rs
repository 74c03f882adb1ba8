//! Requests that a head node redirected to this gateway, and the room that this gateway reports to head nodes.

use std::sync::Arc;

use axum::Json;
use axum::http::{Method, header};
use axum::response::{IntoResponse, Response};
use penstock_http::ProblemDetails;
use penstock_http::tokens::CONTROLLER;
use penstock_mover::Caller;
use penstock_sys::machine::unix_seconds;

use crate::dispatch::{Gateway, blocking};
use crate::head::config::RedirectedConfig;
use crate::head::{AgentRoom, ExportRoom};

/// Path at which a gateway reports its room to head nodes.
pub(crate) const ROOM_PATH: &str = "/.well-known/penstock-room";

/// Method in the token of a redirect for a file that a client of `root://` opens.
pub(crate) const ROOT_OPEN_METHOD: &str = "root:open";

/// Authenticates the client of a redirected request by the token in its URL, whatever other credentials it sends.
///
/// # Errors
/// 401 for a token that is not for this request.
pub(crate) fn authenticate(
    config: Option<&RedirectedConfig>,
    token: &str,
    method: &str,
    path: &[u8],
) -> Result<Caller, ProblemDetails> {
    let config = config.ok_or_else(|| {
        ProblemDetails::unauthorized(
            "this agent accepts no redirects: its operator adds [gateway.redirected] to the configuration",
        )
    })?;
    let host = config.url.authority();
    let opened = config.key.open(token, method, path, &host, unix_seconds());
    let client = opened.map_err(|error| ProblemDetails::unauthorized(error.to_string()))?;
    match client {
        // Head nodes redirect neither.
        Some(client) if client.name != CONTROLLER && !client.name.is_empty() => Ok(Caller {
            name: client.name,
            pass: None,
            token: None,
            grant: client.grant.map(Arc::new),
        }),
        _ => Err(ProblemDetails::unauthorized("the token of the redirect names no client")),
    }
}

/// Reports the room of this agent to a head node, which shows a token of its own.
///
/// # Errors
/// 401 for any other client.
pub(crate) async fn report_room(
    gateway: &Arc<Gateway>,
    config: &RedirectedConfig,
    credentials: Option<&str>,
) -> Result<Response, ProblemDetails> {
    let token = credentials.and_then(|text| text.strip_prefix("Bearer ")).unwrap_or_default();
    let host = config.url.authority();
    let opened =
        config.key.open(token, Method::GET.as_str(), ROOM_PATH.as_bytes(), &host, unix_seconds());
    match opened {
        Ok(None) => {}
        Ok(Some(_)) => return Err(ProblemDetails::unauthorized("the token is for a client")),
        Err(error) => return Err(ProblemDetails::unauthorized(error.to_string())),
    }
    let keeper = Arc::clone(&gateway.keeper);
    let exports = blocking(move || Ok(keeper.export_space())).await;
    let exports = exports.map_err(|error| {
        ProblemDetails::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    })?;
    let load = gateway.agent.load();
    let room = AgentRoom {
        transfers: load.transfers as u64,
        limit: load.limit as u64,
        root_port: gateway.root_port,
        exports: exports
            .into_iter()
            .map(|export| ExportRoom {
                name: export.name,
                reads: export.reads,
                writes: export.writes,
                available_bytes: export.available_bytes,
            })
            .collect(),
    };
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(room)).into_response())
}
