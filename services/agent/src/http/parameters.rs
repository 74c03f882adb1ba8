//! Query parameters of the paths of transfers, each of which must be known.

use std::collections::HashMap;
use std::fmt::Display;
use std::str::FromStr;

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use penstock_http::ProblemDetails;

/// Largest `limit`.
const LIMIT_MAX: usize = 1000;

/// Query of a request, not read yet.
pub(super) type TransferQuery = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// Parameters that are not consumed yet.
pub(super) struct Params(HashMap<String, String>);

impl Params {
    pub(super) fn new(given: TransferQuery) -> Result<Self, ProblemDetails> {
        let Query(pairs) =
            given.map_err(|rejection| ProblemDetails::bad_request(rejection.body_text()))?;
        let mut params = HashMap::new();
        for (name, value) in pairs {
            if params.insert(name.clone(), value).is_some() {
                return Err(ProblemDetails::field(name, "it is given twice: give it once"));
            }
        }
        Ok(Self(params))
    }

    pub(super) fn parsed<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, ProblemDetails>
    where
        T::Err: Display,
    {
        let parsed = self.0.remove(name).map(|text| text.parse::<T>()).transpose();
        parsed.map_err(|error: T::Err| ProblemDetails::field(name, error.to_string()))
    }

    /// Returns the parameter `limit`; no limit unless given.
    pub(super) fn limit(&mut self) -> Result<usize, ProblemDetails> {
        match self.parsed::<usize>("limit")? {
            None => Ok(usize::MAX),
            Some(limit @ 1..=LIMIT_MAX) => Ok(limit),
            Some(_) => {
                Err(ProblemDetails::field("limit", format!("use a number from 1 to {LIMIT_MAX}")))
            }
        }
    }

    /// Refuses parameters that are left.
    pub(super) fn none(self) -> Result<(), ProblemDetails> {
        match self.0.into_keys().next() {
            None => Ok(()),
            Some(name) => {
                let text = "there is no such parameter here: see /api/v1/openapi.json";
                Err(ProblemDetails::field(name, text))
            }
        }
    }
}
