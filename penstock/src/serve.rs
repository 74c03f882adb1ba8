//! `penstock serve`: runs this machine's daemon until a signal ends it.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::anyhow;
use penstock_agent::config::{Config, Export, Layer, MetricsAccess, RoleName};
use penstock_agent::registry::ActiveRegistry;
use penstock_agent::role::{AgentRole, place_process};
use penstock_collector::{CollectorRole, config as collector};
use penstock_controller::{Controller, config as controller};
use penstock_daemon::config::values::{ListenAddress, Retention, parse_count};
use penstock_daemon::config::{ConfigError, Environment, ValueError};
use penstock_daemon::{Daemon, RoleContext, RunningDaemon};
use penstock_gateway::{GatewayRole, config as gateway};
use penstock_host::placement::PlacementPolicy;
use penstock_http::ServiceRole;
use penstock_units::{BitRate, ByteCount};

use crate::exit::{Code, CommandFailure, OrExit};
use crate::json::node::Ready;

/// Run this machine's daemon: files for many clients, a collector of telemetry, an HTTP API, metrics
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Settings come from the file, then from PENSTOCK_* variables (PENSTOCK_LISTEN, _HTTP, _STATE, _ROOT, \
_METRICS, _TOKENS, _RATE, _TRANSFERS, _STREAMS, _MEMORY, _KEEP_UNFINISHED, _CPU, _ROLES, _CONFIG), then from flags; the later wins.

On its first start the agent makes a certificate and a token in its state directory. The same user on \
this machine needs nothing more; for another host it prints the line to type there. SIGTERM or SIGINT \
ends it so that every transfer resumes later; a second one ends it at once. SIGHUP reads limits, exports, \
tokens and certificates of the file again, and a controller's classes, tokens and topology; running transfers go on.

Examples:
  penstock serve --root /data
  penstock serve --root /data \\
    --listen 127.0.0.1:8620 --http 127.0.0.1:8621 --rate 10G
  penstock serve --roles collector
  penstock serve --config /etc/penstock/penstock.toml")]
pub(crate) struct ServeArgs {
    /// Configuration file [default: /etc/penstock/penstock.toml if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Roles: agent (files), collector (telemetry), controller (requests) [default: all that are configured]
    #[arg(long, value_name = "ROLE", value_delimiter = ',')]
    roles: Vec<RoleName>,
    /// Let every client with a token read and write this directory, as penstock://HOST/
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Addresses for transfers; port 0 takes any free port [default: port 8620 on all addresses]
    #[arg(long, value_name = "ADDR:PORT", value_delimiter = ',')]
    listen: Vec<ListenAddress>,
    /// Addresses of the HTTP API and metrics, or none [default: 127.0.0.1:8621]
    #[arg(long, value_name = "ADDR:PORT", value_delimiter = ',')]
    http: Vec<String>,
    /// Directory for certificate, key, token and journals [default: see penstock --help]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// File with lines of a name and a token, mode 0600, reread when it changes
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Access to /metrics without a token: loopback, open (all) or token (none)
    #[arg(long, value_name = "WHO")]
    metrics: Option<MetricsAccess>,
    /// Rate limit of all transfers together, such as 10G; 0 for no limit
    #[arg(long)]
    rate: Option<BitRate>,
    /// Most transfers at once
    #[arg(long, value_name = "N", value_parser = parse_count::<NonZeroUsize>)]
    transfers: Option<NonZeroUsize>,
    /// Most streams of all transfers together
    #[arg(long, value_name = "N", value_parser = parse_count::<NonZeroU16>)]
    streams: Option<NonZeroU16>,
    /// Memory for the buffers of all transfers, such as 2GiB
    #[arg(long, value_name = "BYTES")]
    memory: Option<ByteCount>,
    /// Remove partial files of transfers that were not resumed for this long, or forever [default: 7d]
    #[arg(long, value_name = "TIME")]
    keep_unfinished: Option<Retention>,
    /// Run on these processors, such as 0-3,8; auto runs data threads near the interface in use, else near the disk
    #[arg(long, value_name = "LIST")]
    cpu: Option<PlacementPolicy>,
    /// Print one JSON object with listen, http, telemetry and fingerprint when it runs; docs/json.md has its fields
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: ServeArgs) -> Result<Code, CommandFailure> {
    let json = args.json;
    let (file, flags) = lower(args)?;
    let load = move || Config::load(file.as_deref(), Environment::of_process(), flags.clone());
    let config = load().or_exit(Code::Usage)?;
    // Errors in the configuration of any role end the command before one starts.
    let collector = load_collector(&config)?;
    let controller = load_controller(&config)?;
    let gateway = gateway::Config::load(config.file.as_deref(), &taken_addresses(&config));
    let gateway = gateway.or_exit(Code::Usage)?;
    let exports: Vec<String> = config.exports.iter().map(shown).collect();

    let placement = place_process(&config)?;
    let daemon = Daemon::open(config.daemon()).map_err(anyhow::Error::from)?;
    let context = daemon.context();
    let collector = collector.map(|config| start_collector(config, &context)).transpose()?;
    let controller = controller.map(|start| start(&context)).transpose()?;
    let agent = AgentRole::start(config, placement, &context, Box::new(load));
    let mut agent = agent.map_err(anyhow::Error::from)?;
    let gateway = gateway.zip(agent.mover().cloned()).map(|(config, mover)| {
        GatewayRole::start(config, mover, agent.gatekeeper(), agent.minter(), &context)
            .map(Arc::new)
    });
    let gateway = gateway.transpose().map_err(anyhow::Error::from)?;
    let inputs = collector.as_deref().map(inputs).unwrap_or_default();
    let urls = gateway.as_deref().map(GatewayUrls::of).unwrap_or_default();
    agent.set_gateway(urls.webdav.clone());
    let agent = Arc::new(agent);

    let mut roles: Vec<Arc<dyn ServiceRole>> = vec![Arc::clone(&agent) as _];
    roles.extend(gateway.map(|role| role as Arc<dyn ServiceRole>));
    roles.extend(collector.map(|role| role as Arc<dyn ServiceRole>));
    roles.extend(controller.map(|role| role as Arc<dyn ServiceRole>));
    let daemon = daemon.serve(roles, agent.bearers());
    let printed = if json {
        print_json(&daemon, &agent, &inputs, urls, io::stdout())
    } else {
        print(&daemon, &agent, &exports, &inputs, &urls, io::stdout())
    };
    // A closed output does not end the daemon.
    if let Err(error) = printed {
        tracing::warn!("cannot print where the agent listens: {error}");
    }
    drop(agent);
    daemon.run();
    Ok(Code::Done)
}

/// Addresses of the daemon and of the mover, with their keys.
fn taken_addresses(config: &Config) -> Vec<(&'static str, SocketAddr)> {
    let listen = config.listen.iter().filter(|_| config.plays(RoleName::Agent));
    let listen = listen.map(|address| ("listen in [agent]", *address));
    listen.chain(config.http.iter().map(|address| ("http in [agent]", *address))).collect()
}

/// Formats of the collector's inputs with their addresses.
type Inputs = Vec<(&'static str, SocketAddr)>;

/// Reads the collector's configuration, if this node plays the role.
fn load_collector(config: &Config) -> Result<Option<collector::Config>, CommandFailure> {
    if !config.plays(RoleName::Collector) {
        return Ok(None);
    }
    let required = config.roles.is_some();
    collector::Config::load(config.file.as_deref(), required).or_exit(Code::Usage).map(Some)
}

fn start_collector(
    config: collector::Config,
    context: &RoleContext<'_>,
) -> Result<Arc<CollectorRole>, CommandFailure> {
    // The agent reports a damaged copy.
    let (current, _) = ActiveRegistry::load(context.state.path());
    let started =
        CollectorRole::start(config, current.registry, context.state.path(), context.runtime);
    Ok(Arc::new(started.map_err(|error| anyhow!("{error}"))?))
}

fn inputs(collector: &CollectorRole) -> Inputs {
    collector.inputs().iter().map(|input| (input.format.as_str(), input.address)).collect()
}

/// URLs at which the gateway serves the exports.
#[derive(Debug, Default)]
struct GatewayUrls {
    webdav: Vec<String>,
    xrootd: Vec<String>,
    /// True if other hosts can reach one of them.
    is_open: bool,
}

impl GatewayUrls {
    fn of(gateway: &GatewayRole) -> Self {
        let webdav = |(address, encrypted): &(SocketAddr, bool)| {
            format!("{}://{address}/", if *encrypted { "https" } else { "http" })
        };
        let xrootd = |address| format!("root://{address}/");
        Self {
            webdav: gateway.addresses().iter().map(webdav).collect(),
            xrootd: gateway.root_addresses().iter().map(xrootd).collect(),
            is_open: gateway
                .addresses()
                .iter()
                .map(|(address, _)| address)
                .chain(gateway.root_addresses())
                .any(|address| !address.ip().is_loopback()),
        }
    }
}

/// True if the role controller is configured or named; it needs a topology.
fn plays_controller(config: &Config) -> Result<bool, ConfigError> {
    match config.roles {
        Some(_) => Ok(config.plays(RoleName::Controller)),
        None => controller::is_configured(config.file.as_deref()),
    }
}

/// Starts a controller whose configuration is read.
type StartController = Box<dyn FnOnce(&RoleContext<'_>) -> Result<Arc<Controller>, CommandFailure>>;

/// Reads the controller's configuration, if this node plays the role.
fn load_controller(config: &Config) -> Result<Option<StartController>, CommandFailure> {
    if !plays_controller(config).or_exit(Code::Usage)? {
        return Ok(None);
    }
    let (file, state) = (config.file.clone(), config.state.clone());
    let load = move || {
        let (current, _) = ActiveRegistry::load(&state);
        controller::Config::load(file.as_deref(), &current.registry)
    };
    let controller = load().or_exit(Code::Usage)?;
    Ok(Some(Box::new(move |context: &RoleContext<'_>| {
        let started = Controller::start(controller, context.state.path(), context.runtime);
        let started = started.map_err(|error| anyhow!("{error}"))?;
        let load = move || Ok(load()?);
        Ok(Arc::new(started.reloading(load)))
    })))
}

/// Lowers the arguments into the configuration file's path and a layer of settings.
fn lower(args: ServeArgs) -> Result<(Option<PathBuf>, Layer), CommandFailure> {
    let http = match args.http.as_slice() {
        [] => None,
        [none] if none == "none" => Some(Vec::new()),
        places => {
            let places = places
                .iter()
                .map(|place| place.parse().map_err(|e: ValueError| anyhow::anyhow!("--http: {e}")));
            Some(places.collect::<anyhow::Result<_>>().or_exit(Code::Usage)?)
        }
    };
    let flags = Layer {
        listen: Some(args.listen).filter(|places| !places.is_empty()),
        http,
        state: args.state,
        root: args.root,
        metrics: args.metrics,
        tokens: args.tokens,
        rate: args.rate,
        transfers: args.transfers,
        transfers_per_caller: None,
        streams: args.streams,
        memory: args.memory,
        cpu: args.cpu,
        tuning: None,
        keep_unfinished: args.keep_unfinished,
        roles: Some(args.roles).filter(|roles| !roles.is_empty()),
    };
    Ok((args.config, flags))
}

fn shown(export: &Export) -> String {
    format!("{} is {} ({})", export.name, export.path.display(), export.mode.as_str())
}

fn print_json(
    daemon: &RunningDaemon,
    agent: &AgentRole,
    inputs: &Inputs,
    urls: GatewayUrls,
    mut output: impl Write,
) -> io::Result<()> {
    let text = |addresses: &[SocketAddr]| -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    };
    let mut telemetry = BTreeMap::<String, Vec<String>>::new();
    for (format, address) in inputs {
        telemetry.entry((*format).to_owned()).or_default().push(address.to_string());
    }
    let ready = Ready {
        telemetry,
        listen: text(agent.addresses()),
        http: text(daemon.http()),
        webdav: urls.webdav,
        xrootd: urls.xrootd,
        fingerprint: daemon.fingerprint().to_string(),
    };
    writeln!(output, "{}", serde_json::to_string(&ready)?)?;
    output.flush()
}

fn print(
    daemon: &RunningDaemon,
    agent: &AgentRole,
    exports: &[String],
    inputs: &Inputs,
    urls: &GatewayUrls,
    mut output: impl Write,
) -> io::Result<()> {
    writeln!(output, "penstock {} is ready", env!("CARGO_PKG_VERSION"))?;
    for address in agent.addresses() {
        writeln!(output, "  files        penstock://{address}/")?;
    }
    for export in exports {
        writeln!(output, "  export       {export}")?;
    }
    for address in daemon.http() {
        let scheme = if address.ip().is_loopback() { "http" } else { "https" };
        writeln!(output, "  dashboard    {scheme}://{address}/")?;
        writeln!(output, "  api          {scheme}://{address}/api/v1/openapi.json")?;
    }
    for url in &urls.webdav {
        writeln!(output, "  webdav       {url}")?;
    }
    for url in &urls.xrootd {
        writeln!(output, "  xrootd       {url}")?;
    }
    for (format, address) in inputs {
        writeln!(output, "  {format:<12} udp {address}")?;
    }
    writeln!(output, "  certificate  {}", daemon.fingerprint())?;
    if !agent.addresses().is_empty() {
        writeln!(output, "{}", invitation(daemon, agent, urls))?;
    }
    output.flush()
}

/// True on a terminal: only there the token may be shown, as files, pipes and the system log are kept and read by others.
fn may_show_token() -> bool {
    io::stdout().is_terminal()
}

/// Commands to type on another host.
fn invitation(daemon: &RunningDaemon, agent: &AgentRole, urls: &GatewayUrls) -> String {
    let addresses = agent.addresses();
    let Some(address) = addresses.iter().find(|address| !address.ip().is_loopback()) else {
        let is_open =
            urls.is_open || daemon.http().iter().any(|address| !address.ip().is_loopback());
        return match is_open {
            true => "penstock on other hosts cannot reach it, as files are on loopback only (--listen ADDR:PORT); the other addresses are open to them.",
            false => "It listens on loopback only: other hosts cannot reach it (--listen ADDR:PORT).",
        }
        .into();
    };
    let host = if address.ip().is_unspecified() {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = if name.trim().is_empty() { "HOST" } else { name.trim() };
        format!("{name}:{}", address.port())
    } else {
        address.to_string()
    };
    let note = format!(" (TOKEN is in the file {})", daemon.token_file().display());
    let (token, note) =
        if may_show_token() { (daemon.token(), "") } else { ("TOKEN", note.as_str()) };
    let fingerprint = daemon.fingerprint();
    format!(
        "On another host, once{note}:\n  penstock login {host} --token {token} --fingerprint {fingerprint}"
    )
}
