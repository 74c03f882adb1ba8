//! What this user knows of agents: the token to show and the certificate to expect, for each.
//!
//! `penstock login` puts them into `hosts.toml` in the state directory. An agent that runs on this
//! machine with the same state directory needs no login: its own certificate and token are there, and
//! are taken for every address of this machine. A login holds for the agent, not for the spelling of its
//! address: at an address of which nothing is known the certificate says which agent it is. A token only
//! ever leaves inside TLS towards the certificate that belongs to it.
//!
//! Fails with a line that says how to log in.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use penstock_agent::config::{Listen, MOVER_PORT};
use penstock_agent::state::{State, default_directory};
use penstock_mover::connector;
use penstock_mover::dial::TcpDial;
use penstock_mover::identity::{Fingerprint, Identity, tls_client_config};
use penstock_sys::net::is_own_address;
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};

const FILE: &str = "hosts.toml";

/// How an agent is addressed, in one spelling for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Address {
    /// Reads `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`.
    pub(crate) fn parse(text: &str, default_port: u16) -> anyhow::Result<Self> {
        let Ok(Listen { host, port }) = text.parse() else {
            bail!(
                "'{text}' is no address of an agent: write it like dtn1.example.org, dtn1:{default_port} or [::1]:{default_port}"
            );
        };
        let host = match host.parse::<IpAddr>() {
            Ok(ip) => ip.to_string(),
            Err(_) => host.to_ascii_lowercase(),
        };
        Ok(Self { host, port: port.unwrap_or(default_port) })
    }

    /// Whether all that it means is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        let Ok(addresses) = (self.host.as_str(), self.port).to_socket_addrs() else { return false };
        let mut addresses = addresses.peekable();
        addresses.peek().is_some() && addresses.all(|address| is_own_address(address.ip()))
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// What is known of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    /// To show; empty where a certificate is shown.
    pub(crate) token: String,
    /// To expect.
    pub(crate) fingerprint: Fingerprint,
    /// Files of a certificate and its key, to show too.
    pub(crate) own: Option<Own>,
}

/// The files of a client's certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Own {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Own {
    /// Reads both files.
    ///
    /// # Errors
    /// When they are not a certificate and its key, or others can read the key.
    pub(crate) fn read(&self) -> anyhow::Result<Identity> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|error| {
                anyhow!("{}: {}", path.display(), penstock_sys::fs::describe(&error))
            })
        };
        let (certificate, key) = (read(&self.certificate)?, read(&self.key)?);
        let mode = std::fs::metadata(&self.key)?.permissions().mode();
        if mode & 0o077 != 0 {
            bail!("{}: others can read this key: chmod 600 it", self.key.display());
        }
        Identity::from_pem(&certificate, &key)
            .with_context(|| format!("{} and {}", self.certificate.display(), self.key.display()))
    }
}

impl Known {
    /// TLS that accepts this agent alone, and shows the certificate there is to show.
    ///
    /// # Errors
    /// When that cannot be read.
    pub(crate) fn tls(&self) -> anyhow::Result<Arc<ClientConfig>> {
        let own = self.own.as_ref().map(Own::read).transpose()?;
        Ok(tls_client_config(self.fingerprint, own.as_ref())?)
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hosts {
    #[serde(default)]
    host: Vec<Host>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    address: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    token: String,
    fingerprint: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<PathBuf>,
}

impl Host {
    fn known(&self) -> anyhow::Result<Known> {
        let fingerprint = self.fingerprint.parse();
        let fingerprint =
            fingerprint.with_context(|| format!("{FILE}: {}: log in again", self.address))?;
        let own = self.certificate.clone().zip(self.key.clone());
        let own = own.map(|(certificate, key)| Own { certificate, key });
        Ok(Known { token: self.token.clone(), fingerprint, own })
    }
}

/// The state directory of this user.
pub(crate) fn state() -> anyhow::Result<State> {
    Ok(State::open(&default_directory()?)?)
}

/// Keeps what is known of the agent at `address`, in place of what was known before.
pub(crate) fn store(state: &State, address: &Address, known: &Known) -> anyhow::Result<()> {
    let _lock = state.lock()?;
    let mut hosts = read(state)?;
    let address = address.to_string();
    hosts.host.retain(|host| host.address != address);
    let (token, fingerprint) = (known.token.clone(), known.fingerprint.to_string());
    let own = known.own.clone();
    let (certificate, key) = own.map(|own| (own.certificate, own.key)).unzip();
    hosts.host.push(Host { address, token, fingerprint, certificate, key });
    hosts.host.sort_by(|a, b| a.address.cmp(&b.address));
    let text = toml::to_string(&hosts).context("hosts cannot be written as TOML")?;
    Ok(state.write(FILE, text.as_bytes(), 0o600)?)
}

/// What is known of the agent whose mover is at `address`.
pub(crate) fn find(state: &State, address: &Address) -> anyhow::Result<Option<Known>> {
    let name = address.to_string();
    if let Some(host) = read(state)?.host.iter().find(|host| host.address == name) {
        return host.known().map(Some);
    }
    own(state, address)
}

/// What is known of the agent whose mover is at `address`, by that address or by the certificate that is shown
/// there.
pub(crate) fn find_agent(state: &State, address: &Address) -> anyhow::Result<Option<Known>> {
    let known = find(state, address)?;
    if known.is_some() {
        return Ok(known);
    }
    find_by_certificate(state, |fingerprints| {
        let dial = TcpDial::new(&address.host, address.port, &[], &[], None)?;
        connector::certificate_of(&dial, fingerprints).map(Some)
    })
}

/// What is known of the agent that shows one of the certificates of `hosts.toml`, which `ask` gets to choose from.
/// Where nobody answers, or another agent, nothing is known.
fn find_by_certificate(
    state: &State,
    ask: impl FnOnce(Vec<Fingerprint>) -> io::Result<Option<Fingerprint>>,
) -> anyhow::Result<Option<Known>> {
    let hosts = read(state)?.host;
    let known: Vec<Known> = hosts.iter().map(Host::known).collect::<anyhow::Result<_>>()?;
    if known.is_empty() {
        return Ok(None);
    }
    let shown =
        ask(known.iter().map(|known| known.fingerprint).collect()).unwrap_or_else(|error| {
            tracing::debug!("no certificate that is known: {error}");
            None
        });
    Ok(known.into_iter().find(|known| Some(known.fingerprint) == shown))
}

/// What is known of the agent whose HTTP API is at `address`: the same token and certificate hold for
/// both of an agent's ports, so a login to the mover's port will do.
pub(crate) fn find_api(state: &State, address: &Address) -> anyhow::Result<Option<Known>> {
    if let Some(known) = find_api_by_name(state, address)? {
        return Ok(Some(known));
    }
    find_by_certificate(state, |fingerprints| {
        penstock_agent::client::certificate_of(&address.to_string(), fingerprints)
    })
}

fn find_api_by_name(state: &State, address: &Address) -> anyhow::Result<Option<Known>> {
    if let Some(known) = find(state, address)? {
        return Ok(Some(known));
    }
    let hosts = read(state)?.host;
    let on_host = |host: &&Host| {
        Address::parse(&host.address, MOVER_PORT).is_ok_and(|known| known.host == address.host)
    };
    let mut on_host = hosts.iter().filter(on_host);
    match (on_host.next(), on_host.next()) {
        (Some(_), Some(_)) => bail!(
            "several agents are known at {}: say which one has its HTTP API at {address} (penstock login {address} --token ... --fingerprint ...)",
            address.host
        ),
        (Some(host), None) => host.known().map(Some),
        (None, _) => Ok(None),
    }
}

/// What is to be reached at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// An agent's port for transfers.
    Mover,
    /// An agent's HTTP API.
    AgentApi,
    /// A controller's HTTP API.
    Controller,
}

/// The line for a service of which nothing is known.
pub(crate) fn unknown(service: Service, address: &Address) -> anyhow::Error {
    let rest = "--token ... --fingerprint ...";
    if let Ok(state) = default_directory()
        && address.is_local()
    {
        let what = if service == Service::Controller { "controller" } else { "agent" };
        return anyhow!(
            "no token for {address} is known: no {what} was started with the state directory {}; set PENSTOCK_STATE to the {what}'s, or run penstock login {address} {rest}",
            state.display()
        );
    }
    match service {
        Service::Mover => anyhow!(
            "no token for {address} is known: run the line that its agent printed at its first start (penstock login {address} {rest})"
        ),
        Service::AgentApi => anyhow!(
            "no token for {address} is known: run the line that its agent printed at its first start (penstock login {} {rest}), which holds for its HTTP port too",
            Address { port: MOVER_PORT, ..address.clone() }
        ),
        Service::Controller => anyhow!(
            "no token for {address} is known: log in to the controller's HTTP port (penstock login {address} {rest}); its operator gives both"
        ),
    }
}

fn own(state: &State, address: &Address) -> anyhow::Result<Option<Known>> {
    if !address.is_local() {
        return Ok(None);
    }
    let known = |own: penstock_agent::state::Credentials| Known {
        fingerprint: own.identity.fingerprint(),
        token: own.token,
        own: None,
    };
    Ok(state.existing_credentials()?.map(known))
}

fn read(state: &State) -> anyhow::Result<Hosts> {
    let Some(text) = state.read_secret(FILE)? else { return Ok(Hosts::default()) };
    toml::from_str(&text).map_err(|error| {
        // Not the line itself: it may hold a token.
        let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
        let path = state.path().join(FILE);
        anyhow!(
            "{}:{line}: {}: mend it, or remove it and log in again",
            path.display(),
            error.message()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text, MOVER_PORT).unwrap()
    }

    fn known(byte: u8) -> Known {
        Known {
            token: format!("token-number-{byte}-of-many"),
            fingerprint: Fingerprint([byte; 32]),
            own: (byte == 3).then(|| Own { certificate: "/c".into(), key: "/k".into() }),
        }
    }

    #[test]
    fn one_spelling_for_each_address() {
        for (text, one) in [
            ("DTN1.Example.org", "dtn1.example.org:8620"),
            ("[0:0::1]:99", "[::1]:99"),
            ("::1", "[::1]:8620"),
            ("10.0.0.1", "10.0.0.1:8620"),
        ] {
            assert_eq!(address(text).to_string(), one);
        }
        assert!(Address::parse("penstock://x/", 1).is_err());
        assert!(address("127.0.0.9").is_local() && address("[::1]").is_local());
        assert!(!address("192.0.2.1").is_local() && !address("no-such-host.invalid").is_local());
    }

    #[test]
    fn what_was_stored_is_found_and_kept_secret() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        let (one, two) = (address("dtn1.invalid"), address("dtn1.invalid:99"));
        store(&state, &one, &known(1)).unwrap();
        assert_eq!(find(&state, &one).unwrap(), Some(known(1)));
        assert_eq!(find(&state, &two).unwrap(), None);
        assert_eq!(find_api(&state, &address("dtn1.invalid:8621")).unwrap(), Some(known(1)));
        store(&state, &one, &known(2)).unwrap();
        store(&state, &two, &known(3)).unwrap();
        assert_eq!(find(&state, &two).unwrap(), Some(known(3)));
        assert_eq!(find(&state, &one).unwrap(), Some(known(2)));
        assert!(find_api(&state, &address("dtn1.invalid:8621")).is_err());
        let mode = std::fs::metadata(directory.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn an_agent_of_the_same_state_needs_no_login() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        let local = address("127.0.0.1:1234");
        assert_eq!(find(&state, &local).unwrap(), None);
        let own = state.credentials().unwrap();
        let found = find(&state, &local).unwrap().unwrap();
        assert_eq!((found.token, found.fingerprint), (own.token, own.identity.fingerprint()));
        assert_eq!(find(&state, &address("192.0.2.1")).unwrap(), None);
        store(&state, &local, &known(1)).unwrap();
        assert_eq!(find(&state, &local).unwrap(), Some(known(1)), "a login comes first");
    }

    #[test]
    fn unknown_services_name_their_port() {
        let line = |service, text: &str| unknown(service, &address(text)).to_string();
        let mover = line(Service::Mover, "192.0.2.1:8620");
        assert!(mover.contains("(penstock login 192.0.2.1:8620 --token"), "{mover}");
        let api = line(Service::AgentApi, "192.0.2.1:8621");
        assert!(api.contains("penstock login 192.0.2.1:8620 --token"), "{api}");
        let controller = line(Service::Controller, "192.0.2.1:8621");
        assert!(controller.contains("(penstock login 192.0.2.1:8621 --token"), "{controller}");
        assert!(
            controller.contains("HTTP port") && !controller.contains("printed"),
            "{controller}"
        );
    }

    #[test]
    fn certificate_identifies_the_agent() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        let ask = |shown: Fingerprint| {
            find_by_certificate(&state, |known| Ok(known.contains(&shown).then_some(shown)))
        };
        assert_eq!(ask(Fingerprint([1; 32])).unwrap(), None);
        store(&state, &address("dtn1.invalid"), &known(1)).unwrap();
        store(&state, &address("dtn2.invalid"), &known(2)).unwrap();
        assert_eq!(ask(Fingerprint([2; 32])).unwrap(), Some(known(2)));
        assert_eq!(ask(Fingerprint([4; 32])).unwrap(), None);
    }

    #[test]
    fn a_broken_file_is_named_with_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        state.write(FILE, b"[[host]]\naddress = \"x\"\ntoken = 3\n", 0o600).unwrap();
        let error = find(&state, &address("x")).unwrap_err().to_string();
        assert!(error.contains("hosts.toml:3: "), "{error}");
    }
}
