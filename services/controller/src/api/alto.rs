//! What the network tells applications about itself: ALTO (RFC 7285), read only.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use penstock_alto::{Maps, directory, media};
use serde::Serialize;

use super::Asking;
use crate::problem::Problem;
use crate::shared::Shared;
use crate::store::read;

/// Where the documents are.
const BASE: &str = "/api/v1/alto";

fn document(media: &'static str, value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("plain data");
    ([(header::CONTENT_TYPE, media)], body).into_response()
}

fn readable(asking: &Asking) -> Result<(), Problem> {
    match asking.who.is_client() {
        true => Ok(()),
        false => Err(Problem::forbidden("the token needs the scope read or submit")),
    }
}

/// Maps of the network as it is now: what is down is not gone over.
async fn maps(shared: &Shared) -> Result<Maps, Problem> {
    let down = read::down(&shared.database.pool).await?;
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
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

/// What ALTO resources there are (RFC 7285 section 9).
#[utoipa::path(get, path = "/api/v1/alto/directory", security((), ("token" = [])), responses(
    (status = 200, body = serde_json::Value, content_type = "application/alto-directory+json", description = "The directory"),
    (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn resources(asking: Asking) -> Result<Response, Problem> {
    readable(&asking)?;
    Ok(document(media::DIRECTORY, &directory(BASE)))
}

/// Sites with their networks (RFC 7285 section 11.2.1).
#[utoipa::path(get, path = "/api/v1/alto/networkmap", security((), ("token" = [])), responses(
    (status = 200, body = serde_json::Value, content_type = "application/alto-networkmap+json", description = "The network map"),
    (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn network(
    State(shared): State<Arc<Shared>>,
    asking: Asking,
) -> Result<Response, Problem> {
    readable(&asking)?;
    Ok(document(media::NETWORK_MAP, &maps(&shared).await?.network))
}

/// Costs between sites (RFC 7285 section 11.2.3).
#[utoipa::path(get, path = "/api/v1/alto/costmap", security((), ("token" = [])), responses(
    (status = 200, body = serde_json::Value, content_type = "application/alto-costmap+json", description = "The cost map"),
    (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn costs(
    State(shared): State<Arc<Shared>>,
    asking: Asking,
) -> Result<Response, Problem> {
    readable(&asking)?;
    Ok(document(media::COST_MAP, &maps(&shared).await?.costs))
}
