//! `penstock login`: stores an agent's certificate fingerprint and the credentials for it.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use penstock_agent::client::{AgentClient, ClientError};
use penstock_agent::config::MOVER_PORT;
use penstock_agent::http::api::ApiClientFacts;
use penstock_agent::tokens::{TOKEN_BYTES_MAX, check_token};
use penstock_identity::Fingerprint;
use penstock_mover::{
    CleartextNetworks, CopyError, PeerConnector, StreamDscp, TcpDial, TransportChoice,
};
use penstock_protocol::open::{Protection, Refusal, RefusalKind};

use crate::credentials::{self, AgentAddress, AgentCredentials, ClientCertificate};
use crate::exit::{Code, CommandFailure, OrExit, say};
use crate::json::node::LoggedIn;

/// Limit on a TCP connection attempt.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Store the certificate fingerprint of an agent, and the token or certificate to authenticate with
#[derive(Debug, clap::Args)]
#[command(after_help = "\
An agent prints the whole line when it starts for the first time; its operator finds the token in the \
agent's state directory, or gives you one of your own. The command checks the login at the agent: if the certificate \
differs, the token is not valid, or no agent answers there, it stores nothing. If the host cannot be reached it stores \
the login unchecked. Logins are in hosts.toml in your state directory, readable for you alone.

A login is valid for every name, address and port of the agent: at a new address the certificate identifies it. For a \
controller log in to its HTTP port (HOST:8621).

With --bearer no token is stored: each command takes that of BEARER_TOKEN, of the file BEARER_TOKEN_FILE, or of the file bt_u \
and the number of the user in $XDG_RUNTIME_DIR or /tmp, as tokens of grid issuers are short-lived.

A certificate of your own takes the place of a token where the agent's operator has named its \
fingerprint; its files stay where they are and are read each time.

Examples:
  penstock login dtn1.example.org --token TOKEN --fingerprint SHA256:HEX
  penstock login dtn1:8620 --fingerprint SHA256:HEX --token-file - < token
  penstock login dtn1 --fingerprint SHA256:HEX --certificate me.crt --key me.key

The agent prints TOKEN and HEX at its first start.")]
#[group(skip)]
pub(crate) struct LoginArgs {
    /// The agent, as HOST or HOST:PORT
    #[arg(value_name = "HOST[:PORT]")]
    host: String,
    /// The token; other users of this machine can see it while the command runs
    #[arg(long, required_unless_present_any = ["token_file", "bearer", "certificate"], conflicts_with = "token_file")]
    token: Option<String>,
    /// Read the token from this file, or from standard input with -
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Take the token from the environment of each command: BEARER_TOKEN, BEARER_TOKEN_FILE, bt_uUID
    #[arg(long, conflicts_with_all = ["token", "token_file"])]
    bearer: bool,
    /// Client certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// Its private key, as PEM, readable only by you
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// SHA-256 of the agent's certificate, as SHA256: and 64 hexadecimal digits
    #[arg(long, value_name = "SHA256:HEX")]
    fingerprint: Fingerprint,
    /// Print one JSON object with address, known_as (null without an answer) and error; docs/json.md has its fields
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: LoginArgs) -> Result<Code, CommandFailure> {
    let address = AgentAddress::parse(&args.host, MOVER_PORT).or_exit(Code::Usage)?;
    let token = match (&args.token, &args.token_file) {
        (Some(token), _) => token.clone(),
        (None, Some(file)) => read_token(file)?,
        (None, None) if args.bearer => credentials::discover_bearer().or_exit(Code::Usage)?,
        (None, None) => String::new(),
    };
    let token = token.trim().to_owned();
    let own = args.certificate.as_ref().zip(args.key.as_ref());
    if own.is_none() || !token.is_empty() {
        check_token(&token).map_err(|error| anyhow!("the token {error}")).or_exit(Code::Usage)?;
    }
    let absolute = |path: &PathBuf| std::path::absolute(path).context("no current directory");
    let own = match own {
        Some((certificate, key)) => {
            Some(ClientCertificate { certificate: absolute(certificate)?, key: absolute(key)? })
        }
        None => None,
    };
    let known =
        AgentCredentials { token, is_bearer: args.bearer, fingerprint: args.fingerprint, own };
    let asked = match ask(&address, &known)? {
        // It may be the port of an HTTP API, the only port of a controller.
        Err(error @ CopyError::Unreachable(..)) => ask_api(&address, &known, error),
        Err(error) => Err(LoginFailure::Other(error)),
        Ok(name) => Ok(AcceptedBy::Mover(name)),
    };
    let (service, why) = match asked {
        Ok(service) => (Some(service), None),
        Err(LoginFailure::Unreachable(why)) => (None, Some(why)),
        Err(LoginFailure::Other(error)) => {
            if args.json {
                print_json(&address, None, Some(&error.to_string()))?;
            }
            return Err(refused(&address, &known, &error));
        }
    };
    credentials::store(&credentials::state()?, &address, &known)?;
    if args.json {
        let name = service.as_ref().map(AcceptedBy::client_name);
        print_json(&address, name, why.as_deref())?;
        return Ok(Code::Done);
    }
    let text = match service {
        None => format!("{address} is kept; copy with: penstock cp FILE penstock://{address}/"),
        Some(AcceptedBy::Mover(name)) => format!(
            "{address} is known now and knows you as {name}; copy with: penstock cp FILE penstock://{address}/"
        ),
        Some(AcceptedBy::AgentApi { name, scopes }) => {
            let scopes = match scopes.as_slice() {
                [] => String::new(),
                all => format!(" with {}", all.join(", ")),
            };
            format!(
                "{address} is known now: it is the HTTP API of an agent, which knows you as {name}{scopes}; see penstock transfers --http {address}"
            )
        }
        Some(AcceptedBy::ControllerApi) => format!(
            "{address} is known now: it is the HTTP API of a controller, which takes your token; see penstock list --controller {address}"
        ),
    };
    writeln!(std::io::stdout(), "{text}")?;
    if let Some(why) = why {
        say(format_args!("{why}; the login is kept unchecked"));
    }
    Ok(Code::Done)
}

/// Service that accepted the login.
enum AcceptedBy {
    /// An agent's port for transfers; contains the client's name there.
    Mover(String),
    /// An agent's HTTP API.
    AgentApi {
        /// Name of the client there.
        name: String,
        /// Scopes of an issued token.
        scopes: Vec<String>,
    },
    /// A controller's HTTP API.
    ControllerApi,
}

impl AcceptedBy {
    /// Name of the client at the service.
    fn client_name(&self) -> &str {
        match self {
            Self::Mover(name) | Self::AgentApi { name, .. } => name,
            Self::ControllerApi => "a client of the controller",
        }
    }
}

/// Reason why no service accepted the login.
enum LoginFailure {
    /// No answer: the login may be valid.
    Unreachable(String),
    /// The agent refuses it, or another program listens there.
    Other(CopyError),
}

/// Tries the HTTP API at `address`, after the mover's protocol failed with `error`. The first request goes without the
/// token, so that it does not leak to another server.
fn ask_api(
    address: &AgentAddress,
    known: &AgentCredentials,
    error: CopyError,
) -> Result<AcceptedBy, LoginFailure> {
    let CopyError::Unreachable(shown, why) = &error else { return Err(LoginFailure::Other(error)) };
    if !takes_connections(address) {
        return Err(LoginFailure::Unreachable(error.to_string()));
    }
    let client =
        |token: &str| AgentClient::new(&address.to_string(), token, Some(known.fingerprint));
    let is_api =
        |client: AgentClient| matches!(client.agent(), Ok(_) | Err(ClientError::Refused { .. }));
    if !client("").is_ok_and(is_api) {
        return Err(LoginFailure::Other(error));
    }
    let refuse = |text: String| {
        let refusal = Refusal::new(RefusalKind::Identity, text);
        Err(LoginFailure::Other(CopyError::Refused(shown.clone(), refusal)))
    };
    if known.token.is_empty() {
        return refuse("an HTTP API takes a token, no certificate".to_owned());
    }
    let Ok(client) = client(&known.token) else {
        return Err(LoginFailure::Unreachable(why.clone()));
    };
    let refusal = match client.agent() {
        // Without TLS on loopback only the agent's own statement of its fingerprint can be checked.
        Ok(facts) if facts.fingerprint != known.fingerprint.to_string() => {
            return Err(LoginFailure::Other(CopyError::Certificate(shown.clone())));
        }
        Ok(facts) => match facts.client {
            Some(ApiClientFacts { name, scopes }) => {
                return Ok(AcceptedBy::AgentApi { name, scopes });
            }
            // The token of a controller beside it, or of an issuer.
            None => None,
        },
        // 403 with a client's name: the token is valid and for files only. Without one it is that of another role.
        Err(ClientError::Refused { status, text, .. }) => match named_in(&text) {
            Some(name) if status == 403 => {
                return Ok(AcceptedBy::AgentApi { name: name.to_owned(), scopes: Vec::new() });
            }
            _ => Some(text),
        },
        Err(error) => return Err(LoginFailure::Unreachable(error.to_string())),
    };
    let get = |path: &str| client.ask::<serde_json::Value>("GET", path, None::<&()>);
    match get("/api/v1/requests?limit=1") {
        Ok(_) => Ok(AcceptedBy::ControllerApi),
        _ if get("/api/v1/disks").is_ok() => {
            let name = "a host of its disks".to_owned();
            Ok(AcceptedBy::AgentApi { name, scopes: Vec::new() })
        }
        Err(ClientError::Refused { status: 403, .. }) => Ok(AcceptedBy::ControllerApi),
        _ => match refusal {
            Some(text) => refuse(text),
            None => {
                let name = "a client that may read".to_owned();
                Ok(AcceptedBy::AgentApi { name, scopes: Vec::new() })
            }
        },
    }
}

/// Returns the quoted part of a text.
fn named_in(text: &str) -> Option<&str> {
    text.split('\'').nth(1)
}

/// Connects to the mover and returns the client's name there.
fn ask(
    address: &AgentAddress,
    known: &AgentCredentials,
) -> Result<Result<String, CopyError>, CommandFailure> {
    let tls = known.tls().or_exit(Code::Usage)?;
    let dial = match TcpDial::new(&address.host, address.port, &[], &[], None) {
        Ok(dial) => dial,
        Err(error) => {
            let why = penstock_sys::fs::describe(&error);
            return Ok(Err(CopyError::Unreachable(address.to_string(), why)));
        }
    };
    let contact = PeerConnector {
        dial: Arc::new(dial),
        tls,
        token: known.token.clone(),
        protection: Protection::Full,
        transport: TransportChoice::Tcp,
        cleartext: CleartextNetworks::default(),
        dscp: StreamDscp::default(),
        give_up_after: Duration::ZERO,
    };
    Ok(contact.check())
}

/// True if a program accepts connections at the address.
fn takes_connections(address: &AgentAddress) -> bool {
    let Ok(mut all) = (address.host.as_str(), address.port).to_socket_addrs() else { return false };
    all.any(|one| TcpStream::connect_timeout(&one, ANSWER_WITHIN).is_ok())
}

fn refused(address: &AgentAddress, known: &AgentCredentials, error: &CopyError) -> CommandFailure {
    let error = match error {
        CopyError::Certificate(_) => anyhow!(
            "{address} has not the certificate {}: take the fingerprint that its agent prints; nothing is kept",
            known.fingerprint
        ),
        CopyError::Unreachable(_, why) => {
            let error = anyhow!(
                "{address} answers, but not as an agent does: {why}: check host and port; nothing is kept"
            );
            return CommandFailure::new(Code::Failed, error);
        }
        error => anyhow!("{error}; nothing is kept"),
    };
    CommandFailure::new(Code::Refused, error)
}

fn print_json(
    address: &AgentAddress,
    name: Option<&str>,
    error: Option<&str>,
) -> anyhow::Result<()> {
    Ok(crate::json::print(&LoggedIn {
        address: address.to_string(),
        known_as: name.map(str::to_owned),
        error: error.map(str::to_owned),
    })?)
}

fn read_token(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let limit = 2 * TOKEN_BYTES_MAX as u64;
    let read = if file == Path::new("-") {
        std::io::stdin().take(limit).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(limit).read_to_string(&mut text))
    };
    read.with_context(|| format!("cannot read the token from {}", file.display()))?;
    Ok(text)
}
