//! Traffic between sites as a matrix.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use penstock_http::{ProblemDetails, Refused};
use serde::Serialize;
use utoipa::ToSchema;

use super::series::{Answered, RangeRequest, answer};
use super::{RawQuery, TelemetryParams};
use crate::query::{By, ELSEWHERE, PAIR};
use crate::shared::Shared;

/// Traffic from one site to another.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryMatrixCell)]
pub(crate) struct MatrixCell {
    /// Site of the source.
    source: String,
    /// Site of the destination.
    destination: String,
    /// Mean bits per second.
    bps: f64,
    /// Half-width of the 95 % interval.
    error_bps: f64,
}

/// A site of the matrix with its totals.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryMatrixSite)]
pub(crate) struct MatrixSite {
    /// Key, as in filters.
    key: String,
    /// Display name of the site.
    name: String,
    /// Mean bits per second that it sends to all sites.
    sent_bps: f64,
    /// Mean bits per second that it receives from all sites.
    received_bps: f64,
}

/// Traffic between all sites.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryMatrix)]
pub(crate) struct Matrix {
    /// Start of the range, in seconds since 1970.
    from_s: i64,
    /// End of the range, in seconds since 1970.
    to_s: i64,
    /// Measured seconds of the range.
    measured_s: f64,
    /// Sites with traffic, in descending order; addresses outside all configured networks are
    /// `elsewhere`.
    sites: Vec<MatrixSite>,
    /// Pairs of sites with traffic.
    cells: Vec<MatrixCell>,
}

/// Splits a key into source and destination. A name may contain the separator, so known names take
/// precedence.
fn split(key: &str, sites: &[Arc<str>]) -> Option<(String, String)> {
    let known = |name: &str| name == ELSEWHERE || sites.iter().any(|site| &**site == name);
    let halves = key.match_indices(PAIR).map(|(at, _)| (&key[..at], &key[at + PAIR.len_utf8()..]));
    let found = halves.clone().find(|(source, destination)| known(source) && known(destination));
    let (source, destination) = found.or_else(|| halves.clone().next())?;
    Some((source.to_owned(), destination.to_owned()))
}

/// Returns mean rates from site to site over a time range.
#[utoipa::path(get, path = "/api/v1/telemetry/matrix", operation_id = "traffic_matrix", security((), ("token" = [])),
    params(
        ("from" = Option<i64>, Query, description = "As of series; -60 if not given"),
        ("to" = Option<i64>, Query, description = "As of series"),
        ("owner" = Option<String>, Query, description = "Filters as of series"),
    ),
    responses((status = 200, body = Matrix, description = "Rates between sites"), Refused))]
pub(super) async fn matrix(
    State(shared): State<Arc<Shared>>,
    given: RawQuery,
) -> Result<Json<Matrix>, ProblemDetails> {
    let mut params = TelemetryParams::new(given)?;
    if !params.has("from") {
        params.0.insert("from".to_owned(), "-60".to_owned());
    }
    let mut asked = RangeRequest::new(&mut params)?;
    asked.step_s = Some(asked.to_s - asked.from_s);
    let query = params.question(By::SitePair, &shared)?;
    let Answered { answer, span, .. } = answer(&shared, query, asked).await?;
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let mut cells = Vec::new();
    let measured_s: f64 = answer.covered_s.iter().sum();
    for (key, sums_of_pair) in &answer.series {
        let Some((source, destination)) = split(key, &shared.sites) else { continue };
        let Some((bps, error_bps)) = answer.mean_bps(sums_of_pair) else { continue };
        sums.entry(source.clone()).or_default().0 += bps;
        sums.entry(destination.clone()).or_default().1 += bps;
        cells.push(MatrixCell { source, destination, bps, error_bps });
    }
    let titles = shared.config.topology.as_ref();
    let title = |key: &str| {
        let site = titles.and_then(|topology| topology.sites.iter().find(|s| s.name == key));
        match (site, key) {
            (Some(site), _) => site.shown().to_owned(),
            (None, ELSEWHERE) => "Elsewhere".to_owned(),
            (None, key) => key.to_owned(),
        }
    };
    let mut sites: Vec<_> = sums
        .into_iter()
        .map(|(key, (sent_bps, received_bps))| MatrixSite {
            name: title(&key),
            key,
            sent_bps,
            received_bps,
        })
        .collect();
    let weight = |site: &MatrixSite| site.sent_bps + site.received_bps;
    sites.sort_by(|a, b| weight(b).total_cmp(&weight(a)).then_with(|| a.key.cmp(&b.key)));
    cells.sort_by(|a, b| b.bps.total_cmp(&a.bps));
    Ok(Json(Matrix { from_s: span.start_s, to_s: span.end_s(), measured_s, sites, cells }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pair_key_splits_at_known_sites() {
        let sites: Vec<Arc<str>> = ["cern".into(), "a>b".into()].into();
        let pair = |key| split(key, &sites).unwrap();
        assert_eq!(pair("cern>elsewhere"), ("cern".to_owned(), "elsewhere".to_owned()));
        assert_eq!(pair("a>b>cern"), ("a>b".to_owned(), "cern".to_owned()));
        assert_eq!(pair("cern>a>b"), ("cern".to_owned(), "a>b".to_owned()));
        assert_eq!(split("other", &sites), None);
    }
}
