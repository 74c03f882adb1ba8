//! Link telemetry, which the leader polls from a collector.
//!
//! A link is down if one of its interfaces reports so; counted rates are compared with the rates of the transfers on it
//! (`penstock-control`). While the collector is unreachable the last telemetry remains.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::{Method, StatusCode};
use penstock_control::scheduler::LinkCount;
use penstock_daemon::remote::{RemoteDaemon, RemoteDaemonError};
use penstock_http::{HttpClient, HttpError, HttpRequest, Url};
use penstock_identity::Fingerprint;
use serde::Deserialize;

use crate::repository::links::{self, LinkTelemetry};
use crate::shared::ControllerState;

/// Time limit of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest response, some ten thousand links.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// Least time between two polls.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(500);

/// Connection to a collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// URL of its HTTP API.
    pub url: Url,
    /// File with the token to send, if any.
    pub token: Option<PathBuf>,
    /// Pinned certificate, if any.
    pub fingerprint: Option<Fingerprint>,
    /// File of trusted authorities; none for those of the system.
    pub authorities: Option<PathBuf>,
}

/// A URL over which a token would be sent in the clear.
#[derive(Debug, thiserror::Error)]
#[error("{0} would carry a token in the clear: write https://, with fingerprint or authorities")]
pub(crate) struct PlaintextTokenUrl(Url);

impl Telemetry {
    /// Rejects a configuration that would send a token in the clear.
    pub(crate) fn check(&self) -> Result<(), PlaintextTokenUrl> {
        if !self.url.is_encrypted() && !self.url.is_loopback() && self.token.is_some() {
            return Err(PlaintextTokenUrl(self.url.clone()));
        }
        Ok(())
    }

    fn client(&self) -> Result<HttpClient, RemoteDaemonError> {
        let collector = RemoteDaemon {
            url: &self.url,
            token: self.token.as_deref(),
            fingerprint: self.fingerprint,
            authorities: self.authorities.as_deref(),
        };
        collector.client()
    }
}

/// A poll without a result.
#[derive(Debug, thiserror::Error)]
enum PollError {
    #[error(transparent)]
    RemoteDaemon(#[from] RemoteDaemonError),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("{0} answers {1}")]
    Status(Url, StatusCode),
    #[error("cannot parse the response of {0}: {1}")]
    Response(Url, serde_json::Error),
    #[error(transparent)]
    Database(Box<dyn std::error::Error + Send + Sync>),
}

impl PollError {
    fn database(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Database(Box::new(error))
    }
}

/// Response of `/api/v1/telemetry/links`, reduced to the fields used.
#[derive(Debug, Deserialize)]
struct LinksResponse {
    links: Vec<ReportedLink>,
}

#[derive(Debug, Deserialize)]
struct ReportedLink {
    name: String,
    #[serde(default)]
    up: Option<bool>,
    #[serde(default)]
    told_unix_seconds: Option<f64>,
    a_to_b: DirectionRate,
    b_to_a: DirectionRate,
}

#[derive(Debug, Deserialize)]
struct DirectionRate {
    bps: Option<f64>,
    from: Option<String>,
    #[serde(default)]
    interval_s: Option<f64>,
}

impl ReportedLink {
    fn lower(&self) -> LinkTelemetry {
        // Rates estimated from samples are too uncertain for a verdict.
        let counted = |flowing: &DirectionRate| {
            let bps = flowing.bps.filter(|_| flowing.from.as_deref() == Some("counters"))?;
            Some((bps.max(0.0) as u64, flowing.interval_s?))
        };
        let both = [counted(&self.a_to_b), counted(&self.b_to_a)];
        let longest = both.iter().flatten().map(|(_, interval)| *interval).reduce(f64::max);
        let count = longest.zip(self.told_unix_seconds).map(|(interval_s, at_s)| LinkCount {
            at_ms: (at_s * 1000.0) as i64,
            interval_ms: (interval_s * 1000.0) as i64,
            bps: both.map(|one| one.map(|(bps, _)| bps)),
        });
        LinkTelemetry { up: self.up, count }
    }
}

/// Polls until the controller stops.
pub(crate) async fn run(shared: Arc<ControllerState>) {
    let mut client: Option<(Telemetry, HttpClient)> = None;
    // Telemetry as stored; a new leader reads it again.
    let mut known: Option<HashMap<String, LinkTelemetry>> = None;
    let mut logged_error = String::new();
    while !shared.stopping.load(Ordering::Relaxed) {
        let settings = shared.settings();
        let round = settings.config.round.max(POLL_INTERVAL_MIN);
        let asked = match (&settings.config.telemetry, shared.leads.load(Ordering::Relaxed)) {
            (_, false) => {
                known = None;
                Ok(())
            }
            (None, true) if known.as_ref().is_some_and(HashMap::is_empty) => Ok(()),
            (None, true) => {
                known = Some(HashMap::new());
                let forgotten = shared.writer.apply(|cx| Box::pin(links::clear_telemetry(cx)));
                forgotten.await.map_err(PollError::database)
            }
            (Some(telemetry), true) => ask(&shared, telemetry, &mut client, &mut known).await,
        };
        match asked {
            Ok(()) => logged_error.clear(),
            Err(error) => {
                client = None;
                let error = error.to_string();
                if error != logged_error {
                    tracing::warn!("cannot read link telemetry from the collector: {error}");
                }
                logged_error = error;
            }
        }
        tokio::time::sleep(round).await;
    }
}

async fn ask(
    shared: &ControllerState,
    telemetry: &Telemetry,
    client: &mut Option<(Telemetry, HttpClient)>,
    known: &mut Option<HashMap<String, LinkTelemetry>>,
) -> Result<(), PollError> {
    if client.as_ref().is_none_or(|(of, _)| of != telemetry) {
        *client = Some((telemetry.clone(), telemetry.client()?));
    }
    let Some((_, client)) = client else { return Ok(()) };
    let request = HttpRequest::new(Method::GET, "/api/v1/telemetry/links")
        .bytes_max(RESPONSE_BYTES_MAX)
        .timeout(RESPONSE_TIMEOUT);
    let response = client.send(request).await?;
    if !response.status.is_success() {
        return Err(PollError::Status(telemetry.url.clone(), response.status));
    }
    let answer: LinksResponse = serde_json::from_slice(&response.body)
        .map_err(|error| PollError::Response(telemetry.url.clone(), error))?;
    let known = match known {
        Some(known) => known,
        None => {
            let stored = links::telemetry(&shared.database.pool).await;
            known.insert(stored.map_err(PollError::database)?)
        }
    };
    let settings = shared.settings();
    let is_ours = |link: &&ReportedLink| settings.config.topology.link(&link.name).is_some();
    let all = answer.links.iter().filter(is_ours).map(|link| (link.name.clone(), link.lower()));
    let news: Vec<(String, LinkTelemetry)> = all
        .filter(|(_, seen)| *seen != LinkTelemetry::default())
        .filter(|(name, seen)| known.get(name) != Some(seen))
        .collect();
    if news.is_empty() {
        return Ok(());
    }
    known.extend(news.iter().cloned());
    let noted = shared.writer.apply(move |cx| {
        let news = news.clone();
        Box::pin(async move { links::store_telemetry(cx, &news).await })
    });
    noted.await.map_err(PollError::database)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_link(json: &str) -> LinkTelemetry {
        serde_json::from_str::<ReportedLink>(json).unwrap().lower()
    }

    #[test]
    fn only_counted_rates_are_used() {
        let seen = parse_link(
            r#"{ "name": "x", "capacity_bps": 1, "up": false, "told_unix_seconds": 100.5,
                "a_to_b": { "bps": 8.9, "from": "counters", "interval_s": 20.0 },
                "b_to_a": { "bps": 7.0, "from": "samples", "interval_s": 10.0 } }"#,
        );
        let count = LinkCount { at_ms: 100_500, interval_ms: 20_000, bps: [Some(8), None] };
        assert_eq!(seen, LinkTelemetry { up: Some(false), count: Some(count) });
        // A collector without link states, and a link without data.
        let seen = parse_link(
            r#"{ "name": "x", "a_to_b": { "bps": null, "from": null }, "b_to_a": { "bps": null, "from": null } }"#,
        );
        assert_eq!(seen, LinkTelemetry::default());
    }
}
