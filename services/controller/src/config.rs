//! Configuration of the controller: the table `[controller]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_control::batch::BatchLimits;
use penstock_control::class::WorkClass;
use penstock_control::lease::RATE_LEASE_DEFAULT;
use penstock_control::lost_hosts::{GONE_AFTER_DEFAULT, LOST_AFTER_DEFAULT, SilenceLimits};
use penstock_control::quota::ClientQuota;
use penstock_control::retention::REQUEST_RETENTION_DEFAULT;
use penstock_control::scheduler::PlannerRules;
use penstock_daemon::config::{ConfigError, ConfigFile};
use penstock_http::tokens::TokenSource;
use penstock_scitags::Registry;
use penstock_topology::Topology;

use crate::access::TokenScopes;
use crate::circuits::{CircuitProvider, LabCircuits};
use crate::fts::policy::FtsPolicy;
use crate::issuers::ClientIssuer;
use crate::telemetry::Telemetry;

mod file;

use file::ConfigReader;

/// Configuration of a controller.
#[derive(Debug, Clone)]
pub struct Config {
    /// URL of the database; none for SQLite in the state directory.
    pub database: Option<String>,
    /// Topology of the network.
    pub topology: Topology,
    /// IP prefixes of sites, for ALTO.
    pub networks: BTreeMap<String, Vec<String>>,
    /// Classes of work, with at least one element.
    pub classes: Vec<WorkClass>,
    /// Tokens of clients and nodes.
    pub tokens: Vec<TokenSource>,
    /// Scopes of tokens, by token name.
    pub scopes: TokenScopes,
    /// Issuers whose tokens clients may use.
    pub issuers: Vec<ClientIssuer>,
    /// Quotas of clients, of which the first that applies to one counts.
    pub quotas: Vec<ClientQuota>,
    /// Seconds for which nodes keep their rates without a response.
    pub lease_seconds: u32,
    /// Silence after which a node is lost.
    pub lost_after: Duration,
    /// Silence of both nodes of a withdrawn order after which a cancelled request ends without them.
    pub gone_after: Duration,
    /// Time between rounds without events.
    pub round: Duration,
    /// Largest size of a batch.
    pub batch: BatchLimits,
    /// Configuration of the planner.
    pub rules: PlannerRules,
    /// Retention of ended requests.
    pub keep: Duration,
    /// Most API requests per second and client; 0 for unlimited.
    pub rate_limit: u32,
    /// Provider of circuits; none if there are no circuits.
    pub circuits: Option<Provider>,
    /// Collector of link telemetry, if any.
    pub telemetry: Option<Telemetry>,
    /// Interface of FTS3; none if it is off.
    pub fts: Option<FtsPolicy>,
}

/// System that establishes circuits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provider {
    /// The lab in this directory.
    Lab(PathBuf),
}

impl Provider {
    pub(crate) fn start(self) -> Box<dyn CircuitProvider> {
        match self {
            Self::Lab(directory) => Box::new(LabCircuits::new(directory)),
        }
    }
}

/// True if the file has a table `[controller]`.
///
/// # Errors
/// If the file cannot be read.
pub fn is_configured(file: Option<&Path>) -> Result<bool, ConfigError> {
    let Some(file) = file else { return Ok(false) };
    // Parse errors are reported when the whole file is read.
    Ok(ConfigFile::read(file)?.has_table("controller"))
}

impl Config {
    /// Creates a configuration with defaults for everything else.
    #[must_use]
    pub fn new(topology: Topology, classes: Vec<WorkClass>) -> Self {
        Self {
            database: None,
            topology,
            networks: BTreeMap::new(),
            classes,
            tokens: Vec::new(),
            scopes: TokenScopes::default(),
            issuers: Vec::new(),
            quotas: Vec::new(),
            lease_seconds: RATE_LEASE_DEFAULT.as_secs() as u32,
            lost_after: LOST_AFTER_DEFAULT,
            gone_after: GONE_AFTER_DEFAULT,
            round: Duration::from_secs(1),
            batch: BatchLimits::default(),
            rules: PlannerRules::default(),
            keep: REQUEST_RETENTION_DEFAULT,
            rate_limit: 0,
            circuits: None,
            telemetry: None,
            fts: None,
        }
    }

    /// Loads the configuration file and the files that it names.
    ///
    /// # Errors
    /// With one line that names the file, the line and the fault.
    pub fn load(file: Option<&Path>, registry: &Registry) -> Result<Self, ConfigError> {
        let Some(file) = file else {
            let text = "the role controller needs a table [controller] with topology = \"FILE\"";
            let file = PathBuf::from("penstock.toml");
            return Err(ConfigError::File { file, source: text.into() });
        };
        ConfigReader { document: &ConfigFile::read(file)?, registry }.read()
    }

    /// The class of this name.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<&WorkClass> {
        self.classes.iter().find(|class| class.name == name)
    }

    /// Returns the ages of a host's last report at which its state changes.
    #[must_use]
    pub fn silence_limits(&self) -> SilenceLimits {
        SilenceLimits::new(self.lost_after, self.gone_after)
    }

    /// True if the network has a site of this name.
    #[must_use]
    pub fn is_site(&self, name: &str) -> bool {
        self.topology.sites.iter().any(|site| site.name == name)
    }

    /// True if the network has a host of this name.
    #[must_use]
    pub fn is_host(&self, name: &str) -> bool {
        self.topology.hosts().any(|(_, node)| node.name == name)
    }
}

#[cfg(test)]
mod tests;
