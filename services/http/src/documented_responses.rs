//! Responses to requests that fail, for the OpenAPI documents of handlers.

use std::collections::BTreeMap;

use utoipa::IntoResponses;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};

use crate::PROBLEM_JSON;

/// Response to a request that is malformed, forbidden or in conflict with the present state.
#[derive(Debug)]
pub struct Refused;

/// Response while the server cannot use its database.
#[derive(Debug)]
pub struct Unavailable;

impl IntoResponses for Refused {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problem("4XX", "Refused; the problem document states the reason and the remedy")
    }
}

impl IntoResponses for Unavailable {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problem("503", "The server cannot answer now: retry after the time in Retry-After")
    }
}

fn problem(status: &str, description: &str) -> BTreeMap<String, RefOr<Response>> {
    let schema = Ref::from_schema_name("Problem");
    let content = ContentBuilder::new().schema(Some(schema)).build();
    let response =
        ResponseBuilder::new().description(description).content(PROBLEM_JSON, content).build();
    BTreeMap::from([(status.to_owned(), response.into())])
}
