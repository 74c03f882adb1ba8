//! Remote end that ssh starts: an agent for one user and one command, which ends with ssh.
//!
//! It listens on a free port, prints its port, token and certificate fingerprint for the client, and ends at the end of
//! its standard input. The token is valid for this process only. Data flows to the port directly or inside ssh.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use penstock_identity::{Fingerprint, Identity};
use penstock_mover::{
    Agent, AgentConfig, AgentLimits, Caller, Dial, DscpPolicy, Gatekeeper, ResolvedPath, SshDial,
    random,
};
use penstock_protocol::manifest::display_path;
use penstock_protocol::open::{Refusal, RefusalKind};
use penstock_scopes::PathAccess;
use serde::{Deserialize, Serialize};

use super::CpArgs;
use super::local::{caller, place_of_user};
use crate::exit::{Code, CommandFailure};

/// Serve one command of the user who started it by ssh.
#[derive(Debug, Args)]
pub(crate) struct FarEndArgs {
    /// Address and port to listen on; port 0 takes any that is free
    #[arg(long, value_name = "ADDR:PORT", default_value = "[::]:0")]
    pub listen: SocketAddr,
}

/// Time that ssh has to end by itself.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// First line of the remote's standard output.
#[derive(Debug, Serialize, Deserialize)]
struct Greeting {
    penstock: String,
    port: u16,
    fingerprint: String,
    token: String,
}

struct SingleToken(String);

impl Gatekeeper for SingleToken {
    fn authenticate(
        &self,
        token: &str,
        _certificate: Option<&Fingerprint>,
        _peer: &str,
    ) -> Result<Caller, Refusal> {
        let same = token.len() == self.0.len()
            && token.bytes().zip(self.0.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0;
        if same {
            Ok(caller())
        } else {
            Err(Refusal::new(RefusalKind::Identity, "this end serves one command of one user"))
        }
    }

    fn place(
        &self,
        _caller: &Caller,
        path: &[u8],
        _access: PathAccess,
    ) -> Result<ResolvedPath, Refusal> {
        place_of_user(&expand_home(path)?)
    }

    fn trusts_owners(&self) -> bool {
        true
    }
}

/// Expands a leading `~` to the user's home, as no shell does it here.
fn expand_home(path: &[u8]) -> Result<Cow<'_, [u8]>, Refusal> {
    let Some(rest) = path.strip_prefix(b"~") else { return Ok(Cow::Borrowed(path)) };
    let refuse = |why: &str| {
        Err(Refusal::new(RefusalKind::NotFound, format!("{}: {why}", display_path(path))))
    };
    if !matches!(rest, [] | [b'/', ..]) {
        return refuse(
            "the homes of others are not looked up: write the whole path, or ./~ for a name",
        );
    }
    match std::env::home_dir() {
        Some(home) if home.is_absolute() => {
            Ok(Cow::Owned([home.as_os_str().as_bytes(), rest].concat()))
        }
        _ => refuse("this user has no home there: write the whole path"),
    }
}

/// Serves until standard input ends.
pub(crate) fn run(args: &FarEndArgs) -> Result<Code, CommandFailure> {
    serve(args)?;
    Ok(Code::Done)
}

fn serve(args: &FarEndArgs) -> anyhow::Result<()> {
    let identity = Arc::new(Identity::generate()?);
    let token: String = random::<16>().iter().map(|byte| format!("{byte:02x}")).collect();
    let config = |listen| -> anyhow::Result<AgentConfig> {
        Ok(AgentConfig {
            listen: vec![listen],
            identity: Arc::clone(&identity),
            gatekeeper: Arc::new(SingleToken(token.clone())),
            state: super::plan::state_directory()?,
            limits: AgentLimits {
                transfers: 2,
                dscp: DscpPolicy::of_operator(),
                ..AgentLimits::default()
            },
            collectors: Vec::new(),
            marker: penstock_marker::DEFAULT_PIN.into(),
            homes: None,
            ended_log: None,
            decline_nettest: penstock_nettest::decline,
        })
    };
    // A machine without IPv6 has the same port on IPv4.
    let agent = match Agent::start(config(args.listen)?) {
        Err(_) if args.listen.is_ipv6() && args.listen.ip().is_unspecified() => {
            Agent::start(config(SocketAddr::from(([0, 0, 0, 0], args.listen.port())))?)?
        }
        other => other?,
    };
    let port = agent.addresses().first().map_or(0, SocketAddr::port);
    let greeting = Greeting {
        penstock: env!("CARGO_PKG_VERSION").to_owned(),
        port,
        fingerprint: identity.fingerprint().to_string(),
        token,
    };
    let mut out = std::io::stdout();
    writeln!(out, "{}", serde_json::to_string(&greeting)?)?;
    out.flush()?;
    // Standard input carries no data; its end ends the command.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    agent.shut_down(Duration::from_secs(2));
    Ok(())
}

/// A started remote process; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct RemoteProcess {
    child: Child,
    login: String,
    greeting: Greeting,
    fingerprint: Fingerprint,
}

impl Drop for RemoteProcess {
    fn drop(&mut self) {
        // End of input ends the remote process.
        drop(self.child.stdin.take());
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < EXIT_TIMEOUT {
            std::thread::sleep(Duration::from_millis(10));
        }
        // No effect on a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RemoteProcess {
    /// Message with the exit status, if the process has ended by itself.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("penstock on {} ended: {status}", self.login))
    }

    /// Port on which the remote listens.
    pub(crate) fn port(&self) -> u16 {
        self.greeting.port
    }

    /// Token that the remote accepts.
    pub(crate) fn token(&self) -> &str {
        &self.greeting.token
    }

    /// Fingerprint of the remote's certificate.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Opens connections to the remote inside ssh.
    pub(crate) fn dial(&self, args: &CpArgs, login: &str) -> Arc<dyn Dial> {
        Arc::new(SshDial::new(words(&args.ssh), login.to_owned(), self.greeting.port))
    }
}

fn words(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_owned).collect()
}

/// Starts penstock at `login` by ssh.
///
/// # Errors
/// When ssh or penstock there does not start.
pub(crate) fn start(args: &CpArgs, login: &str) -> anyhow::Result<RemoteProcess> {
    let ssh = words(&args.ssh);
    let (program, options) = ssh.split_first().context("--ssh names no command")?;
    let mut child = Command::new(program)
        .args(options)
        .arg("--")
        .arg(login)
        .arg(format!("{} far-end", args.remote_command))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| {
            anyhow!("cannot start {program}: {error}: install it or name it with --ssh")
        })?;
    let output = child.stdout.take().context("ssh has no output")?;
    let mut line = String::new();
    let mut output = BufReader::new(output.take(64 * 1024));
    // Skip lines that a login shell prints first.
    let greeting = loop {
        line.clear();
        if output.read_line(&mut line).with_context(|| login.to_owned())? == 0 {
            let _ = child.wait();
            bail!(
                "{login}: penstock did not start there: see what ssh said above; if it is installed \
                 elsewhere, name it with --remote-command"
            );
        }
        if let Ok(greeting) = serde_json::from_str::<Greeting>(line.trim()) {
            break greeting;
        }
    };
    let fingerprint = greeting.fingerprint.parse().map_err(|error| anyhow!("{login}: {error}"))?;
    Ok(RemoteProcess { child, login: login.to_owned(), greeting, fingerprint })
}
