//! Credentials for agents: the token to send and the certificate to expect, for each.
//!
//! `penstock login` stores them in `hosts.toml` of the state directory. An agent on this machine with the same state
//! directory needs no login: its certificate and token are used for every local address. A login is for the agent, not
//! for one spelling of its address: at an unknown address the certificate identifies the agent. A token is only sent
//! inside TLS to the agent with the certificate that belongs to it.
//!
//! Errors name the command to log in.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use penstock_agent::config::MOVER_PORT;
use penstock_daemon::config::values::ListenAddress;
use penstock_daemon::state::{StateDir, default_directory};
use penstock_identity::{Fingerprint, Identity, tls_client_config};
use penstock_mover::{TcpDial, certificate_of};
use penstock_sys::net::is_own_address;
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};

mod bearer;

pub(crate) use bearer::discover as discover_bearer;

const FILE: &str = "hosts.toml";

/// Normalised address of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentAddress {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl AgentAddress {
    /// Reads `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`.
    pub(crate) fn parse(text: &str, default_port: u16) -> anyhow::Result<Self> {
        let Ok(ListenAddress { host, port }) = text.parse() else {
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

    /// True if the address resolves to this machine only.
    pub(crate) fn is_local(&self) -> bool {
        self.resolves_to(is_own_address)
    }

    /// True if the address resolves to loopback addresses only.
    fn is_loopback(&self) -> bool {
        self.resolves_to(|ip| ip.is_loopback())
    }

    /// True if the address resolves, and all its addresses are such.
    fn resolves_to(&self, is_such: impl Fn(IpAddr) -> bool) -> bool {
        let Ok(addresses) = (self.host.as_str(), self.port).to_socket_addrs() else { return false };
        let mut addresses = addresses.peekable();
        addresses.peek().is_some() && addresses.all(|address| is_such(address.ip()))
    }
}

impl std::fmt::Display for AgentAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Credentials for one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentCredentials {
    /// Token to send; empty for a login by client certificate.
    pub(crate) token: String,
    /// The token comes from the environment of each command ([`bearer`]) and is not stored.
    pub(crate) is_bearer: bool,
    /// Fingerprint of the agent's certificate.
    pub(crate) fingerprint: Fingerprint,
    /// Client certificate to send.
    pub(crate) own: Option<ClientCertificate>,
}

/// PEM files of a client's certificate and key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientCertificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl ClientCertificate {
    /// Reads certificate and key.
    ///
    /// # Errors
    /// When they are not a certificate and its key, or other users can read the key.
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

impl AgentCredentials {
    /// Takes the token from the environment where the login says so.
    fn with_bearer(self) -> anyhow::Result<Self> {
        match self.is_bearer {
            true => Ok(Self { token: bearer::discover()?, ..self }),
            false => Ok(self),
        }
    }

    /// TLS configuration that accepts only this agent and sends the client certificate, if any.
    ///
    /// # Errors
    /// When the client certificate cannot be read.
    pub(crate) fn tls(&self) -> anyhow::Result<Arc<ClientConfig>> {
        let own = self.own.as_ref().map(ClientCertificate::read).transpose()?;
        Ok(tls_client_config(self.fingerprint, own.as_ref())?)
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostsFile {
    #[serde(default)]
    host: Vec<KnownHost>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownHost {
    address: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    token: String,
    /// True for a token from the environment of each command.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    bearer: bool,
    fingerprint: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<PathBuf>,
}

impl KnownHost {
    fn known(&self) -> anyhow::Result<AgentCredentials> {
        let fingerprint = self.fingerprint.parse();
        let fingerprint =
            fingerprint.with_context(|| format!("{FILE}: {}: log in again", self.address))?;
        let own = self.certificate.clone().zip(self.key.clone());
        let own = own.map(|(certificate, key)| ClientCertificate { certificate, key });
        let token = self.token.clone();
        Ok(AgentCredentials { token, is_bearer: self.bearer, fingerprint, own })
    }
}

/// Opens the state directory of this user.
pub(crate) fn state() -> anyhow::Result<StateDir> {
    Ok(StateDir::open(&default_directory()?)?)
}

/// Stores the credentials for `address`, replacing earlier ones.
pub(crate) fn store(
    state: &StateDir,
    address: &AgentAddress,
    known: &AgentCredentials,
) -> anyhow::Result<()> {
    let _lock = state.lock()?;
    let mut hosts = read(state)?;
    let address = address.to_string();
    hosts.host.retain(|host| host.address != address);
    let bearer = known.is_bearer;
    let token = if bearer { String::new() } else { known.token.clone() };
    let fingerprint = known.fingerprint.to_string();
    let own = known.own.clone();
    let (certificate, key) = own.map(|own| (own.certificate, own.key)).unzip();
    hosts.host.push(KnownHost { address, token, bearer, fingerprint, certificate, key });
    hosts.host.sort_by(|a, b| a.address.cmp(&b.address));
    let text = toml::to_string(&hosts).context("hosts cannot be written as TOML")?;
    Ok(state.write(FILE, text.as_bytes(), 0o600)?)
}

/// Returns true if credentials for `address` are stored.
pub(crate) fn is_stored(state: &StateDir, address: &AgentAddress) -> anyhow::Result<bool> {
    let name = address.to_string();
    Ok(read(state)?.host.iter().any(|host| host.address == name))
}

/// Finds credentials by the address of an agent's mover.
pub(crate) fn find(
    state: &StateDir,
    address: &AgentAddress,
) -> anyhow::Result<Option<AgentCredentials>> {
    let name = address.to_string();
    if let Some(host) = read(state)?.host.iter().find(|host| host.address == name) {
        return host.known()?.with_bearer().map(Some);
    }
    own(state, address)
}

/// Finds credentials by the address of an agent's mover, or by the certificate that it presents.
pub(crate) fn find_agent(
    state: &StateDir,
    address: &AgentAddress,
) -> anyhow::Result<Option<AgentCredentials>> {
    let known = find(state, address)?;
    if known.is_some() {
        return Ok(known);
    }
    find_by_certificate(state, |fingerprints| {
        let dial = TcpDial::new(&address.host, address.port, &[], &[], None)?;
        certificate_of(&dial, fingerprints).map(Some)
    })
}

/// Finds credentials by certificate: `ask` connects and selects among those of `hosts.toml`. None if the agent is
/// unreachable or presents another certificate.
fn find_by_certificate(
    state: &StateDir,
    ask: impl FnOnce(Vec<Fingerprint>) -> io::Result<Option<Fingerprint>>,
) -> anyhow::Result<Option<AgentCredentials>> {
    let hosts = read(state)?.host;
    let known: Vec<AgentCredentials> =
        hosts.iter().map(KnownHost::known).collect::<anyhow::Result<_>>()?;
    if known.is_empty() {
        return Ok(None);
    }
    let shown =
        ask(known.iter().map(|known| known.fingerprint).collect()).unwrap_or_else(|error| {
            tracing::debug!("no certificate that is known: {error}");
            None
        });
    let known = known.into_iter().find(|known| Some(known.fingerprint) == shown);
    known.map(AgentCredentials::with_bearer).transpose()
}

/// Finds credentials by the address of an HTTP API. A login to the mover's port is valid too, as both ports of an agent
/// share token and certificate.
pub(crate) fn find_api(
    state: &StateDir,
    address: &AgentAddress,
) -> anyhow::Result<Option<AgentCredentials>> {
    if let Some(known) = find_api_by_name(state, address)? {
        return Ok(Some(known));
    }
    find_by_certificate(state, |fingerprints| {
        penstock_agent::client::certificate_of(&address.to_string(), fingerprints)
    })
}

fn find_api_by_name(
    state: &StateDir,
    address: &AgentAddress,
) -> anyhow::Result<Option<AgentCredentials>> {
    if let Some(known) = find(state, address)? {
        return Ok(Some(known));
    }
    let hosts = read(state)?.host;
    let is_loopback = address.is_loopback();
    let on_host = |host: &&KnownHost| {
        AgentAddress::parse(&host.address, MOVER_PORT)
            .is_ok_and(|known| known.host == address.host || (is_loopback && known.is_loopback()))
    };
    let mut on_host = hosts.iter().filter(on_host);
    match (on_host.next(), on_host.next()) {
        (Some(_), Some(_)) => bail!(
            "several agents are known at {}: say which one has its HTTP API at {address} (penstock login {address} --token ... --fingerprint ...)",
            address.host
        ),
        (Some(host), None) => host.known()?.with_bearer().map(Some),
        (None, _) => Ok(None),
    }
}

/// Service at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// An agent's port for transfers.
    Mover,
    /// An agent's HTTP API.
    AgentApi,
    /// A controller's HTTP API.
    Controller,
}

/// Error for a service without credentials.
pub(crate) fn unknown(service: Service, address: &AgentAddress) -> anyhow::Error {
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
            AgentAddress { port: MOVER_PORT, ..address.clone() }
        ),
        Service::Controller => anyhow!(
            "no token for {address} is known: log in to the controller's HTTP port (penstock login {address} {rest}); its operator gives both"
        ),
    }
}

fn own(state: &StateDir, address: &AgentAddress) -> anyhow::Result<Option<AgentCredentials>> {
    if !address.is_local() {
        return Ok(None);
    }
    let known = |own: penstock_daemon::state::Credentials| AgentCredentials {
        fingerprint: own.identity.fingerprint(),
        token: own.token,
        is_bearer: false,
        own: None,
    };
    Ok(state.existing_credentials()?.map(known))
}

fn read(state: &StateDir) -> anyhow::Result<HostsFile> {
    let Some(text) = state.read_secret(FILE)? else { return Ok(HostsFile::default()) };
    toml::from_str(&text).map_err(|error| {
        // Do not print the line, which may contain a token.
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

    fn address(text: &str) -> AgentAddress {
        AgentAddress::parse(text, MOVER_PORT).unwrap()
    }

    fn known(byte: u8) -> AgentCredentials {
        AgentCredentials {
            token: format!("token-number-{byte}-of-many"),
            is_bearer: false,
            fingerprint: Fingerprint([byte; 32]),
            own: (byte == 3)
                .then(|| ClientCertificate { certificate: "/c".into(), key: "/k".into() }),
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
        assert!(AgentAddress::parse("penstock://x/", 1).is_err());
        assert!(address("127.0.0.9").is_local() && address("[::1]").is_local());
        assert!(!address("192.0.2.1").is_local() && !address("no-such-host.invalid").is_local());
    }

    #[test]
    fn stored_login_is_found_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path()).unwrap();
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
        store(&state, &address("127.0.0.1:8620"), &known(4)).unwrap();
        for loopback in ["localhost:8621", "127.0.0.2:8621", "[::1]:8621"] {
            assert_eq!(find_api(&state, &address(loopback)).unwrap(), Some(known(4)));
        }
        let mode = std::fs::metadata(directory.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn same_state_directory_needs_no_login() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path()).unwrap();
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
        let state = StateDir::open(directory.path()).unwrap();
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
    fn invalid_hosts_file_names_the_line() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path()).unwrap();
        state.write(FILE, b"[[host]]\naddress = \"x\"\ntoken = 3\n", 0o600).unwrap();
        let error = find(&state, &address("x")).unwrap_err().to_string();
        assert!(error.contains("hosts.toml:3: "), "{error}");
    }
}
