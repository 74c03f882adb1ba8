//! The agent's HTTP API: its transfers, their control, and metrics.
//!
//! | path | method | result |
//! |---|---|---|
//! | `/api/v1/agent` | GET | version, addresses, fingerprint, exports, limits |
//! | `/api/v1/transfers` | GET, POST | transfers that run or ended recently; submit a copy |
//! | `/api/v1/transfers/events` | GET | events of submitted transfers, as they happen |
//! | `/api/v1/transfers/{id}` | GET, PATCH, DELETE | one transfer: read, change while running, cancel |
//! | `/api/v1/transfers/{id}/tuning` | GET | decisions about its streams, and its rate over time |
//! | `/api/v1/disks` | GET | disks that the agent exports |
//! | `/api/v1/disks/{name}` | GET, PUT, DELETE | one disk: read, export, end its export |
//! | `/api/v1/disks/{name}/hosts/{host_nqn}` | PUT, DELETE | admit a host, remove it |
//! | `/api/v1/disks/{name}/connection` | POST | address, transport and secret of a disk, for one of its hosts |
//!
//! [`penstock_daemon::api`] lists the paths that every daemon has, checks access and defines the status codes.
//!
//! Paths of transfers also take the tokens of clients who move files: each sees, changes and cancels its own.
//!
//! Not for: moving files, which use the mover's port, nor for many clients.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use axum::Router;
use axum::routing::{get, post, put};
use penstock_http::server::ConnectionTracker;
use penstock_http::{MetricWriter, ServiceRole};
use penstock_identity::Identity;
use penstock_mover::{
    Agent, AgentCounters, AgentLimits, ListedTransfer, TuningChangeError, TuningMode, TuningReport,
    UnknownTransfer,
};
use penstock_protocol::control::Settings;
use utoipa::openapi::OpenApi;

use crate::authorizer::Authorizer;
use crate::controller::ControllerLink;
use crate::disks::ExportedDisks;
use crate::running_forecast::RateForecaster;
use crate::submitted::SubmittedTransfers;

pub mod api;
mod client;
pub mod disks;
mod metrics;
mod submission;
pub mod tuning;

/// A change of a transfer that is not possible now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferControlError {
    /// It has ended, or never was.
    #[error(transparent)]
    Unknown(#[from] UnknownTransfer),
    /// Its tuner cannot be switched.
    #[error(transparent)]
    Tuning(#[from] TuningChangeError),
    /// The node has no mover.
    #[error("there is no transfer {0}: this node does not play the role agent")]
    NoAgent(u64),
}

/// The operations of the mover that the API uses.
pub trait MoverControl: Send + Sync + std::fmt::Debug + 'static {
    /// Transfers that run or ended recently.
    fn transfers(&self) -> Vec<ListedTransfer>;
    /// Changes a running transfer.
    ///
    /// # Errors
    /// When it has ended, or does not support the change.
    fn set(&self, id: u64, settings: Settings) -> Result<(), TransferControlError>;
    /// Cancels a running transfer.
    ///
    /// # Errors
    /// When it has ended.
    fn cancel(&self, id: u64, reason: &str) -> Result<(), TransferControlError>;
    /// Lets the tuner of a running transfer do at most this.
    ///
    /// # Errors
    /// When it has ended, or its streams are not tuned.
    fn set_tuning(&self, id: u64, mode: TuningMode) -> Result<(), TransferControlError>;
    /// Decisions about the streams of a transfer that runs or ended recently.
    fn tuning(&self, id: u64) -> Option<TuningReport>;
    /// Counters since the start.
    fn counters(&self) -> AgentCounters;
}

impl MoverControl for Agent {
    fn transfers(&self) -> Vec<ListedTransfer> {
        self.transfers()
    }
    fn set(&self, id: u64, settings: Settings) -> Result<(), TransferControlError> {
        Ok(self.set(id, settings)?)
    }
    fn cancel(&self, id: u64, reason: &str) -> Result<(), TransferControlError> {
        Ok(self.cancel(id, reason)?)
    }
    fn set_tuning(&self, id: u64, mode: TuningMode) -> Result<(), TransferControlError> {
        Ok(self.set_tuning(id, mode)?)
    }
    fn tuning(&self, id: u64) -> Option<TuningReport> {
        self.tuning(id)
    }
    fn counters(&self) -> AgentCounters {
        self.counters()
    }
}

/// Stands in on a node that does not play the role agent.
#[derive(Debug)]
pub struct NoMover;

impl MoverControl for NoMover {
    fn transfers(&self) -> Vec<ListedTransfer> {
        Vec::new()
    }
    fn set(&self, id: u64, _: Settings) -> Result<(), TransferControlError> {
        Err(TransferControlError::NoAgent(id))
    }
    fn cancel(&self, id: u64, _: &str) -> Result<(), TransferControlError> {
        self.set(id, Settings::default())
    }
    fn set_tuning(&self, id: u64, _: TuningMode) -> Result<(), TransferControlError> {
        self.set(id, Settings::default())
    }
    fn tuning(&self, _: u64) -> Option<TuningReport> {
        None
    }
    fn counters(&self) -> AgentCounters {
        AgentCounters::default()
    }
}

/// State behind the API.
#[derive(Debug, Clone)]
pub struct AgentApi {
    /// Source and control of the transfers.
    pub mover: Arc<dyn MoverControl>,
    /// Copies that clients submitted; `None` without a mover.
    pub submitted: Option<Arc<SubmittedTransfers>>,
    /// Authenticates tokens; holds the exports.
    pub authorizer: Arc<Authorizer>,
    /// The state directory, which may hold the scitags registry.
    pub state: PathBuf,
    /// Forecasts of running transfers.
    pub forecaster: Arc<RateForecaster>,
    /// Addresses on which the mover listens.
    pub listen: Vec<SocketAddr>,
    /// Addresses on which this API listens.
    pub http: Vec<SocketAddr>,
    /// URLs of the gateway.
    pub webdav: Vec<String>,
    /// Disks of the configuration and of clients.
    pub disks: Arc<Mutex<ExportedDisks>>,
    /// The agent's certificate, which a reload may renew.
    pub identity: Arc<Identity>,
    /// Limits on all clients together, which a reload may change.
    pub limits: Arc<Mutex<AgentLimits>>,
    /// Connection to the controller, if configured.
    pub controller: Option<Arc<ControllerLink>>,
    /// Start time of the agent.
    pub started: SystemTime,
    /// Counters of HTTP connections and answers.
    pub traffic: Arc<ConnectionTracker>,
}

impl ServiceRole for AgentApi {
    fn router(&self) -> Router {
        Router::new()
            .route("/api/v1/agent", get(api::agent))
            .route("/api/v1/transfers", get(api::transfers).post(submission::submit))
            .route("/api/v1/transfers/events", get(submission::follow))
            .route(
                "/api/v1/transfers/{id}",
                get(api::transfer).patch(api::change).delete(api::cancel),
            )
            .route("/api/v1/transfers/{id}/tuning", get(tuning::tuning))
            .route("/api/v1/disks", get(disks::list))
            .route(
                "/api/v1/disks/{name}",
                get(disks::disk).put(disks::export).delete(disks::delete),
            )
            .route(
                "/api/v1/disks/{name}/hosts/{host_nqn}",
                put(disks::admit_host).delete(disks::remove_host),
            )
            .route("/api/v1/disks/{name}/connection", post(disks::connection))
            .with_state(Arc::new(self.clone()))
    }

    fn document(&self) -> OpenApi {
        api::document()
    }

    fn admits_mover_tokens(&self, path: &str) -> bool {
        let rest = ["/api/v1/transfers", "/api/v1/disks"]
            .iter()
            .find_map(|prefix| path.strip_prefix(prefix));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    fn metrics(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
        metrics::write(self, writer)
    }

    /// A first answer suffices: without its controller an agent still serves its own clients.
    fn unready_reason(&self) -> Option<String> {
        let status = self.controller.as_ref()?.status();
        let error = status.error.as_deref().unwrap_or("the first report is under way");
        (status.reports == 0)
            .then(|| format!("controller {}: no answer since the start: {error}", status.url))
    }
}
