//! Connection to the controller that gives this agent orders: `[agent.controller]`.
//!
//! The agent polls, so that a node behind a firewall needs outgoing connections only. Each second it posts its
//! facts and the state of its orders, and executes the instructions in the answer ([`crate::orders`]). Without
//! the controller transfers continue; once the lease has expired, at the safe rate at most.
//!
//! For: the configuration ([`Config`]), the connection ([`ControllerLink`]) and its state ([`ControllerLinkStatus`]).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hyper::{Method, StatusCode};
use penstock_control::agent::{OrderCounts, ReportTimer};
use penstock_control::orders::{Instructions, Order, OrderId, Report};
use penstock_daemon::remote::{RemoteDaemon, RemoteDaemonError};
use penstock_http::{HttpClient, HttpError, HttpRequest, Url};
use penstock_identity::Fingerprint;
use penstock_mover::random;
use penstock_mover::{Agent, AgentLimits, TransportChoice};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::orders::OrderExecutor;

mod facts;
pub mod timing;

use timing::{ADVANCE_INTERVAL, ANSWER_TIMEOUT, FETCHES_PER_REPORT_MAX};

/// Longest answer: instructions, or an order.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Time limit of the report at the end of the agent.
const FINAL_REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Default of `safe_rate`: the limit of each transfer once the lease has expired.
pub const SAFE_RATE_BPS: u64 = 1_000_000_000;

/// The `[agent.controller]` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Base URL of the controller.
    pub url: Url,
    /// File with the token that identifies this host to the controller.
    pub token: PathBuf,
    /// Certificate of the controller, if pinned.
    pub fingerprint: Option<Fingerprint>,
    /// PEM file of trusted CAs; those of the system where neither this nor `fingerprint` is given.
    pub authorities: Option<PathBuf>,
    /// Name of this host in the controller's topology.
    pub host: String,
    /// Limit of each transfer once the lease has expired.
    pub safe_rate_bps: u64,
    /// Transport of the data of orders that name none: TCP, or RDMA where both ends can and the order is not encrypted.
    pub transport: TransportChoice,
    /// Addresses at which other nodes reach the mover, best first; empty to detect them.
    pub addresses: Vec<SocketAddr>,
    /// Interfaces whose counters are reported; empty for all.
    pub interfaces: Vec<String>,
    /// Capacity of the interfaces, if configured.
    pub network_bps: Option<u64>,
    /// Rate at which storage reads, if configured.
    pub read_bps: Option<u64>,
    /// Rate at which storage writes, if configured.
    pub write_bps: Option<u64>,
}

impl Config {
    /// Checks URL, host name and intervals.
    ///
    /// # Errors
    /// One line that names the key.
    pub fn check(&self) -> Result<(), ControllerLinkConfigError> {
        let good = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if self.host.is_empty() || self.host.len() > 128 || !self.host.chars().all(good) {
            return Err(ControllerLinkConfigError::Host(self.host.clone()));
        }
        if !self.url.is_encrypted() && !self.url.is_loopback() {
            return Err(ControllerLinkConfigError::Plaintext(self.url.clone()));
        }
        if self.url.path().contains('?') {
            return Err(ControllerLinkConfigError::Query(self.url.clone()));
        }
        if self.safe_rate_bps == 0 {
            return Err(ControllerLinkConfigError::SafeRate);
        }
        Ok(())
    }

    fn client(&self) -> Result<HttpClient, RemoteDaemonError> {
        let controller = RemoteDaemon {
            url: &self.url,
            token: Some(&self.token),
            fingerprint: self.fingerprint,
            authorities: self.authorities.as_deref(),
        };
        controller.client()
    }
}

/// A value of `[agent.controller]` that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControllerLinkConfigError {
    /// The name of this host has other characters than names of a topology.
    #[error(
        "agent.controller: host = \"{}\" is no name of a host in the controller's topology: use letters, digits and any of - . _",
        .0.escape_debug()
    )]
    Host(String),
    /// The URL is not encrypted and leaves this machine.
    #[error(
        "agent.controller: {0} would carry tokens in the clear: write https://, with fingerprint or authorities"
    )]
    Plaintext(Url),
    /// The URL has a query.
    #[error("agent.controller: {0}: a URL without a query")]
    Query(Url),
    /// The safe rate is zero.
    #[error("agent.controller: safe_rate must be above 0")]
    SafeRate,
}

/// An exchange with the controller that failed, in one line.
#[derive(Debug, thiserror::Error)]
enum ControllerExchangeError {
    #[error(transparent)]
    RemoteDaemon(#[from] RemoteDaemonError),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("the controller does not know this host (404): add it to the topology")]
    UnknownHost,
    #[error("it answers {0}")]
    Refused(String),
    #[error("cannot parse its answer: {0}: do both run the same release?")]
    Malformed(#[from] serde_json::Error),
    #[error("it returned order {returned} for order {requested}")]
    OtherOrder { returned: OrderId, requested: OrderId },
}

/// State of the connection.
#[derive(Debug, Clone)]
pub struct ControllerLinkStatus {
    /// URL of the controller.
    pub url: String,
    /// Name of this host at the controller.
    pub host: String,
    /// True if the controller answered the last report.
    pub connected: bool,
    /// Time of the last change of `connected`.
    pub since: SystemTime,
    /// Reason why the controller is away; none while connected.
    pub error: Option<String>,
    /// True once the lease has expired.
    pub lease_expired: bool,
    /// Reports that the controller answered.
    pub reports: u64,
    /// Attempts to report that failed.
    pub failures: u64,
    /// Counts of the orders by phase.
    pub orders: OrderCounts,
}

/// The connection to the controller.
#[derive(Debug)]
pub struct ControllerLink {
    config: Config,
    orders: Arc<OrderExecutor>,
    mover: Agent,
    limits: Box<dyn LimitsSource>,
    start: String,
    state: Mutex<ControllerLinkState>,
}

/// Source of the agent's present limits, which a reload may change.
pub trait LimitsSource: Send + Sync + std::fmt::Debug {
    /// Returns the present limits.
    fn limits(&self) -> AgentLimits;
}

#[derive(Debug)]
struct ControllerLinkState {
    connected: bool,
    since: SystemTime,
    error: Option<String>,
    reports: u64,
    failures: u64,
}

impl ControllerLink {
    /// Creates an unconnected link.
    #[must_use]
    pub fn new(
        config: Config,
        orders: Arc<OrderExecutor>,
        mover: Agent,
        limits: Box<dyn LimitsSource>,
    ) -> Self {
        let start = random::<8>().iter().map(|byte| format!("{byte:02x}")).collect();
        let state = Mutex::new(ControllerLinkState {
            connected: false,
            since: SystemTime::now(),
            error: None,
            reports: 0,
            failures: 0,
        });
        Self { config, orders, mover, limits, start, state }
    }

    fn lock(&self) -> MutexGuard<'_, ControllerLinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the present state.
    #[must_use]
    pub fn status(&self) -> ControllerLinkStatus {
        let orders = self.orders.counts();
        let lease_expired = self.orders.is_lease_expired();
        let state = self.lock();
        ControllerLinkStatus {
            url: self.config.url.to_string(),
            host: self.config.host.clone(),
            connected: state.connected,
            since: state.since,
            error: state.error.clone(),
            lease_expired,
            reports: state.reports,
            failures: state.failures,
            orders,
        }
    }

    /// Executes orders until `stop`; blocks its thread.
    pub fn execute_orders(&self, stop: &watch::Receiver<bool>) {
        loop {
            if *stop.borrow() || stop.has_changed().is_err() {
                self.orders.stop(Instant::now());
                // The final report needs the end of each order; the agent's shutdown bounds the wait.
                let begun = Instant::now();
                while !self.orders.is_at_rest() && begun.elapsed() < Duration::from_secs(5) {
                    self.orders.advance(Instant::now());
                    std::thread::sleep(ADVANCE_INTERVAL / 4);
                }
                return;
            }
            self.orders.expire_lease(Instant::now());
            self.orders.advance(Instant::now());
            std::thread::sleep(ADVANCE_INTERVAL);
        }
    }

    /// Reports and applies instructions until `stop`.
    pub async fn run(&self, mut stop: watch::Receiver<bool>) {
        let mut client: Option<HttpClient> = None;
        let mut timer = ReportTimer::new(Instant::now());
        while !*stop.borrow() {
            let exchanged = tokio::select! {
                exchanged = self.exchange(&mut client) => exchanged,
                // The answer under way would be read as that of the final report.
                _ = stop.wait_for(|stop| *stop) => {
                    client = None;
                    break;
                }
            };
            match exchanged {
                Ok(()) => {
                    self.note_answer();
                    timer.succeed();
                }
                Err(why) => {
                    self.note_failure(why.to_string());
                    client = None;
                    let [byte] = random::<1>();
                    timer.fail(byte);
                }
            }
            loop {
                let due = timer.is_due(Instant::now(), || self.orders.take_urgent());
                if due || *stop.borrow() {
                    break;
                }
                tokio::select! {
                    () = tokio::time::sleep(ADVANCE_INTERVAL / 2) => {}
                    changed = stop.changed() => if changed.is_err() { return },
                }
            }
            timer.begin(Instant::now());
        }
        // The final state of transfers; best effort.
        let begun = Instant::now();
        while !self.orders.is_at_rest() && begun.elapsed() < Duration::from_secs(5) {
            tokio::time::sleep(ADVANCE_INTERVAL / 2).await;
        }
        let report = self.report(self.orders.last_report());
        let connected = self.lock().connected;
        if let Some(mut client) = client.or_else(|| self.config.client().ok()).filter(|_| connected)
        {
            let path = format!("/api/v1/agents/{}/report", self.config.host);
            let json = serde_json::to_vec(&report).expect("plain data");
            let request = HttpRequest::new(Method::POST, path).json(json);
            let _ = client.send(request.timeout(FINAL_REPORT_TIMEOUT)).await;
        }
    }

    fn report(&self, orders: Vec<penstock_control::orders::OrderReport>) -> Report {
        let limits = self.limits.limits();
        let fingerprint = self.mover.fingerprint();
        Report {
            start: self.start.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            addresses: facts::addresses(&self.config.addresses, &self.mover.addresses()),
            fingerprint: fingerprint.0.iter().map(|byte| format!("{byte:02x}")).collect(),
            capacity: facts::capacity(&self.config, &limits),
            interfaces: facts::interfaces(&self.config.interfaces, &self.mover.addresses()),
            orders,
        }
    }

    /// Sends a report, applies the answer, and fetches the new orders in it.
    async fn exchange(
        &self,
        client: &mut Option<HttpClient>,
    ) -> Result<(), ControllerExchangeError> {
        let client = match client {
            Some(client) => client,
            None => client.insert(self.config.client()?),
        };
        let path = format!("/api/v1/agents/{}", self.config.host);
        let report = self.report(self.orders.report());
        let json = serde_json::to_vec(&report).expect("plain data");
        let to = format!("{path}/report");
        let request = HttpRequest::new(Method::POST, to).json(json);
        let answer = ask::<Instructions>(client, request).await?;
        let (instructions, _) = answer.ok_or(ControllerExchangeError::UnknownHost)?;
        let new = self.orders.apply_instructions(instructions, Instant::now());
        for order in new.into_iter().take(FETCHES_PER_REPORT_MAX) {
            self.fetch(client, &path, order).await?;
        }
        Ok(())
    }

    async fn fetch(
        &self,
        client: &mut HttpClient,
        path: &str,
        id: OrderId,
    ) -> Result<(), ControllerExchangeError> {
        let path = format!("{path}/orders/{id}");
        match ask::<Order>(client, HttpRequest::new(Method::GET, path)).await? {
            // Withdrawn meanwhile.
            None => Ok(()),
            Some((order, _)) if order.order != id => {
                Err(ControllerExchangeError::OtherOrder { returned: order.order, requested: id })
            }
            Some((order, bytes)) => {
                self.orders.begin(order, bytes, Instant::now());
                Ok(())
            }
        }
    }

    fn note_answer(&self) {
        let mut state = self.lock();
        state.reports += 1;
        if !state.connected {
            tracing::info!("controller {}: connected as {}", self.config.url, self.config.host);
            (state.connected, state.since, state.error) = (true, SystemTime::now(), None);
        }
    }

    fn note_failure(&self, why: String) {
        let mut state = self.lock();
        state.failures += 1;
        let is_first = state.failures == 1 && state.reports == 0;
        if state.connected || is_first {
            tracing::warn!("controller {}: away: {why}; transfers continue", self.config.url);
            (state.connected, state.since) = (false, SystemTime::now());
        }
        state.error = Some(why);
    }
}

/// Sends a request; returns the parsed answer with its length in bytes, or `None` for 404.
async fn ask<T: DeserializeOwned>(
    client: &mut HttpClient,
    request: HttpRequest,
) -> Result<Option<(T, usize)>, ControllerExchangeError> {
    let request = request.bytes_max(ANSWER_BYTES_MAX).timeout(ANSWER_TIMEOUT);
    let response = client.send(request).await?;
    match response.status {
        StatusCode::NOT_FOUND => return Ok(None),
        status if status.is_success() => {}
        status => {
            let text = response.problem().unwrap_or_default();
            let text: String = text.chars().filter(|c| !c.is_control()).take(300).collect();
            let answer = format!("{status} {text}").trim_end().to_owned();
            return Err(ControllerExchangeError::Refused(answer));
        }
    }
    let answer = serde_json::from_slice(&response.body)?;
    Ok(Some((answer, response.body.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_refuses_plaintext_and_bad_hosts() {
        let config = |url: &str, host: &str| Config {
            url: url.parse().unwrap(),
            token: "token".into(),
            fingerprint: None,
            authorities: None,
            host: host.to_owned(),
            safe_rate_bps: SAFE_RATE_BPS,
            transport: TransportChoice::Tcp,
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
            ("https://ctl.example.org/?x=1", "dtn1", Some("without a query")),
            ("https://ctl.example.org", "", Some("no name of a host")),
            ("https://ctl.example.org", "../dtn1", Some("no name of a host")),
        ] {
            let checked = config(url, host).check();
            match words {
                None => checked.unwrap(),
                Some(words) => {
                    assert!(checked.unwrap_err().to_string().contains(words), "{url} {host}")
                }
            }
        }
    }
}
