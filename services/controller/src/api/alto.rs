//! Read-only ALTO endpoints (RFC 7285).

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use penstock_alto::{Maps, directory, media};
use penstock_http::{Refused, Unavailable};
use serde::Serialize;

use super::ApiClient;
use crate::problem::{ProblemDetails, unavailable};
use crate::repository::links;
use crate::shared::ControllerState;

/// Prefix of the documents' paths.
const BASE: &str = "/api/v1/alto";

fn document(media: &'static str, value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("plain data");
    ([(header::CONTENT_TYPE, media)], body).into_response()
}

fn readable(asking: &ApiClient) -> Result<(), ProblemDetails> {
    match asking.who.is_client() {
        true => Ok(()),
        false => Err(ProblemDetails::forbidden("the token needs the scope read or submit")),
    }
}

/// Builds the maps of the present network, without links that are down.
async fn maps(shared: &ControllerState) -> Result<Maps, ProblemDetails> {
    let down = links::down(&shared.database.pool).await.map_err(unavailable)?;
    let settings = shared.settings();
    let topology = &settings.config.topology;
    let mut prefixes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in &topology.nodes {
        let Some(site) = node.site else { continue };
        let name = &topology.sites[site.0].name;
        let networks = settings.config.networks.get(name).cloned();
        prefixes.entry(name.clone()).or_insert_with(|| networks.unwrap_or_default());
    }
    Maps::of(topology, &prefixes, |link| !down.contains(&topology.links[link.0].name))
        .map_err(|error| ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

/// ALTO information resource directory (RFC 7285 section 9).
#[utoipa::path(get, path = "/api/v1/alto/directory", operation_id = "alto_directory", security((), ("token" = [])), responses(
    (status = 200, body = serde_json::Value, content_type = "application/alto-directory+json", description = "The directory"),
    Refused))]
pub(super) async fn resources(asking: ApiClient) -> Result<Response, ProblemDetails> {
    readable(&asking)?;
    Ok(document(media::DIRECTORY, &directory(BASE)))
}

/// Sites with their networks (RFC 7285 section 11.2.1).
#[utoipa::path(get, path = "/api/v1/alto/networkmap", operation_id = "alto_network_map", security((), ("token" = [])), responses(
    (status = 200, body = serde_json::Value, content_type = "application/alto-networkmap+json", description = "The network map"),
    Refused,
    Unavailable))]
pub(super) async fn network(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
) -> Result<Response, ProblemDetails> {
    readable(&asking)?;
    Ok(document(media::NETWORK_MAP, &maps(&shared).await?.network))
}

/// Costs between sites (RFC 7285 section 11.2.3).
#[utoipa::path(get, path = "/api/v1/alto/costmap", operation_id = "alto_cost_map", security((), ("token" = [])), responses(
    (status = 200, body = serde_json::Value, content_type = "application/alto-costmap+json", description = "The cost map"),
    Refused,
    Unavailable))]
pub(super) async fn costs(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
) -> Result<Response, ProblemDetails> {
    readable(&asking)?;
    Ok(document(media::COST_MAP, &maps(&shared).await?.costs))
}
