//! Configuration of the controller: the table `[controller]`.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_alto::Maps;
use penstock_control::batch::BatchLimits;
use penstock_control::class::{InvalidWindow, WeeklyWindow, WorkClass};
use penstock_control::lease::RATE_LEASE_DEFAULT;
use penstock_control::lost_hosts::{GONE_AFTER_DEFAULT, LOST_AFTER_DEFAULT, SilenceLimits};
use penstock_control::quota::ClientQuota;
use penstock_control::retention::REQUEST_RETENTION_DEFAULT;
use penstock_control::scheduler::PlannerRules;
use penstock_daemon::config::values::one_or_many;
use penstock_daemon::config::{ConfigError, ConfigFile};
use penstock_http::Url;
use penstock_http::tokens::{TokenNameError, TokenSource, check_token_name};
use penstock_scitags::Registry;
use penstock_scitags::registry::LookupError;
use penstock_scopes::{ApiScope, ApiScopeError, ScopePath};
use penstock_tokens::IssuerConfig;
use penstock_tokens::issuer::IssuerConfigError;
use penstock_topology::Topology;
use penstock_units::{BitRate, ByteCount, parse_duration};
use serde::Deserialize;
use toml::Spanned;

use crate::access::TokenScopes;
use crate::circuits::{CircuitProvider, LabCircuits};
use crate::fts::policy::{FtsPolicy, FtsTable};
use crate::issuers::{ClientIssuer, ScopeGrant};
use crate::telemetry::Telemetry;

/// Largest weight of a class.
const CLASS_WEIGHT_MAX: u32 = 1 << 20;

/// Most classes of work.
const CLASSES_MAX: usize = 1000;

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

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ControllerSection {
    database: Option<Spanned<String>>,
    topology: Option<Spanned<PathBuf>>,
    lease: Option<Spanned<String>>,
    lost_after: Option<Spanned<String>>,
    gone_after: Option<Spanned<String>>,
    round: Option<Spanned<String>>,
    keep: Option<Spanned<String>>,
    batch_files: Option<Spanned<usize>>,
    batch_bytes: Option<ByteCount>,
    transfers_per_pair: Option<Spanned<usize>>,
    streams: Option<u16>,
    usable: Option<Spanned<f64>>,
    requests_per_second: Option<u32>,
    circuits: Option<Spanned<CircuitsTable>>,
    telemetry: Option<Spanned<TelemetryTable>>,
    fts: Option<Spanned<FtsTable>>,
    #[serde(default)]
    site: Vec<Spanned<SiteTable>>,
    #[serde(default)]
    class: Vec<Spanned<ClassTable>>,
    #[serde(default)]
    token: Vec<Spanned<ControllerTokenTable>>,
    #[serde(default)]
    issuer: Vec<Spanned<ControllerIssuerTable>>,
    #[serde(default)]
    quota: Vec<Spanned<RequestQuotaTable>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestQuotaTable {
    client: String,
    requests: Option<u64>,
    bytes: Option<ByteCount>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CircuitsTable {
    provider: String,
    lab: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TelemetryTable {
    url: Url,
    token: Option<PathBuf>,
    fingerprint: Option<String>,
    authorities: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SiteTable {
    name: String,
    networks: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassTable {
    name: String,
    label: Option<String>,
    #[serde(default)]
    who: Vec<String>,
    weight: Option<u32>,
    floor: Option<BitRate>,
    mark: Option<BitRate>,
    cap: Option<BitRate>,
    tier: Option<u8>,
    #[serde(default)]
    windows: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ControllerTokenTable {
    name: String,
    sha256: Option<String>,
    file: Option<PathBuf>,
    scopes: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ControllerIssuerTable {
    name: String,
    url: String,
    #[serde(default, deserialize_with = "one_or_many")]
    audience: Option<Vec<String>>,
    jwks_file: Option<PathBuf>,
    authorities: Option<PathBuf>,
    grant: Vec<GrantTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantTable {
    subject: Option<String>,
    group: Option<String>,
    scopes: Vec<String>,
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
        parse(&ConfigFile::read(file)?, registry)
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

fn parse(document: &ConfigFile, registry: &Registry) -> Result<Config, ConfigError> {
    let table: ControllerSection = document.table("controller")?.unwrap_or_default();
    let Some(path) = table.topology else {
        let text = "[controller] needs topology = \"FILE\": the network with its sites and hosts";
        return Err(document.error(text));
    };
    let at = path.span().start;
    let path = document.beside(path.into_inner());
    let network = std::fs::read_to_string(&path)
        .map_err(|error| document.error_at(at, format!("{}: {error}", path.display())))?;
    let topology = Topology::read(&network).map_err(|faults| {
        let first = faults.to_string().lines().next().unwrap_or_default().to_owned();
        document.error_at(at, format!("{}: {first}: see penstock topology check", path.display()))
    })?;
    let mut config = Config::new(topology, Vec::new());
    if let Some(url) = table.database {
        let at = url.span().start;
        let url = url.into_inner();
        crate::repository::db::kind(&url)
            .map_err(|text| document.error_at(at, format!("database: {text}")))?;
        config.database = Some(url);
    }
    let time = |given: Option<Spanned<String>>, unless: Duration, least: Duration| {
        let Some(given) = given else { return Ok(unless) };
        let at = given.span().start;
        let time = parse_duration(given.get_ref()).map_err(|e| document.error_at(at, e))?;
        if time < least {
            return Err(document.error_at(
                at,
                format!("'{}' is too short: give at least {least:?}", given.get_ref()),
            ));
        }
        Ok(time)
    };
    let second = Duration::from_secs(1);
    let lease = time(table.lease, RATE_LEASE_DEFAULT, 2 * second)?;
    config.lease_seconds = u32::try_from(lease.as_secs()).unwrap_or(u32::MAX);
    config.lost_after = time(table.lost_after, config.lost_after, 2 * second)?;
    config.gone_after = time(table.gone_after, config.gone_after, 2 * second)?;
    if config.gone_after < config.lost_after {
        config.gone_after = config.lost_after;
    }
    config.round = time(table.round, config.round, Duration::from_millis(50))?;
    config.keep = time(table.keep, config.keep, 60 * second)?;
    if let Some(files) = table.batch_files {
        let most = penstock_control::orders::FILES_MAX;
        if !(1..=most).contains(files.get_ref()) {
            let text = format!("batch_files is from 1 to {most}");
            return Err(document.error_at(files.span().start, text));
        }
        config.batch.files = files.into_inner();
    }
    if let Some(bytes) = table.batch_bytes {
        config.batch.bytes = bytes.0.max(1);
    }
    if let Some(pairs) = table.transfers_per_pair {
        if !(1..=64).contains(pairs.get_ref()) {
            let text = "transfers_per_pair is from 1 to 64".to_owned();
            return Err(document.error_at(pairs.span().start, text));
        }
        config.rules.runs_per_pair = pairs.into_inner();
    }
    config.rules.streams = table.streams.filter(|streams| *streams > 0);
    if let Some(usable) = table.usable {
        if !(0.1..=1.0).contains(usable.get_ref()) {
            let text =
                "usable is the part of a link that file bytes may have, from 0.1 to 1".to_owned();
            return Err(document.error_at(usable.span().start, text));
        }
        config.rules.usable_permille = (usable.get_ref() * 1000.0).round() as u16;
    }
    config.rate_limit = table.requests_per_second.unwrap_or(0);
    if let Some(telemetry) = table.telemetry {
        let at = telemetry.span().start;
        let TelemetryTable { url, token, fingerprint, authorities } = telemetry.into_inner();
        let fingerprint = fingerprint.map(|text| text.parse()).transpose();
        let telemetry = Telemetry {
            url,
            token: token.map(|file| document.beside(file)),
            fingerprint: fingerprint.map_err(|error| {
                document.error_at(at, format!("[controller.telemetry] fingerprint: {error}"))
            })?,
            authorities: authorities.map(|file| document.beside(file)),
        };
        telemetry
            .check()
            .map_err(|text| document.error_at(at, format!("[controller.telemetry] {text}")))?;
        config.telemetry = Some(telemetry);
    }
    if let Some(circuits) = table.circuits {
        let at = circuits.span().start;
        let circuits = circuits.into_inner();
        config.circuits = match (circuits.provider.as_str(), circuits.lab) {
            ("lab", Some(lab)) => Some(Provider::Lab(document.beside(lab))),
            ("lab", None) => {
                let text = "[controller.circuits] needs lab = \"DIR\": the lab's directory";
                return Err(document.error_at(at, text));
            }
            (other, _) => {
                let text = format!("provider = \"{other}\" makes no circuits here: write \"lab\"");
                return Err(document.error_at(at, text));
            }
        };
    }
    let fts = match table.fts {
        Some(fts) => {
            let at = fts.span().start;
            let policy = FtsPolicy::of(fts.into_inner(), |path| document.beside(path));
            let policy =
                policy.map_err(|text| document.error_at(at, format!("[controller.fts] {text}")))?;
            Some((at, policy))
        }
        None => None,
    };
    for site in table.site {
        let at = site.span().start;
        let SiteTable { name, networks } = site.into_inner();
        let one = BTreeMap::from([(name.clone(), networks.clone())]);
        Maps::of(&config.topology, &one, |_| true).map_err(|error| document.error_at(at, error))?;
        config.networks.insert(name, networks);
    }
    if table.class.len() > CLASSES_MAX {
        return Err(document.error(format!("more than {CLASSES_MAX} [[controller.class]]")));
    }
    let mut names = HashSet::new();
    for class in table.class {
        let at = class.span().start;
        let class = lower_class(class.into_inner(), registry)
            .map_err(|text| document.error_at(at, text))?;
        if !names.insert(class.name.clone()) {
            return Err(document.error_at(
                at,
                format!("a second class is called {}: name it otherwise", class.name),
            ));
        }
        config.classes.push(class);
    }
    if config.classes.is_empty() {
        config.classes.push(WorkClass::new("default"));
    }
    if let Some((at, policy)) = fts {
        let is_host = |name: &str| {
            config.topology.hosts().any(|(_, node)| node.name == name && node.site.is_some())
        };
        policy
            .check(is_host, |name| config.class(name).is_some())
            .map_err(|text| document.error_at(at, format!("[controller.fts] {text}")))?;
        config.fts = Some(policy);
    }
    for token in table.token {
        let at = token.span().start;
        let ControllerTokenTable { name, sha256, file, scopes } = token.into_inner();
        check_token_name(&name).map_err(|text| document.error_at(at, text))?;
        let source = match (sha256, file) {
            (Some(hex), None) => TokenSource::hashed(name.clone(), &hex)
                .map_err(|text| document.error_at(at, text))?,
            (None, Some(path)) => {
                TokenSource::File { name: name.clone(), file: document.beside(path) }
            }
            _ => {
                let text = format!("token {name}: give sha256 or file, one of them");
                return Err(document.error_at(at, text));
            }
        };
        let scopes: Result<Vec<ApiScope>, ApiScopeError> =
            scopes.iter().map(|text| text.parse()).collect();
        let scopes =
            scopes.map_err(|text| document.error_at(at, format!("token {name}: {text}")))?;
        check_scopes(&config, &scopes)
            .map_err(|text| document.error_at(at, format!("token {name}: {text}")))?;
        if config.scopes.insert(name.clone(), scopes) {
            return Err(document
                .error_at(at, format!("a second token is called {name}: name it otherwise")));
        }
        config.tokens.push(source);
    }
    for issuer in table.issuer {
        let at = issuer.span().start;
        let issuer = lower_issuer(&config, issuer.into_inner(), document)
            .map_err(|fault| document.error_at(at, fault))?;
        config.issuers.push(issuer);
    }
    for quota in table.quota {
        let at = quota.span().start;
        let RequestQuotaTable { client, requests, bytes } = quota.into_inner();
        let quota = ClientQuota { client, requests, bytes: bytes.map(|bytes| bytes.0) };
        let quota = quota.checked(&config.quotas);
        config.quotas.push(quota.map_err(|fault| document.error_at(at, fault))?);
    }
    Ok(config)
}

/// An issuer whose tokens cannot be used.
#[derive(Debug, thiserror::Error)]
enum IssuerTableError {
    #[error(transparent)]
    Name(#[from] TokenNameError),
    #[error(transparent)]
    Issuer(#[from] IssuerConfigError),
    #[error("a second issuer is called {0} or has its url")]
    Twice(String),
    #[error("issuer {0}: grant: {1}")]
    Scope(String, ApiScopeError),
    #[error("issuer {0}: grant: {1}")]
    Object(String, UnknownScopeObject),
    #[error("issuer {0}: grant: scopes is empty")]
    NoScope(String),
}

fn lower_issuer(
    config: &Config,
    table: ControllerIssuerTable,
    document: &ConfigFile,
) -> Result<ClientIssuer, IssuerTableError> {
    let ControllerIssuerTable { name, url, audience, jwks_file, authorities, grant } = table;
    check_token_name(&name)?;
    let issuer = IssuerConfig {
        name: name.clone(),
        url,
        audiences: audience.unwrap_or_default(),
        base: ScopePath::root(),
        jwks_file: jwks_file.map(|path| document.beside(path)),
        authorities: authorities.map(|path| document.beside(path)),
        reads_api: false,
    };
    issuer.check()?;
    let is_same =
        |other: &ClientIssuer| other.issuer.name == issuer.name || other.issuer.url == issuer.url;
    if config.issuers.iter().any(is_same) {
        return Err(IssuerTableError::Twice(name));
    }
    let lower = |GrantTable { subject, group, scopes }| {
        let scopes: Result<Vec<ApiScope>, _> = scopes.iter().map(|text| text.parse()).collect();
        let scopes = scopes.map_err(|error| IssuerTableError::Scope(name.clone(), error))?;
        if scopes.is_empty() {
            return Err(IssuerTableError::NoScope(name.clone()));
        }
        check_scopes(config, &scopes)
            .map_err(|error| IssuerTableError::Object(name.clone(), error))?;
        Ok(ScopeGrant { subject, group, scopes })
    };
    let grants = grant.into_iter().map(lower).collect::<Result<_, _>>()?;
    Ok(ClientIssuer { issuer, grants })
}

/// A class that cannot be used.
#[derive(Debug, thiserror::Error)]
enum ClassTableError {
    #[error("'{0}' cannot name a class: use letters, digits and any of - . _")]
    Name(String),
    #[error("label: {0}")]
    Label(#[from] LookupError),
    #[error("class {0}: weight is from 1 to {CLASS_WEIGHT_MAX}")]
    Weight(String),
    #[error("class {0}: its cap is below its floor")]
    CapBelowFloor(String),
    #[error(transparent)]
    Window(#[from] InvalidWindow),
}

/// A scope for an object that does not exist.
#[derive(Debug, thiserror::Error)]
enum UnknownScopeObject {
    #[error("there is no class '{0}' to submit to: add [[controller.class]] name = \"{0}\"")]
    Class(String),
    #[error("the topology has no host '{0}'")]
    Host(String),
}

fn check_scopes(config: &Config, scopes: &[ApiScope]) -> Result<(), UnknownScopeObject> {
    for scope in scopes {
        match scope {
            ApiScope::Submit(Some(class)) if config.class(class).is_none() => {
                return Err(UnknownScopeObject::Class(class.clone()));
            }
            ApiScope::Agent(host) if !config.is_host(host) => {
                return Err(UnknownScopeObject::Host(host.clone()));
            }
            _ => {}
        }
    }
    Ok(())
}

fn lower_class(table: ClassTable, registry: &Registry) -> Result<WorkClass, ClassTableError> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if table.name.is_empty() || table.name.len() > 64 || !table.name.chars().all(good) {
        return Err(ClassTableError::Name(table.name));
    }
    let mut class = WorkClass::new(table.name);
    if let Some(label) = table.label {
        let tag = registry.find(&label)?;
        class.scitag = u16::try_from(tag.number()).ok();
        let (owner, activity) = label.split_once('/').unwrap_or((&label, ""));
        class.label = Some((owner.to_owned(), activity.to_owned()));
    }
    class.who = table.who;
    class.weight = table.weight.unwrap_or(1);
    if !(1..=CLASS_WEIGHT_MAX).contains(&class.weight) {
        return Err(ClassTableError::Weight(class.name));
    }
    class.floor_bps = table.floor.map_or(0, |rate| rate.0);
    class.mark_bps = table.mark.map(|rate| rate.0);
    class.cap_bps = table.cap.map(|rate| rate.0);
    if class.cap_bps.is_some_and(|cap| cap < class.floor_bps) {
        return Err(ClassTableError::CapBelowFloor(class.name));
    }
    class.tier = table.tier.unwrap_or(0);
    let windows: Result<_, _> =
        table.windows.iter().map(|text| text.parse::<WeeklyWindow>()).collect();
    class.windows = windows?;
    Ok(class)
}

#[cfg(test)]
mod tests;
