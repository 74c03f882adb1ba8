//! Query parameters of a request, each of which must be known.

use std::collections::HashMap;
use std::fmt::Display;
use std::str::FromStr;

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;

use crate::problem::ProblemDetails;

/// Query of a request, not read yet.
pub type RawQuery = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// Parameters of a request that are not consumed yet.
#[derive(Debug)]
pub struct QueryParams(HashMap<String, String>);

impl QueryParams {
    /// Reads the query of a request, without consuming any parameter yet.
    ///
    /// # Errors
    /// When it is malformed, or a parameter is given twice.
    pub fn new(given: RawQuery) -> Result<Self, ProblemDetails> {
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

    /// Consumes a parameter and returns its value as given, without percent-encoding.
    pub fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// Consumes and parses a parameter.
    ///
    /// # Errors
    /// When its value is invalid.
    pub fn parsed<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, ProblemDetails>
    where
        T::Err: Display,
    {
        let parsed = self.take(name).map(|text| text.parse::<T>()).transpose();
        parsed.map_err(|error: T::Err| ProblemDetails::field(name, error.to_string()))
    }

    /// Consumes the parameter `limit`, a number from 1 to `most`; `usual` unless given.
    ///
    /// # Errors
    /// When it is another number, or none.
    pub fn limit(&mut self, usual: i64, most: i64) -> Result<i64, ProblemDetails> {
        match self.parsed::<i64>("limit")? {
            None => Ok(usual),
            Some(limit) if (1..=most).contains(&limit) => Ok(limit),
            Some(_) => {
                Err(ProblemDetails::field("limit", format!("give a number from 1 to {most}")))
            }
        }
    }

    /// Refuses parameters that are left; `page` names the page that lists those that exist.
    ///
    /// # Errors
    /// When one is left.
    pub fn none(self, page: &str) -> Result<(), ProblemDetails> {
        match self.0.keys().min() {
            None => Ok(()),
            Some(name) => {
                let text = format!("it is no parameter here: see {page}");
                Err(ProblemDetails::field(name, text))
            }
        }
    }
}
