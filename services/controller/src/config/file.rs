//! Table `[controller]` of the configuration file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use penstock_alto::Maps;
use penstock_control::class::{InvalidWindow, WeeklyWindow, WorkClass};
use penstock_control::lease::RATE_LEASE_DEFAULT;
use penstock_control::quota::ClientQuota;
use penstock_daemon::config::values::one_or_many;
use penstock_daemon::config::{ConfigError, ConfigFault, ConfigFile};
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

use super::{Config, Provider};
use crate::fts::policy::{FtsPolicy, FtsTable};
use crate::issuers::{ClientIssuer, ScopeGrant};
use crate::telemetry::Telemetry;

/// Largest weight of a class.
const CLASS_WEIGHT_MAX: u32 = 1 << 20;

/// Most classes of work.
const CLASSES_MAX: usize = 1000;

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

/// Reader of one configuration file.
pub(super) struct ConfigReader<'a> {
    pub(super) document: &'a ConfigFile,
    /// Registry of the labels that classes name.
    pub(super) registry: &'a Registry,
}

impl ConfigReader<'_> {
    /// Reads `[controller]` and the files that it names.
    pub(super) fn read(&self) -> Result<Config, ConfigError> {
        let mut table: ControllerSection = self.document.table("controller")?.unwrap_or_default();
        let mut config = Config::new(self.topology(table.topology.take())?, Vec::new());
        config.database = table.database.take().map(|url| self.database(url)).transpose()?;
        self.set_times(&mut config, &table)?;
        self.set_limits(&mut config, &table)?;
        config.telemetry = table.telemetry.take().map(|one| self.telemetry(one)).transpose()?;
        config.circuits = table.circuits.take().map(|one| self.circuits(one)).transpose()?;
        self.add_networks(&mut config, table.site)?;
        self.add_classes(&mut config, table.class)?;
        config.fts = table.fts.take().map(|one| self.fts(&config, one)).transpose()?;
        for token in table.token {
            self.add_token(&mut config, token)?;
        }
        for issuer in table.issuer {
            let at = issuer.span().start;
            let issuer = lower_issuer(&config, issuer.into_inner(), self.document);
            config.issuers.push(issuer.map_err(|fault| self.fault(at, fault))?);
        }
        for quota in table.quota {
            let at = quota.span().start;
            let RequestQuotaTable { client, requests, bytes } = quota.into_inner();
            let quota = ClientQuota { client, requests, bytes: bytes.map(|bytes| bytes.0) };
            let quota = quota.checked(&config.quotas);
            config.quotas.push(quota.map_err(|fault| self.fault(at, fault))?);
        }
        Ok(config)
    }

    fn fault(&self, at: usize, fault: impl Into<ConfigFault>) -> ConfigError {
        self.document.error_at(at, fault)
    }

    fn topology(&self, path: Option<Spanned<PathBuf>>) -> Result<Topology, ConfigError> {
        let Some(path) = path else {
            let text =
                "[controller] needs topology = \"FILE\": the network with its sites and hosts";
            return Err(self.document.error(text));
        };
        let at = path.span().start;
        let path = self.document.beside(path.into_inner());
        let shown = path.display();
        let network = std::fs::read_to_string(&path)
            .map_err(|error| self.fault(at, format!("{shown}: {error}")))?;
        Topology::read(&network).map_err(|faults| {
            let first = faults.to_string().lines().next().unwrap_or_default().to_owned();
            self.fault(at, format!("{shown}: {first}: see penstock topology check"))
        })
    }

    fn database(&self, url: Spanned<String>) -> Result<String, ConfigError> {
        let at = url.span().start;
        let url = url.into_inner();
        crate::repository::db::kind(&url)
            .map_err(|text| self.fault(at, format!("database: {text}")))?;
        Ok(url)
    }

    fn set_times(&self, config: &mut Config, table: &ControllerSection) -> Result<(), ConfigError> {
        let second = Duration::from_secs(1);
        let lease = self.time(table.lease.as_ref(), RATE_LEASE_DEFAULT, 2 * second)?;
        config.lease_seconds = u32::try_from(lease.as_secs()).unwrap_or(u32::MAX);
        config.lost_after = self.time(table.lost_after.as_ref(), config.lost_after, 2 * second)?;
        config.gone_after = self.time(table.gone_after.as_ref(), config.gone_after, 2 * second)?;
        config.gone_after = config.gone_after.max(config.lost_after);
        config.round = self.time(table.round.as_ref(), config.round, Duration::from_millis(50))?;
        config.keep = self.time(table.keep.as_ref(), config.keep, 60 * second)?;
        Ok(())
    }

    fn time(
        &self,
        given: Option<&Spanned<String>>,
        unless: Duration,
        least: Duration,
    ) -> Result<Duration, ConfigError> {
        let Some(given) = given else { return Ok(unless) };
        let (at, text) = (given.span().start, given.get_ref());
        let time = parse_duration(text).map_err(|error| self.fault(at, error))?;
        if time < least {
            let fault = format!("'{text}' is too short: give at least {least:?}");
            return Err(self.fault(at, fault));
        }
        Ok(time)
    }

    fn set_limits(
        &self,
        config: &mut Config,
        table: &ControllerSection,
    ) -> Result<(), ConfigError> {
        if let Some(files) = &table.batch_files {
            let most = penstock_control::orders::FILES_MAX;
            if !(1..=most).contains(files.get_ref()) {
                let text = format!("batch_files is from 1 to {most}");
                return Err(self.fault(files.span().start, text));
            }
            config.batch.files = *files.get_ref();
        }
        if let Some(bytes) = &table.batch_bytes {
            config.batch.bytes = bytes.0.max(1);
        }
        if let Some(pairs) = &table.transfers_per_pair {
            if !(1..=64).contains(pairs.get_ref()) {
                return Err(self.fault(pairs.span().start, "transfers_per_pair is from 1 to 64"));
            }
            config.rules.runs_per_pair = *pairs.get_ref();
        }
        config.rules.streams = table.streams.filter(|streams| *streams > 0);
        if let Some(usable) = &table.usable {
            if !(0.1..=1.0).contains(usable.get_ref()) {
                let text = "usable is the part of a link that file bytes may have, from 0.1 to 1";
                return Err(self.fault(usable.span().start, text));
            }
            config.rules.usable_permille = (usable.get_ref() * 1000.0).round() as u16;
        }
        config.rate_limit = table.requests_per_second.unwrap_or(0);
        Ok(())
    }

    fn telemetry(&self, table: Spanned<TelemetryTable>) -> Result<Telemetry, ConfigError> {
        let at = table.span().start;
        let fault = |text: String| self.fault(at, format!("[controller.telemetry] {text}"));
        let TelemetryTable { url, token, fingerprint, authorities } = table.into_inner();
        let fingerprint = fingerprint.map(|text| text.parse()).transpose();
        let telemetry = Telemetry {
            url,
            token: token.map(|file| self.document.beside(file)),
            fingerprint: fingerprint.map_err(|error| fault(format!("fingerprint: {error}")))?,
            authorities: authorities.map(|file| self.document.beside(file)),
        };
        telemetry.check().map_err(|error| fault(error.to_string()))?;
        Ok(telemetry)
    }

    fn circuits(&self, table: Spanned<CircuitsTable>) -> Result<Provider, ConfigError> {
        let at = table.span().start;
        let CircuitsTable { provider, lab } = table.into_inner();
        match (provider.as_str(), lab) {
            ("lab", Some(lab)) => Ok(Provider::Lab(self.document.beside(lab))),
            ("lab", None) => {
                let text = "[controller.circuits] needs lab = \"DIR\": the lab's directory";
                Err(self.fault(at, text))
            }
            (other, _) => {
                let text = format!("provider = \"{other}\" makes no circuits here: write \"lab\"");
                Err(self.fault(at, text))
            }
        }
    }

    fn add_networks(
        &self,
        config: &mut Config,
        sites: Vec<Spanned<SiteTable>>,
    ) -> Result<(), ConfigError> {
        for site in sites {
            let at = site.span().start;
            let SiteTable { name, networks } = site.into_inner();
            let one = BTreeMap::from([(name.clone(), networks.clone())]);
            Maps::of(&config.topology, &one, |_| true).map_err(|error| self.fault(at, error))?;
            config.networks.insert(name, networks);
        }
        Ok(())
    }

    fn add_classes(
        &self,
        config: &mut Config,
        classes: Vec<Spanned<ClassTable>>,
    ) -> Result<(), ConfigError> {
        if classes.len() > CLASSES_MAX {
            let text = format!("more than {CLASSES_MAX} [[controller.class]]");
            return Err(self.document.error(text));
        }
        for class in classes {
            let at = class.span().start;
            let class = lower_class(class.into_inner(), self.registry)
                .map_err(|error| self.fault(at, error))?;
            if config.class(&class.name).is_some() {
                let text = format!("a second class is called {}: name it otherwise", class.name);
                return Err(self.fault(at, text));
            }
            config.classes.push(class);
        }
        if config.classes.is_empty() {
            config.classes.push(WorkClass::new("default"));
        }
        Ok(())
    }

    fn fts(&self, config: &Config, table: Spanned<FtsTable>) -> Result<FtsPolicy, ConfigError> {
        let at = table.span().start;
        let fault = |text| self.fault(at, format!("[controller.fts] {text}"));
        let policy = FtsPolicy::of(table.into_inner(), |path| self.document.beside(path));
        let policy = policy.map_err(|error| fault(error.to_string()))?;
        let is_host = |name: &str| {
            config.topology.hosts().any(|(_, node)| node.name == name && node.site.is_some())
        };
        policy
            .check(is_host, |name| config.class(name).is_some())
            .map_err(|error| fault(error.to_string()))?;
        Ok(policy)
    }

    fn add_token(
        &self,
        config: &mut Config,
        table: Spanned<ControllerTokenTable>,
    ) -> Result<(), ConfigError> {
        let at = table.span().start;
        let ControllerTokenTable { name, sha256, file, scopes } = table.into_inner();
        check_token_name(&name).map_err(|error| self.fault(at, error))?;
        let source = match (sha256, file) {
            (Some(hex), None) => {
                TokenSource::hashed(name.clone(), &hex).map_err(|error| self.fault(at, error))?
            }
            (None, Some(path)) => {
                TokenSource::File { name: name.clone(), file: self.document.beside(path) }
            }
            _ => {
                let text = format!("token {name}: give sha256 or file, one of them");
                return Err(self.fault(at, text));
            }
        };
        let scopes: Result<Vec<ApiScope>, ApiScopeError> =
            scopes.iter().map(|text| text.parse()).collect();
        let scopes = scopes.map_err(|error| self.fault(at, format!("token {name}: {error}")))?;
        check_scopes(config, &scopes)
            .map_err(|error| self.fault(at, format!("token {name}: {error}")))?;
        if config.scopes.insert(name.clone(), scopes) {
            let text = format!("a second token is called {name}: name it otherwise");
            return Err(self.fault(at, text));
        }
        config.tokens.push(source);
        Ok(())
    }
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
