//! What interfaces tell of links, asked of a collector by the controller that makes the rounds.
//!
//! A link of which an interface says that it is down is down; what counters say of a link is compared with what transfers
//! are told to move over it (`penstock-operations`). A collector that is away changes nothing: links stay as they were
//! told last.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::Method;
use penstock_http::client::HttpClient;
use penstock_http::fetch::{Url, trusted_tls_config};
use penstock_mover::identity::{Fingerprint, tls_client_config};
use penstock_operations::round::LinkCount;
use rustls::ClientConfig;
use serde::Deserialize;

use crate::shared::Shared;
use crate::store::seen::{self, SeenLink};

/// Time for an answer.
const WITHIN: Duration = Duration::from_secs(10);

/// Longest answer: some ten thousand links.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Questions are at least so far apart.
const EVERY_MIN: Duration = Duration::from_millis(500);

/// Where the collector is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// Its HTTP API.
    pub url: Url,
    /// File of the token that it wants, if it wants one.
    pub token: Option<PathBuf>,
    /// Its certificate, where that is known.
    pub fingerprint: Option<Fingerprint>,
    /// File of the authorities that vouch for it; those of the system where neither is given.
    pub authorities: Option<PathBuf>,
}

impl Telemetry {
    /// Whether it makes sense.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (name, _) = self.url.host_and_port();
        let is_loopback =
            name == "localhost" || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        if !self.url.is_encrypted() && !is_loopback && self.token.is_some() {
            return Err(format!(
                "{} would carry a token in the clear: write https://, with fingerprint or authorities",
                self.url
            ));
        }
        Ok(())
    }

    fn tls(&self) -> Result<Option<Arc<ClientConfig>>, String> {
        match self.fingerprint {
            _ if !self.url.is_encrypted() => Ok(None),
            Some(fingerprint) => {
                tls_client_config(fingerprint, None).map(Some).map_err(|error| error.to_string())
            }
            None => trusted_tls_config(self.authorities.as_deref()).map(Some),
        }
    }

    fn client(&self) -> Result<HttpClient, String> {
        let token = match &self.token {
            None => String::new(),
            Some(file) => std::fs::read_to_string(file)
                .map(|text| text.trim().to_owned())
                .map_err(|error| format!("{}: {error}", file.display()))?,
        };
        Ok(HttpClient::new(self.url.clone(), self.tls()?, token))
    }
}

/// The answer at `/api/v1/telemetry/links`, as far as it is of use here.
#[derive(Debug, Deserialize)]
struct Answer {
    links: Vec<Told>,
}

#[derive(Debug, Deserialize)]
struct Told {
    name: String,
    #[serde(default)]
    up: Option<bool>,
    #[serde(default)]
    told_unix_seconds: Option<f64>,
    a_to_b: Flowing,
    b_to_a: Flowing,
}

#[derive(Debug, Deserialize)]
struct Flowing {
    bps: Option<f64>,
    from: Option<String>,
    #[serde(default)]
    interval_s: Option<f64>,
}

impl Told {
    fn lower(&self) -> SeenLink {
        // Estimates from samples promise too little to judge by.
        let counted = |flowing: &Flowing| {
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
        SeenLink { up: self.up, count }
    }
}

/// Asks until the controller stops.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut client: Option<(Telemetry, HttpClient)> = None;
    // As it is stored; read again by who comes to lead.
    let mut known: Option<HashMap<String, SeenLink>> = None;
    let mut told = String::new();
    while !shared.stopping.load(Ordering::Relaxed) {
        let settings = shared.settings();
        let round = settings.config.round.max(EVERY_MIN);
        let asked = match (&settings.config.telemetry, shared.leads.load(Ordering::Relaxed)) {
            (_, false) => {
                known = None;
                Ok(())
            }
            (None, true) if known.as_ref().is_some_and(HashMap::is_empty) => Ok(()),
            (None, true) => {
                known = Some(HashMap::new());
                let forgotten = shared.writer.apply(|cx| Box::pin(seen::forget(cx)));
                forgotten.await.map_err(|error| error.to_string())
            }
            (Some(telemetry), true) => ask(&shared, telemetry, &mut client, &mut known).await,
        };
        match asked {
            Ok(()) => told.clear(),
            Err(error) => {
                client = None;
                if error != told {
                    tracing::warn!("the collector tells nothing of links: {error}");
                }
                told = error;
            }
        }
        tokio::time::sleep(round).await;
    }
}

async fn ask(
    shared: &Shared,
    telemetry: &Telemetry,
    client: &mut Option<(Telemetry, HttpClient)>,
    known: &mut Option<HashMap<String, SeenLink>>,
) -> Result<(), String> {
    if client.as_ref().is_none_or(|(of, _)| of != telemetry) {
        *client = Some((telemetry.clone(), telemetry.client()?));
    }
    let Some((_, client)) = client else { return Ok(()) };
    let path = "/api/v1/telemetry/links";
    let (status, body) =
        client.request(Method::GET, path, Vec::new(), ANSWER_BYTES_MAX, WITHIN).await?;
    if !status.is_success() {
        return Err(format!("{} answers {status}", telemetry.url));
    }
    let answer: Answer = serde_json::from_slice(&body)
        .map_err(|error| format!("{} answers what is not understood: {error}", telemetry.url))?;
    let known = match known {
        Some(known) => known,
        None => {
            let stored = seen::all(&shared.database.pool).await;
            known.insert(stored.map_err(|error| error.to_string())?)
        }
    };
    let settings = shared.settings();
    let is_ours = |told: &&Told| settings.config.topology.link(&told.name).is_some();
    let all = answer.links.iter().filter(is_ours).map(|told| (told.name.clone(), told.lower()));
    let news: Vec<(String, SeenLink)> = all
        .filter(|(_, seen)| *seen != SeenLink::default())
        .filter(|(name, seen)| known.get(name) != Some(seen))
        .collect();
    if news.is_empty() {
        return Ok(());
    }
    known.extend(news.iter().cloned());
    let noted = shared.writer.apply(move |cx| {
        let news = news.clone();
        Box::pin(async move { seen::note(cx, &news).await })
    });
    noted.await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(json: &str) -> SeenLink {
        serde_json::from_str::<Told>(json).unwrap().lower()
    }

    #[test]
    fn what_is_counted_is_taken_and_what_is_sampled_is_not() {
        let seen = told(
            r#"{ "name": "x", "capacity_bps": 1, "up": false, "told_unix_seconds": 100.5,
                "a_to_b": { "bps": 8.9, "from": "counters", "interval_s": 20.0 },
                "b_to_a": { "bps": 7.0, "from": "samples", "interval_s": 10.0 } }"#,
        );
        let count = LinkCount { at_ms: 100_500, interval_ms: 20_000, bps: [Some(8), None] };
        assert_eq!(seen, SeenLink { up: Some(false), count: Some(count) });
        // A collector that does not know of states yet, and a link of which nothing is known.
        let seen = told(
            r#"{ "name": "x", "a_to_b": { "bps": null, "from": null }, "b_to_a": { "bps": null, "from": null } }"#,
        );
        assert_eq!(seen, SeenLink::default());
    }
}
