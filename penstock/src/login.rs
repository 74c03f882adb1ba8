//! `penstock login`: remembers an agent's token and certificate, so that `cp` may go there.

use std::io::Read;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use penstock_agent::config::MOVER_PORT;
use penstock_agent::tokens::{TOKEN_BYTES_MAX, check_token};
use penstock_mover::identity::Fingerprint;

use crate::credentials::{self, Address, Known};
use crate::exit::{Code, Failure, OrExit};

/// How long to look whether somebody is there.
const LOOK: Duration = Duration::from_secs(3);

/// Remember the token and the certificate of an agent
#[derive(Debug, clap::Args)]
#[command(after_help = "\
An agent prints the whole line when it starts for the first time; its operator finds the token in the \
agent's state directory, or gives you one of your own. What you give is kept in hosts.toml in your state \
directory, for your eyes only. The agent's certificate must have exactly this fingerprint.

Examples:
  penstock login dtn1.example.org --token 3f9c... --fingerprint SHA256:8a41...
  penstock login dtn1:8620 --fingerprint SHA256:8a41... --token-file - < token")]
pub(crate) struct Args {
    /// The agent, as HOST or HOST:PORT
    #[arg(value_name = "HOST[:PORT]")]
    host: String,
    /// The token; other users of this machine can see it while the command runs
    #[arg(long, required_unless_present = "token_file", conflicts_with = "token_file")]
    token: Option<String>,
    /// Read the token from this file, or from standard input with -
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// SHA-256 of the agent's certificate, as SHA256: and 64 hexadecimal digits
    #[arg(long, value_name = "SHA256:HEX")]
    fingerprint: Fingerprint,
}

pub(crate) fn run(args: Args) -> Result<Code, Failure> {
    let address = Address::parse(&args.host, MOVER_PORT).or_exit(Code::Usage)?;
    let token = match (&args.token, &args.token_file) {
        (Some(token), _) => token.clone(),
        (None, Some(file)) => read_token(file)?,
        (None, None) => {
            return Err(Failure::new(Code::Usage, anyhow!("give --token or --token-file")));
        }
    };
    let token = token.trim().to_owned();
    check_token(&token).map_err(|error| anyhow!("the token {error}")).or_exit(Code::Usage)?;
    let state = credentials::state()?;
    let known = Known { token, fingerprint: args.fingerprint };
    credentials::store(&state, &address, &known)?;
    println!("{address} is known now; copy with: penstock cp FILE penstock://{address}/");
    if let Err(why) = look(&address) {
        eprintln!(
            "penstock: nobody answers at {address} now ({why}); the login is kept all the same"
        );
    }
    Ok(Code::Done)
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

/// Whether anybody listens there. Who it is shows at the first copy, by the certificate.
fn look(address: &Address) -> Result<(), String> {
    let addresses = (address.host.as_str(), address.port).to_socket_addrs();
    let mut why = "the name has no address".to_owned();
    for address in addresses.map_err(|error| error.to_string())? {
        match TcpStream::connect_timeout(&address, LOOK) {
            Ok(_) => return Ok(()),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}
