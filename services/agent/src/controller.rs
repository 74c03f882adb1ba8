//! The controller that gives this agent orders: `[agent.controller]`.
//!
//! The agent asks and the controller answers, so nothing but the agent's own connections are needed, and a node behind a
//! firewall takes part. Each second it posts what it is and what became of its orders, and makes what it is told come
//! true ([`crate::orders`]). A controller that is away costs nothing but news: transfers go on, after its lease not
//! faster than the safe rate.
//!
//! For: the configuration ([`Config`]), the link ([`Link`]) and how it is ([`Status`]).

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hyper::{Method, StatusCode};
use penstock_http::client::HttpClient;
use penstock_http::error_text;
use penstock_http::fetch::{Url, trusted_tls_config};
use penstock_mover::agent::{Agent, Limits};
use penstock_mover::handshake::random;
use penstock_mover::identity::{Fingerprint, tls_client_config};
use penstock_operations::orders::{Instructions, Order, OrderId, Report};
use rustls::ClientConfig;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::orders::{Counts, Orders};
use crate::tokens::check_token;

mod facts;

/// How often is reported.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// How soon after a report another one may follow, when something happened.
const REPORT_AGAIN: Duration = Duration::from_millis(200);

/// How often is looked at what orders do.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Pauses between attempts while the controller is away, each about twice as long as the one before.
const PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(10);

/// Time for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Longest answer: instructions, or an order.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Orders that are fetched between two reports.
const FETCHED_AT_ONCE: usize = 32;

/// The shortest lease that is taken for one.
const LEASE_MIN: Duration = Duration::from_secs(3);

/// Longest file of a token.
const TOKEN_FILE_BYTES_MAX: u64 = 8 << 10;

/// The rate of a transfer without a controller, where nobody says.
pub const SAFE_RATE_BPS: u64 = 1_000_000_000;

/// What the operator says of the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where it is.
    pub url: Url,
    /// File of the token that it knows this host by.
    pub token: PathBuf,
    /// Its certificate, where that is known.
    pub fingerprint: Option<Fingerprint>,
    /// File of the authorities that vouch for it; those of the system where neither is given.
    pub authorities: Option<PathBuf>,
    /// What it calls this host.
    pub host: String,
    /// The rate of each transfer once it was away for longer than its lease.
    pub safe_rate_bps: u64,
    /// Where other nodes reach the mover, best first; found out where there are none.
    pub addresses: Vec<SocketAddr>,
    /// Interfaces whose counters are told; all where none is named.
    pub interfaces: Vec<String>,
    /// Rate of the interfaces, where the operator says it.
    pub network_bps: Option<u64>,
    /// Rate at which this host reads.
    pub read_bps: Option<u64>,
    /// Rate at which it writes.
    pub write_bps: Option<u64>,
}

impl Config {
    /// Whether it makes sense.
    ///
    /// # Errors
    /// One line that names the key.
    pub fn check(&self) -> Result<(), String> {
        let good = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if self.host.is_empty() || self.host.len() > 128 || !self.host.chars().all(good) {
            return Err(format!(
                "agent.controller: host = \"{}\" is no name of a host in the controller's topology: use letters, digits and any of - . _",
                self.host.escape_debug()
            ));
        }
        let (name, _) = self.url.host_and_port();
        let is_loopback =
            name == "localhost" || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        if !self.url.is_encrypted() && !is_loopback {
            return Err(format!(
                "agent.controller: {} would carry tokens in the clear: write https://, with fingerprint or authorities",
                self.url
            ));
        }
        if self.url.path().contains('?') {
            return Err(format!("agent.controller: {}: an address without a question", self.url));
        }
        if self.safe_rate_bps == 0 {
            return Err("agent.controller: safe_rate is to be more than 0".to_owned());
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
        Ok(HttpClient::new(self.url.clone(), self.tls()?, read_token(&self.token)?))
    }
}

fn read_token(file: &Path) -> Result<String, String> {
    use std::os::unix::fs::MetadataExt;
    let shown = file.display();
    let failed = |error: std::io::Error| format!("{shown}: {}", penstock_sys::fs::describe(&error));
    let facts = std::fs::metadata(file).map_err(failed)?;
    if facts.mode() & 0o077 != 0 {
        let mode = facts.mode() & 0o7777;
        return Err(format!(
            "{shown}: holds a secret and others may read or change it (mode {mode:04o}): chmod 600 it"
        ));
    }
    if facts.len() > TOKEN_FILE_BYTES_MAX {
        return Err(format!("{shown}: is too long for a token"));
    }
    let token = std::fs::read_to_string(file).map_err(failed)?.trim().to_owned();
    check_token(&token).map_err(|error| format!("{shown}: the token {error}"))?;
    Ok(token)
}

/// How the link is.
#[derive(Debug, Clone)]
pub struct Status {
    /// Where the controller is.
    pub url: String,
    /// What it calls this host.
    pub host: String,
    /// Whether the last report was answered.
    pub connected: bool,
    /// Since when that is so.
    pub since: SystemTime,
    /// Why it is not.
    pub error: Option<String>,
    /// Whether its lease is over.
    pub lapsed: bool,
    /// Reports that were answered.
    pub reports: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Orders.
    pub orders: Counts,
}

/// The link to the controller.
#[derive(Debug)]
pub struct Link {
    config: Config,
    orders: Arc<Orders>,
    mover: Agent,
    fingerprint: Fingerprint,
    limits: Box<dyn LimitsNow>,
    start: String,
    state: Mutex<State>,
}

/// The agent's limits as they are now.
pub trait LimitsNow: Send + Sync + std::fmt::Debug {
    /// These.
    fn limits(&self) -> Limits;
}

#[derive(Debug)]
struct State {
    connected: bool,
    since: SystemTime,
    error: Option<String>,
    reports: u64,
    failures: u64,
    lease: Duration,
    heard: Instant,
    lapsed: bool,
}

impl Link {
    /// A link that nothing went over yet.
    #[must_use]
    pub fn new(
        config: Config,
        orders: Arc<Orders>,
        mover: Agent,
        fingerprint: Fingerprint,
        limits: Box<dyn LimitsNow>,
    ) -> Self {
        let start = random::<8>().iter().map(|byte| format!("{byte:02x}")).collect();
        let state = Mutex::new(State {
            connected: false,
            since: SystemTime::now(),
            error: None,
            reports: 0,
            failures: 0,
            lease: LEASE_MIN,
            heard: Instant::now(),
            lapsed: false,
        });
        Self { config, orders, mover, fingerprint, limits, start, state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it is.
    #[must_use]
    pub fn status(&self) -> Status {
        let orders = self.orders.counts();
        let state = self.lock();
        Status {
            url: self.config.url.to_string(),
            host: self.config.host.clone(),
            connected: state.connected,
            since: state.since,
            error: state.error.clone(),
            lapsed: state.lapsed,
            reports: state.reports,
            failures: state.failures,
            orders,
        }
    }

    /// Carries orders out, until it is told to stop; for a thread of its own.
    pub fn carry_out(&self, stop: &watch::Receiver<bool>) {
        loop {
            if *stop.borrow() || stop.has_changed().is_err() {
                self.orders.stop();
                // What is told last needs their end; the agent's own way down bounds it.
                let begun = Instant::now();
                while !self.orders.is_at_rest() && begun.elapsed() < Duration::from_secs(5) {
                    self.orders.advance();
                    std::thread::sleep(LOOK_EVERY / 4);
                }
                return;
            }
            let over = {
                let mut state = self.lock();
                let over = !state.lapsed && state.heard.elapsed() > state.lease;
                state.lapsed |= over;
                over
            };
            if over {
                self.orders.lapse();
            }
            self.orders.advance();
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Reports and obeys, until it is told to stop.
    pub async fn run(&self, mut stop: watch::Receiver<bool>) {
        let mut client: Option<HttpClient> = None;
        let mut pause = *PAUSE.start();
        let mut told = Instant::now();
        while !*stop.borrow() {
            let exchanged = tokio::select! {
                exchanged = self.exchange(&mut client) => exchanged,
                // What is under way would be taken for the answer to the last report.
                _ = stop.wait_for(|stop| *stop) => {
                    client = None;
                    break;
                }
            };
            let wait = match exchanged {
                Ok(()) => {
                    self.is_heard();
                    pause = *PAUSE.start();
                    None
                }
                Err(why) => {
                    self.is_away(why);
                    client = None;
                    let wait = jittered(pause);
                    pause = (pause * 2).min(*PAUSE.end());
                    Some(wait)
                }
            };
            loop {
                let since = told.elapsed();
                let due = match wait {
                    Some(wait) => since >= wait,
                    None => {
                        since >= REPORT_EVERY
                            || (since >= REPORT_AGAIN && self.orders.take_urgent())
                    }
                };
                if due || *stop.borrow() {
                    break;
                }
                tokio::select! {
                    () = tokio::time::sleep(LOOK_EVERY / 2) => {}
                    changed = stop.changed() => if changed.is_err() { return },
                }
            }
            told = Instant::now();
        }
        // Where transfers stood, for the controller's account; nothing depends on it.
        let begun = Instant::now();
        while !self.orders.is_at_rest() && begun.elapsed() < Duration::from_secs(5) {
            tokio::time::sleep(LOOK_EVERY / 2).await;
        }
        let report = self.report(self.orders.last_report());
        let connected = self.lock().connected;
        if let Some(mut client) = client.or_else(|| self.config.client().ok()).filter(|_| connected)
        {
            let path = format!("/api/v1/agents/{}/report", self.config.host);
            let json = serde_json::to_vec(&report).expect("plain data");
            let within = Duration::from_secs(1);
            let _ = client.request(Method::POST, &path, json, ANSWER_BYTES_MAX, within).await;
        }
    }

    fn report(&self, orders: Vec<penstock_operations::orders::OrderReport>) -> Report {
        let limits = self.limits.limits();
        Report {
            start: self.start.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            addresses: facts::addresses(&self.config.addresses, &self.mover.addresses()),
            fingerprint: self.fingerprint.0.iter().map(|byte| format!("{byte:02x}")).collect(),
            capacity: facts::capacity(&self.config, &limits),
            interfaces: facts::interfaces(&self.config.interfaces, &self.mover.addresses()),
            orders,
        }
    }

    /// One report, its answer, and the orders that are new in it.
    async fn exchange(&self, client: &mut Option<HttpClient>) -> Result<(), String> {
        let client = match client {
            Some(client) => client,
            None => client.insert(self.config.client()?),
        };
        let path = format!("/api/v1/agents/{}", self.config.host);
        let report = self.report(self.orders.report());
        let json = serde_json::to_vec(&report).expect("plain data");
        let to = format!("{path}/report");
        let answer = ask::<Instructions>(client, Method::POST, &to, json).await?;
        let (instructions, _) = answer.ok_or("it knows no such host (404)")?;
        let lease = Duration::from_secs(instructions.lease_seconds.into()).max(LEASE_MIN);
        let new = self.orders.obey(instructions);
        {
            let mut state = self.lock();
            (state.lease, state.heard, state.lapsed) = (lease, Instant::now(), false);
        }
        for order in new.into_iter().take(FETCHED_AT_ONCE) {
            self.fetch(client, &path, order).await?;
        }
        Ok(())
    }

    async fn fetch(&self, client: &mut HttpClient, path: &str, id: OrderId) -> Result<(), String> {
        let path = format!("{path}/orders/{id}");
        match ask::<Order>(client, Method::GET, &path, Vec::new()).await? {
            // It was withdrawn meanwhile.
            None => Ok(()),
            Some((order, _)) if order.order != id => {
                Err(format!("it gives order {} for order {id}", order.order))
            }
            Some((order, bytes)) => {
                self.orders.begin(order, bytes);
                Ok(())
            }
        }
    }

    fn is_heard(&self) {
        let mut state = self.lock();
        state.reports += 1;
        if !state.connected {
            tracing::info!("controller {}: connected as {}", self.config.url, self.config.host);
            (state.connected, state.since, state.error) = (true, SystemTime::now(), None);
        }
    }

    fn is_away(&self, why: String) {
        let mut state = self.lock();
        state.failures += 1;
        let is_first = state.failures == 1 && state.reports == 0;
        if state.connected || is_first {
            tracing::warn!("controller {}: away: {why}; transfers go on", self.config.url);
            (state.connected, state.since) = (false, SystemTime::now());
        }
        state.error = Some(why);
    }
}

/// What the controller answers, and how long that is; `None` where there is no such thing.
async fn ask<T: DeserializeOwned>(
    client: &mut HttpClient,
    method: Method,
    path: &str,
    json: Vec<u8>,
) -> Result<Option<(T, usize)>, String> {
    let (status, body) =
        client.request(method, path, json, ANSWER_BYTES_MAX, ANSWER_WITHIN).await?;
    match status {
        StatusCode::NOT_FOUND => return Ok(None),
        status if status.is_success() => {}
        status => {
            let text = error_text(&body).unwrap_or_default();
            let text: String = text.chars().filter(|c| !c.is_control()).take(300).collect();
            return Err(format!("it answers {status} {text}").trim_end().to_owned());
        }
    }
    let answer = serde_json::from_slice(&body)
        .map_err(|error| format!("its answer makes no sense: {error}: are both of one release?"))?;
    Ok(Some((answer, body.len())))
}

/// Between half of it and all of it, so that many agents do not come back at one moment.
fn jittered(pause: Duration) -> Duration {
    let [byte] = random::<1>();
    pause.mul_f64(0.5 + f64::from(byte) / 512.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_do_not_travel_in_the_clear_and_hosts_have_names() {
        let config = |url: &str, host: &str| Config {
            url: url.parse().unwrap(),
            token: "token".into(),
            fingerprint: None,
            authorities: None,
            host: host.to_owned(),
            safe_rate_bps: SAFE_RATE_BPS,
            addresses: Vec::new(),
            interfaces: Vec::new(),
            network_bps: None,
            read_bps: None,
            write_bps: None,
        };
        for (url, host, words) in [
            ("https://ctl.example.org:8621", "dtn1", None),
            ("http://127.0.0.1:8621", "dtn1.site-a", None),
            ("http://[::1]:8621/deep", "dtn1", None),
            ("http://ctl.example.org:8621", "dtn1", Some("in the clear")),
            ("https://ctl.example.org/?x=1", "dtn1", Some("without a question")),
            ("https://ctl.example.org", "", Some("no name of a host")),
            ("https://ctl.example.org", "../dtn1", Some("no name of a host")),
        ] {
            let checked = config(url, host).check();
            match words {
                None => checked.unwrap(),
                Some(words) => assert!(checked.unwrap_err().contains(words), "{url} {host}"),
            }
        }
    }

    #[test]
    fn pauses_differ_within_bounds() {
        let pauses: Vec<_> = (0..100).map(|_| jittered(Duration::from_secs(8))).collect();
        let bounds = Duration::from_secs(4)..=Duration::from_secs(8);
        assert!(pauses.iter().all(|pause| bounds.contains(pause)));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
