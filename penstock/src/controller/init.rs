//! `penstock controller init`: topology, tokens and configurations of a controller and its agents.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};
use penstock_agent::config::{HTTP_PORT, MOVER_PORT};
use penstock_daemon::state::StateDir;
use penstock_http::Url;
use penstock_identity::Fingerprint;
use penstock_mover::random;
use penstock_topology::Topology;
use penstock_units::BitRate;

use crate::credentials::{self, AgentAddress, AgentCredentials};
use crate::exit::{Code, CommandFailure, OrExit};
use crate::json::node::{Initialized, InitializedHost};

/// File name of the configurations of controller and agents.
const CONFIG: &str = "penstock.toml";

/// Most hosts of one call.
const HOSTS_MAX: usize = 1000;

/// Write topology, tokens and configurations of a controller and its agents into a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Hosts without an address run on this machine, each at two ports of the loopback that follow the controller's. A host with \
an address gets a directory to be copied there. The topology has a switch for each site and one between them: change its \
links to those of your network. The token 'operator' may submit, change and drain; this user is logged in with it.

Examples:
  penstock controller init site dtn-a=a dtn-b=b
  penstock controller init wan dtn1=cern@192.0.2.1 dtn2=caltech@198.51.100.1 \\
    --listen 192.0.2.9:8621")]
pub(crate) struct ControllerInitArgs {
    /// Directory to write, which may not have a configuration yet
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Hosts with their sites; with an address where they are other machines
    #[arg(required = true, value_name = "HOST=SITE[@ADDRESS]")]
    hosts: Vec<HostSpec>,
    /// Address of the controller's HTTP API
    #[arg(long, value_name = "ADDR:PORT", default_value_t = SocketAddr::from(([127, 0, 0, 1], HTTP_PORT)))]
    listen: SocketAddr,
    /// Address by which agents reach it [default: that of --listen]
    #[arg(long, value_name = "URL")]
    url: Option<Url>,
    /// Rate of each host's interface
    #[arg(long, value_name = "RATE", default_value = "10G")]
    rate: BitRate,
    /// Replace your login for the address of --listen, if you have one
    #[arg(long)]
    replace_login: bool,
    /// Print one JSON object: directory, controller, fingerprint, hosts, commands; docs/json.md has its fields
    #[arg(long)]
    json: bool,
}

/// A host of the new network.
#[derive(Debug, Clone)]
struct HostSpec {
    name: String,
    site: String,
    /// None for a host that runs on this machine.
    address: Option<IpAddr>,
}

impl FromStr for HostSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let good = |name: &str| {
            !name.is_empty()
                && name.len() <= 64
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
                && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        };
        let (name, rest) = text.split_once('=').context("write it like dtn1=cern")?;
        let (site, address) = match rest.split_once('@') {
            Some((site, address)) => {
                let address = address.parse();
                (site, Some(address.map_err(|_| anyhow!("after @ comes an address in figures"))?))
            }
            None => (rest, None),
        };
        if !good(name) || !good(site) {
            bail!("names have letters, digits and any of - . _, such as dtn1=cern");
        }
        Ok(Self { name: name.to_owned(), site: site.to_owned(), address })
    }
}

/// Contents of the files to write.
struct ControllerSetup<'a> {
    args: &'a ControllerInitArgs,
    url: String,
    /// Fingerprint of the controller's certificate; none if agents reach it by loopback.
    fingerprint: Option<Fingerprint>,
}

pub(crate) fn run(args: &ControllerInitArgs) -> Result<Code, CommandFailure> {
    check(args).or_exit(Code::Usage)?;
    let directory = &args.directory;
    if directory.join(CONFIG).exists() {
        let error = anyhow!(
            "{} is there: give another directory, or remove that one",
            directory.join(CONFIG).display()
        );
        return Err(CommandFailure::new(Code::Usage, error));
    }
    let address = AgentAddress::parse(&args.listen.to_string(), HTTP_PORT).or_exit(Code::Usage)?;
    let logins = credentials::state()?;
    if !args.replace_login && credentials::is_stored(&logins, &address)? {
        let error = anyhow!(
            "you are logged in to {address} already: give --listen another address, or --replace-login to forget that login"
        );
        return Err(CommandFailure::new(Code::Usage, error));
    }
    make_directory(directory)?;
    let state = StateDir::open(&directory.join("state")).context("the controller's state")?;
    let identity = state.credentials().context("the controller's certificate")?.identity;
    let is_loopback = args.listen.ip().is_loopback();
    let scheme = if is_loopback { "http" } else { "https" };
    let setup = ControllerSetup {
        args,
        url: args.url.as_ref().map_or(format!("{scheme}://{}", args.listen), ToString::to_string),
        fingerprint: (!is_loopback).then(|| identity.fingerprint()),
    };
    let operator = token();
    write(directory, "topology.toml", &setup.topology()?, 0o644)?;
    write(directory, "operator.token", &operator, 0o600)?;
    for (number, host) in args.hosts.iter().enumerate() {
        let place = directory.join(&host.name);
        make_directory(&place)?;
        let secret = token();
        write(&place, "token", &secret, 0o600)?;
        write(directory, &format!("{}.token", host.name), &secret, 0o600)?;
        write(&place, CONFIG, &setup.agent(number, host), 0o644)?;
        fs::create_dir_all(place.join("data")).with_context(|| place.display().to_string())?;
    }
    // Written last: its presence means that all other files exist.
    write(directory, CONFIG, &setup.controller(), 0o644)?;
    let known = AgentCredentials {
        token: operator.trim().to_owned(),
        is_bearer: false,
        fingerprint: identity.fingerprint(),
        own: None,
    };
    credentials::store(&logins, &address, &known)?;
    setup.print_instructions(identity.fingerprint())?;
    Ok(Code::Done)
}

fn check(args: &ControllerInitArgs) -> anyhow::Result<()> {
    let mut names = BTreeSet::new();
    for host in &args.hosts {
        if !names.insert(&host.name) {
            return Err(anyhow!("host {} is given twice", host.name));
        }
        if ["state", "operator"].contains(&host.name.as_str()) {
            return Err(anyhow!("a host cannot be called {}: name it otherwise", host.name));
        }
    }
    if args.hosts.len() > HOSTS_MAX {
        return Err(anyhow!("more than {HOSTS_MAX} hosts: write the topology by hand"));
    }
    let is_far = args.hosts.iter().any(|host| host.address.is_some());
    if is_far && args.url.is_none() && args.listen.ip().is_loopback() {
        return Err(anyhow!(
            "other machines do not reach {}: give --listen an address of this machine, such as 192.0.2.9:8621",
            args.listen
        ));
    }
    if args.listen.ip().is_unspecified() && args.url.is_none() {
        return Err(anyhow!(
            "agents need an address: give --url https://HOST:{}",
            args.listen.port()
        ));
    }
    let ports = usize::from(u16::MAX - args.listen.port());
    if !is_far && 2 * args.hosts.len() > ports {
        return Err(anyhow!(
            "there are too few ports above {}: give --listen a lower one",
            args.listen
        ));
    }
    Ok(())
}

fn make_directory(path: &Path) -> Result<(), CommandFailure> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    Ok(made.with_context(|| format!("{} cannot be made", path.display()))?)
}

fn write(directory: &Path, name: &str, text: &str, mode: u32) -> Result<(), CommandFailure> {
    let path = directory.join(name);
    let mut options = fs::OpenOptions::new();
    let opened = options.write(true).create(true).truncate(true).mode(mode).open(&path);
    let written = opened.and_then(|mut file| {
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        file.write_all(text.as_bytes())
    });
    Ok(written.with_context(|| format!("{} cannot be written", path.display()))?)
}

/// Generates a token with a final newline.
fn token() -> String {
    random::<24>().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }) + "\n"
}

impl ControllerSetup<'_> {
    /// Topology with a switch for each site, and one between them.
    fn topology(&self) -> Result<String, CommandFailure> {
        let rate = self.args.rate.0;
        let mut sites: BTreeMap<&str, Vec<&HostSpec>> = BTreeMap::new();
        for host in &self.args.hosts {
            sites.entry(&host.site).or_default().push(host);
        }
        let mut text = "# Rates are bits per second. Replace the links between sites by those of your network: see\n\
             # docs/topology.md, and `penstock topology check` on this file.\n\
             name = \"network\"\n\n[[switch]]\nname = \"between-sites\"\n"
            .to_owned();
        for (site, hosts) in sites {
            let all = rate.saturating_mul(hosts.len() as u64);
            let _ = write!(
                text,
                "\n[[site]]\nname = \"{site}\"\n[[switch]]\nname = \"{site}-switch\"\nsite = \"{site}\"\n\
                 [[link]]\nname = \"{site}-uplink\"\nends = [\"{site}-switch\", \"between-sites\"]\nrate = \"{}\"\n",
                plain(all)
            );
            for host in hosts {
                let name = &host.name;
                let _ = write!(
                    text,
                    "[[host]]\nname = \"{name}\"\nsite = \"{site}\"\n\
                     interface = [{{ name = \"eth0\", rate = \"{rate}\" }}]\n\
                     [[link]]\nname = \"{name}-link\"\nends = [\"{name}:eth0\", \"{site}-switch\"]\nrate = \"{rate}\"\n",
                    rate = plain(rate)
                );
            }
        }
        Topology::read(&text).map_err(|faults| anyhow!("{faults}")).or_exit(Code::Usage)?;
        Ok(text)
    }

    fn controller(&self) -> String {
        let mut text = format!(
            "# A controller: see docs/controller.md.\nroles = [\"controller\"]\n\n[agent]\nhttp = \"{}\"\n\n\
             [controller]\ntopology = \"topology.toml\"\n\n\
             [[controller.class]]\nname = \"default\"\n\n\
             [[controller.token]]\nname = \"operator\"\nfile = \"operator.token\"\nscopes = [\"operate\", \"submit:*\"]\n",
            self.args.listen
        );
        for host in &self.args.hosts {
            let name = &host.name;
            let _ = write!(
                text,
                "\n[[controller.token]]\nname = \"{name}\"\nfile = \"{name}.token\"\nscopes = [\"agent:{name}\"]\n"
            );
        }
        text
    }

    fn agent(&self, number: usize, host: &HostSpec) -> String {
        let name = &host.name;
        let mut text = format!(
            "# The agent of host {name} at site {}.\nroles = [\"agent\"]\n\n[agent]\n",
            host.site
        );
        if host.address.is_none() {
            let [mover, http] = self.ports(number);
            let _ = write!(text, "listen = \"127.0.0.1:{mover}\"\nhttp = \"127.0.0.1:{http}\"\n");
        }
        let _ = write!(
            text,
            "\n[agent.controller]\nurl = \"{}\"\ntoken = \"token\"\nhost = \"{name}\"\n",
            self.url
        );
        if let Some(fingerprint) = self.fingerprint {
            let _ = writeln!(text, "fingerprint = \"{fingerprint}\"");
        }
        if let Some(address) = host.address {
            let _ = writeln!(text, "addresses = [\"{}\"]", SocketAddr::new(address, MOVER_PORT));
        }
        let others = self.args.hosts.iter().filter(|other| other.name != *name);
        let others: BTreeSet<String> = others
            .map(|other| other.address.map_or("127.0.0.1".to_owned(), |ip| ip.to_string()))
            .collect();
        let others: Vec<String> = others.into_iter().map(|ip| format!("\"{ip}\"")).collect();
        let _ = write!(
            text,
            "\n[third_party]\n# Where the controller may have it send files.\nto = [{}]\n\n\
             [[export]]\n# Requests name paths below it. Only the controller is let in.\nname = \"/data\"\npath = \"data\"\n\
             mode = \"read-write\"\nwho = [\"controller\"]\n",
            others.join(", ")
        );
        text
    }

    /// Ports of mover and HTTP API of a host on this machine.
    fn ports(&self, number: usize) -> [u16; 2] {
        let first = usize::from(self.args.listen.port()) + 1 + 2 * number;
        [first, first + 1].map(|port| u16::try_from(port).unwrap_or(u16::MAX))
    }

    /// Commands that start all services and submit a request, in order.
    fn commands(&self) -> Vec<String> {
        let directory = shell(&self.args.directory.display().to_string());
        let serve = |below: &str| {
            format!(
                "penstock serve --config {directory}{below}/{CONFIG} --state {directory}{below}/state"
            )
        };
        let mut commands = vec![serve("")];
        let near = self.args.hosts.iter().filter(|host| host.address.is_none());
        commands.extend(near.map(|host| serve(&format!("/{}", host.name))));
        commands
    }

    fn print_instructions(&self, fingerprint: Fingerprint) -> Result<(), CommandFailure> {
        let args = self.args;
        let commands = self.commands();
        let mut output = io::stdout();
        if args.json {
            let hosts = args.hosts.iter().map(|host| InitializedHost {
                name: host.name.clone(),
                site: host.site.clone(),
                directory: args.directory.join(&host.name),
            });
            crate::json::print(&Initialized {
                directory: args.directory.clone(),
                controller: args.listen.to_string(),
                fingerprint: fingerprint.to_string(),
                hosts: hosts.collect(),
                commands,
            })?;
            return Ok(());
        }
        writeln!(output, "start each of these, and keep it running:")?;
        for command in commands {
            writeln!(output, "  {command}")?;
        }
        for host in args.hosts.iter().filter(|host| host.address.is_some()) {
            writeln!(
                output,
                "copy {}/ to {} and start there: penstock serve --config {CONFIG} --state state",
                args.directory.join(&host.name).display(),
                host.name
            )?;
        }
        let sites: BTreeSet<&str> = args.hosts.iter().map(|host| host.site.as_str()).collect();
        let mut sites = sites.into_iter();
        let (from, to) = (sites.next().unwrap_or("a"), sites.next());
        let to = to.unwrap_or(from);
        let controller = match args.listen == SocketAddr::from(([127, 0, 0, 1], HTTP_PORT)) {
            true => String::new(),
            false => format!(" --controller {}", args.listen),
        };
        writeln!(output, "then move what lies in the data directory of a host of {from}:")?;
        writeln!(output, "  penstock submit {from}:/data {to}:/data/in --watch{controller}")?;
        Ok(())
    }
}

/// Formats a rate as in topology files, without a fraction.
fn plain(rate_bps: u64) -> String {
    let units = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    let whole = units.into_iter().find(|(unit, _)| rate_bps.is_multiple_of(*unit));
    whole.map_or(rate_bps.to_string(), |(unit, letter)| format!("{}{letter}", rate_bps / unit))
}

/// Quotes a word for a POSIX shell.
fn shell(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._/~".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_spec_has_site_and_address() {
        let host: HostSpec = "dtn1=cern@2001:db8::1".parse().unwrap();
        assert_eq!((host.name.as_str(), host.site.as_str()), ("dtn1", "cern"));
        assert_eq!(host.address, "2001:db8::1".parse().ok());
        for bad in ["dtn1", "=cern", "dtn1=", "../x=cern", "dtn1=a@host", ".hidden=a", "a b=c"] {
            assert!(bad.parse::<HostSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn rates_have_topology_notation() {
        let rates = [10_000_000_000, 2_500_000_000, 1_500, 7].map(plain);
        assert_eq!(rates, ["10G", "2500M", "1500", "7"]);
        for rate in rates {
            assert!(rate.parse::<BitRate>().is_ok(), "{rate}");
        }
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(shell("site/one"), "site/one");
        assert_eq!(shell("my site's"), "'my site'\\''s'");
    }
}
