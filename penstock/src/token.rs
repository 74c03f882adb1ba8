//! `penstock token`: tokens with scopes and an end for users of this node.
//!
//! The commands write the file of issued tokens in the state directory, and a running node reads it again: they need the
//! user that runs the node, and no network.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use penstock_agent::tokens::check_token_name;
use penstock_daemon::state::{StateDir, default_directory};
use penstock_http::issued_tokens::{
    ISSUED_TOKENS, ISSUED_TOKENS_MAX, IssuedToken, IssuedTokenList,
};
use penstock_scopes::IssuedScope;
use penstock_sys::machine::unix_seconds;
use penstock_units::{display_duration, parse_duration};

use crate::exit::{Code, CommandFailure, OrExit, say};
use crate::json;
use crate::json::token::{CreatedTokenJson, TokenJson, TokenListJson};
use crate::table::table;

/// Longest validity.
const VALID_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Create, list and revoke tokens with scopes and an end, for users of this node
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The token is printed once; the node keeps its SHA-256 alone. Run these commands as the user that runs penstock serve: \
they write issued-tokens.json in its state directory, and a running node reads it at once.

Scopes: read (read everything over the HTTP API), submit:CLASS or submit:* (submit to a controller), operate (change \
everything over the HTTP API), agent:HOST (report to a controller as that host), disk:NAME or disk:* (learn address of \
an exported disk and secrets of its hosts), disk:NAME@NQN (of this host alone), disk.export (export disks below paths that the operator allows), storage.read:/PATH, storage.create:/PATH, storage.modify:/PATH (move files of exports that \
admit NAME).

Examples:
  penstock token create alice --scope read --scope submit:analysis --for 12h
  penstock token create bob --scope storage.read:/data --for 48h
  penstock token list
  penstock token revoke ID")]
pub(crate) struct TokenArgs {
    /// State directory of the node [default: see penstock --help]
    #[arg(long, value_name = "DIR", global = true)]
    state: Option<PathBuf>,
    /// Print one JSON object; docs/json.md has its fields
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TokenCommand {
    /// Create a token and print it
    Create {
        /// Name of the bearer, as who of an export has it
        name: String,
        /// Right of the bearer; give it several times for several
        #[arg(long, value_name = "SCOPE", required = true)]
        scope: Vec<String>,
        /// Time for which the token is valid, at most 366d
        #[arg(long = "for", value_name = "TIME", default_value = "12h", value_parser = parse_duration)]
        valid: Duration,
        /// Most submitted transfers that an agent runs at once for the token
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        transfers: Option<u64>,
    },
    /// List the valid tokens, without their secrets
    List,
    /// Make a token invalid; transfers that it started end
    Revoke {
        /// Id of the token, the token itself, or the name of a bearer whose tokens all end
        id: String,
    },
}

pub(crate) fn run(args: TokenArgs) -> Result<Code, CommandFailure> {
    let path = match args.state {
        Some(path) => path,
        None => default_directory().or_exit(Code::Failed)?,
    };
    // A token is for a node that has run: a directory made here would hide a typing error.
    if !path.is_dir() {
        let path = path.display();
        return Err(anyhow!(
            "{path}: no such directory: give --state the state directory of penstock serve"
        ))
        .or_exit(Code::Failed);
    }
    let state = StateDir::open(&path).or_exit(Code::Failed)?;
    match args.command {
        TokenCommand::Create { name, scope, valid, transfers } => {
            let transfers = transfers.and_then(|count| usize::try_from(count).ok());
            create(&state, &name, scope, valid, transfers, args.json)
        }
        TokenCommand::List => list(&state, args.json),
        TokenCommand::Revoke { id } => revoke(&state, IssuedToken::id_in(&id), args.json),
    }
}

fn create(
    state: &StateDir,
    name: &str,
    scopes: Vec<String>,
    valid: Duration,
    transfers_max: Option<usize>,
    is_json: bool,
) -> Result<Code, CommandFailure> {
    check_token_name(name).or_exit(Code::Usage)?;
    for scope in &scopes {
        scope.parse::<IssuedScope>().or_exit(Code::Usage)?;
    }
    if valid > VALID_MAX || valid < Duration::from_secs(1) {
        let text = "--for takes a time from 1s to 366d: issue a new token when this one ends";
        return Err(anyhow!(text)).or_exit(Code::Usage);
    }
    let now = unix_seconds();
    let (issued, token) = IssuedToken::new(name, scopes, now, now + valid.as_secs());
    let issued = IssuedToken { transfers_max, ..issued };
    change(state, |list| {
        if list.tokens.len() >= ISSUED_TOKENS_MAX {
            return Err(anyhow!("{ISSUED_TOKENS_MAX} tokens are valid: revoke some first"));
        }
        list.tokens.push(issued.clone());
        Ok(())
    })?;
    if is_json {
        json::print(&CreatedTokenJson { token, issued: TokenJson::from(&issued) })?;
        return Ok(Code::Done);
    }
    print(&format!("{token}\n"))?;
    let valid = display_duration(valid);
    say(format!("token {} of {name} is valid for {valid}; it is not shown again", issued.id));
    Ok(Code::Done)
}

fn list(state: &StateDir, is_json: bool) -> Result<Code, CommandFailure> {
    let mut list = read(state)?;
    let now = unix_seconds();
    list.remove_expired(now);
    print_list(&list, is_json, now)
}

fn print_list(list: &IssuedTokenList, is_json: bool, now: u64) -> Result<Code, CommandFailure> {
    if is_json {
        json::print(&TokenListJson { tokens: list.tokens.iter().map(TokenJson::from).collect() })?;
        return Ok(Code::Done);
    }
    let head = ["id", "name", "valid for", "scopes"].map(str::to_owned).to_vec();
    let row = |token: &IssuedToken| {
        let left = Duration::from_secs(token.expires_unix_seconds.saturating_sub(now));
        vec![token.id.clone(), token.name.clone(), display_duration(left), token.scopes.join(" ")]
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(list.tokens.iter().map(row)).collect();
    print(&table(&rows))?;
    Ok(Code::Done)
}

fn revoke(state: &StateDir, id: &str, is_json: bool) -> Result<Code, CommandFailure> {
    let mut removed = IssuedTokenList::default();
    change(state, |list| {
        let (out, kept): (Vec<_>, Vec<_>) =
            list.tokens.drain(..).partition(|token| token.id == id || token.name == id);
        (removed.tokens, list.tokens) = (out, kept);
        match removed.tokens.is_empty() {
            true => Err(anyhow!(
                "no valid token has the id or name '{id}': penstock token list shows them"
            )),
            false => Ok(()),
        }
    })?;
    if is_json {
        return print_list(&removed, is_json, unix_seconds());
    }
    for token in &removed.tokens {
        print(&format!("token {} of {} is revoked\n", token.id, token.name))?;
    }
    Ok(Code::Done)
}

fn read(state: &StateDir) -> Result<IssuedTokenList, CommandFailure> {
    IssuedTokenList::read(&state.path().join(ISSUED_TOKENS)).or_exit(Code::Failed)
}

fn print(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

/// Changes the file under the lock of the state directory; expired tokens go.
fn change(
    state: &StateDir,
    change: impl FnOnce(&mut IssuedTokenList) -> anyhow::Result<()>,
) -> Result<(), CommandFailure> {
    let _lock = state.lock().or_exit(Code::Failed)?;
    let mut list = read(state)?;
    list.remove_expired(unix_seconds());
    change(&mut list)?;
    let text = serde_json::to_vec_pretty(&list).map_err(anyhow::Error::from)?;
    state.write(ISSUED_TOKENS, &text, 0o600).or_exit(Code::Failed)
}
