//! Configuration of the controller: the table `[controller]`.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_alto::Maps;
use penstock_http::fetch::Url;
use penstock_http::tokens::{TokenSource, check_token_name};
use penstock_operations::batch::BatchLimits;
use penstock_operations::class::{WeeklyWindow, WorkClass};
use penstock_operations::round::PlannerRules;
use penstock_scitags::Registry;
use penstock_topology::Topology;
use penstock_units::{BitRate, ByteCount, parse_duration};
use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use crate::access::{Scope, TokenScopes};
use crate::circuits::{CircuitProvider, LabCircuits};
use crate::telemetry::Telemetry;

/// Most classes of work.
const CLASSES_MAX: usize = 1000;

/// An error in the configuration, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {text}", file.display(), line.map_or(String::new(), |line| format!(":{line}")))]
pub struct ConfigError {
    file: PathBuf,
    line: Option<usize>,
    text: String,
}

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
struct ConfigDocument {
    controller: Option<ControllerTable>,
    #[serde(flatten)]
    _others: std::collections::HashMap<String, IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ControllerTable {
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
    #[serde(default)]
    site: Vec<Spanned<SiteTable>>,
    #[serde(default)]
    class: Vec<Spanned<ClassTable>>,
    #[serde(default)]
    token: Vec<Spanned<ControllerTokenTable>>,
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

/// True if the file has a table `[controller]`.
///
/// # Errors
/// If the file cannot be read.
pub fn is_configured(file: Option<&Path>) -> Result<bool, ConfigError> {
    let Some(file) = file else { return Ok(false) };
    let failed = |text| ConfigError { file: file.to_owned(), line: None, text };
    let text = std::fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
    // Parse errors are reported when the whole file is read.
    let table: Result<toml::Table, _> = text.parse();
    Ok(table.is_ok_and(|table| table.contains_key("controller")))
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
            lease_seconds: 30,
            lost_after: Duration::from_secs(60),
            gone_after: Duration::from_secs(600),
            round: Duration::from_secs(1),
            batch: BatchLimits::default(),
            rules: PlannerRules::default(),
            keep: Duration::from_secs(7 * 86_400),
            rate_limit: 0,
            circuits: None,
            telemetry: None,
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
            return Err(ConfigError { file, line: None, text: text.to_owned() });
        };
        let failed = |line, text| ConfigError { file: file.to_owned(), line, text };
        let text =
            std::fs::read_to_string(file).map_err(|error| failed(None, error.to_string()))?;
        parse(file, &text, registry)
    }

    /// The class of this name.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<&WorkClass> {
        self.classes.iter().find(|class| class.name == name)
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

fn parse(file: &Path, text: &str, registry: &Registry) -> Result<Config, ConfigError> {
    let failed = |line, text| ConfigError { file: file.to_owned(), line, text };
    let line = |at: usize| Some(text.bytes().take(at).filter(|b| *b == b'\n').count() + 1);
    let document: ConfigDocument = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        failed(line(at), error.message().replace('\n', " "))
    })?;
    let table = document.controller.unwrap_or_default();
    let directory = file.parent().unwrap_or(Path::new("."));
    let Some(path) = table.topology else {
        let text = "[controller] needs topology = \"FILE\": the network with its sites and hosts";
        return Err(failed(None, text.to_owned()));
    };
    let at = line(path.span().start);
    let path = directory.join(path.into_inner());
    let network = std::fs::read_to_string(&path)
        .map_err(|error| failed(at, format!("{}: {error}", path.display())))?;
    let topology = Topology::read(&network).map_err(|faults| {
        let first = faults.to_string().lines().next().unwrap_or_default().to_owned();
        failed(at, format!("{}: {first}: see penstock topology check", path.display()))
    })?;
    let mut config = Config::new(topology, Vec::new());
    if let Some(url) = table.database {
        let at = line(url.span().start);
        let url = url.into_inner();
        crate::store::db::kind(&url).map_err(|text| failed(at, format!("database: {text}")))?;
        config.database = Some(url);
    }
    let time = |given: Option<Spanned<String>>, unless: Duration, least: Duration| {
        let Some(given) = given else { return Ok(unless) };
        let at = line(given.span().start);
        let time = parse_duration(given.get_ref()).map_err(|e| failed(at, e.to_string()))?;
        if time < least {
            return Err(failed(
                at,
                format!("'{}' is too short: give at least {least:?}", given.get_ref()),
            ));
        }
        Ok(time)
    };
    let second = Duration::from_secs(1);
    let lease = time(table.lease, Duration::from_secs(30), 2 * second)?;
    config.lease_seconds = u32::try_from(lease.as_secs()).unwrap_or(u32::MAX);
    config.lost_after = time(table.lost_after, config.lost_after, 2 * second)?;
    config.gone_after = time(table.gone_after, config.gone_after, 2 * second)?;
    if config.gone_after < config.lost_after {
        config.gone_after = config.lost_after;
    }
    config.round = time(table.round, config.round, Duration::from_millis(50))?;
    config.keep = time(table.keep, config.keep, 60 * second)?;
    if let Some(files) = table.batch_files {
        let most = penstock_operations::orders::FILES_MAX;
        if !(1..=most).contains(files.get_ref()) {
            let text = format!("batch_files is from 1 to {most}");
            return Err(failed(line(files.span().start), text));
        }
        config.batch.files = files.into_inner();
    }
    if let Some(bytes) = table.batch_bytes {
        config.batch.bytes = bytes.0.max(1);
    }
    if let Some(pairs) = table.transfers_per_pair {
        if !(1..=64).contains(pairs.get_ref()) {
            let text = "transfers_per_pair is from 1 to 64".to_owned();
            return Err(failed(line(pairs.span().start), text));
        }
        config.rules.runs_per_pair = pairs.into_inner();
    }
    config.rules.streams = table.streams.filter(|streams| *streams > 0);
    if let Some(usable) = table.usable {
        if !(0.1..=1.0).contains(usable.get_ref()) {
            let text =
                "usable is the part of a link that file bytes may have, from 0.1 to 1".to_owned();
            return Err(failed(line(usable.span().start), text));
        }
        config.rules.usable_permille = (usable.get_ref() * 1000.0).round() as u16;
    }
    config.rate_limit = table.requests_per_second.unwrap_or(0);
    if let Some(telemetry) = table.telemetry {
        let at = line(telemetry.span().start);
        let TelemetryTable { url, token, fingerprint, authorities } = telemetry.into_inner();
        let fingerprint = fingerprint.map(|text| text.parse()).transpose();
        let telemetry = Telemetry {
            url,
            token: token.map(|file| directory.join(file)),
            fingerprint: fingerprint.map_err(|error| {
                failed(at, format!("[controller.telemetry] fingerprint: {error}"))
            })?,
            authorities: authorities.map(|file| directory.join(file)),
        };
        telemetry.check().map_err(|text| failed(at, format!("[controller.telemetry] {text}")))?;
        config.telemetry = Some(telemetry);
    }
    if let Some(circuits) = table.circuits {
        let at = line(circuits.span().start);
        let circuits = circuits.into_inner();
        config.circuits = match (circuits.provider.as_str(), circuits.lab) {
            ("lab", Some(lab)) => Some(Provider::Lab(directory.join(lab))),
            ("lab", None) => {
                let text = "[controller.circuits] needs lab = \"DIR\": the lab's directory";
                return Err(failed(at, text.to_owned()));
            }
            (other, _) => {
                let text = format!("provider = \"{other}\" makes no circuits here: write \"lab\"");
                return Err(failed(at, text));
            }
        };
    }
    for site in table.site {
        let at = line(site.span().start);
        let SiteTable { name, networks } = site.into_inner();
        let one = BTreeMap::from([(name.clone(), networks.clone())]);
        Maps::of(&config.topology, &one, |_| true)
            .map_err(|error| failed(at, error.to_string()))?;
        config.networks.insert(name, networks);
    }
    if table.class.len() > CLASSES_MAX {
        return Err(failed(None, format!("more than {CLASSES_MAX} [[controller.class]]")));
    }
    let mut names = HashSet::new();
    for class in table.class {
        let at = line(class.span().start);
        let class = lower_class(class.into_inner(), registry).map_err(|text| failed(at, text))?;
        if !names.insert(class.name.clone()) {
            return Err(failed(
                at,
                format!("a second class is called {}: name it otherwise", class.name),
            ));
        }
        config.classes.push(class);
    }
    if config.classes.is_empty() {
        config.classes.push(WorkClass::new("default"));
    }
    for token in table.token {
        let at = line(token.span().start);
        let ControllerTokenTable { name, sha256, file, scopes } = token.into_inner();
        check_token_name(&name).map_err(|text| failed(at, text))?;
        let source = match (sha256, file) {
            (Some(hex), None) => {
                TokenSource::hashed(name.clone(), &hex).map_err(|text| failed(at, text))?
            }
            (None, Some(path)) => {
                TokenSource::File { name: name.clone(), file: directory.join(path) }
            }
            _ => {
                let text = format!("token {name}: give sha256 or file, one of them");
                return Err(failed(at, text));
            }
        };
        let scopes: Result<Vec<Scope>, String> = scopes.iter().map(|text| text.parse()).collect();
        let scopes = scopes.map_err(|text| failed(at, format!("token {name}: {text}")))?;
        check_scopes(&config, &scopes)
            .map_err(|text| failed(at, format!("token {name}: {text}")))?;
        if config.scopes.insert(name.clone(), scopes) {
            return Err(failed(at, format!("a second token is called {name}: name it otherwise")));
        }
        config.tokens.push(source);
    }
    Ok(config)
}

fn check_scopes(config: &Config, scopes: &[Scope]) -> Result<(), String> {
    for scope in scopes {
        match scope {
            Scope::Submit(Some(class)) if config.class(class).is_none() => {
                return Err(format!(
                    "there is no class '{class}' to submit to: add [[controller.class]] name = \"{class}\""
                ));
            }
            Scope::Agent(host) if !config.is_host(host) => {
                return Err(format!("the topology has no host '{host}'"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn lower_class(table: ClassTable, registry: &Registry) -> Result<WorkClass, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if table.name.is_empty() || table.name.len() > 64 || !table.name.chars().all(good) {
        return Err(format!(
            "'{}' cannot name a class: use letters, digits and any of - . _",
            table.name
        ));
    }
    let mut class = WorkClass::new(table.name);
    if let Some(label) = table.label {
        let tag = registry.find(&label).map_err(|error| format!("label: {error}"))?;
        class.scitag = u16::try_from(tag.number()).ok();
        let (owner, activity) = label.split_once('/').unwrap_or((&label, ""));
        class.label = Some((owner.to_owned(), activity.to_owned()));
    }
    class.who = table.who;
    class.weight = table.weight.unwrap_or(1);
    if !(1..=1 << 20).contains(&class.weight) {
        return Err(format!("class {}: weight is from 1 to {}", class.name, 1 << 20));
    }
    class.floor_bps = table.floor.map_or(0, |rate| rate.0);
    class.mark_bps = table.mark.map(|rate| rate.0);
    class.cap_bps = table.cap.map(|rate| rate.0);
    if class.cap_bps.is_some_and(|cap| cap < class.floor_bps) {
        return Err(format!("class {}: its cap is below its floor", class.name));
    }
    class.tier = table.tier.unwrap_or(0);
    class.windows =
        table.windows.iter().map(|text| text.parse::<WeeklyWindow>()).collect::<Result<_, _>>()?;
    Ok(class)
}

#[cfg(test)]
mod tests;
