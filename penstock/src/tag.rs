//! `penstock tag`: whose traffic a flow is and what it is for, between names and numbers on the wire.
//!
//! Each subcommand is a file below this one.

use std::path::PathBuf;

use anyhow::anyhow;
use penstock_agent::registry::Current;
use penstock_agent::state::default_directory;
use penstock_scitags::registry::LookupError;
use penstock_scitags::{Registry, Scitag};

use crate::exit::{Code, Failure, say};

mod decode;
mod encode;
mod registry;
mod run;
mod show;
mod status;

pub(crate) use decode::Decoded;
pub(crate) use encode::Encoded;
pub(crate) use registry::Registered;
pub(crate) use run::kernel_code;

/// Translate scitags (owner and activity of a flow), keep their registry, label packets
#[derive(Debug, clap::Args)]
#[command(after_help = "\
An owner (the registry says experiment) and an activity are written OWNER/ACTIVITY, by name or number, \
or as one scitag number: cms/analysis-input, 3/14 and 206 are the same. Names are compared without \
case; blanks, - and _ are equal. Three different numbers name a pair: the scitag number (206) that \
programs hand to each other, the IPv6 flow label (0x30038) and the extension-header option \
(1E 03 00 03 0E 00) on packets.

Examples:
  penstock tag encode cms/analysis-input
  penstock tag decode 0x30038
  penstock tag decode 'root://eos.example.org//store/f?scitag.flow=206'
  penstock tag registry
  penstock tag run --config tags.toml --interface eth0
  penstock tag status")]
pub(crate) struct Args {
    /// Print one JSON object; docs/json.md has its fields
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    what: What,
}

impl Args {
    /// Whether it goes on until it is told to stop.
    pub(crate) fn is_daemon(&self) -> bool {
        matches!(self.what, What::Run(_))
    }
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Encode(encode::Args),
    Decode(decode::Args),
    Registry(registry::Args),
    Run(run::Args),
    Status(status::Args),
    Stop(run::StopArgs),
}

pub(crate) fn run(args: Args) -> Result<Code, Failure> {
    match args.what {
        What::Encode(what) => encode::run(&what, args.json),
        What::Decode(what) => decode::run(&what, args.json),
        What::Registry(what) => registry::run(what, args.json),
        What::Run(what) => run::run(what, args.json),
        What::Status(what) => status::run(&what, args.json),
        What::Stop(what) => run::stop(&what, args.json),
    }
}

/// The pair that `text` names.
fn find(registry: &Registry, text: &str) -> anyhow::Result<Scitag> {
    registry.find(text).map_err(|error| match error {
        LookupError::Owner { .. } | LookupError::Activity { .. } => {
            anyhow!("{error} (penstock tag registry lists all names)")
        }
        other => other.into(),
    })
}

/// The pair that `text` names, in the registry that counts for this user.
pub(crate) fn lookup(text: &str) -> anyhow::Result<Scitag> {
    find(&current().registry, text)
}

/// A scitag number by its names, where the registry has them.
pub(crate) fn name_of(number: u16) -> String {
    match Scitag::from_number(u64::from(number)) {
        Ok(tag) => current().registry.name(tag),
        Err(_) => number.to_string(),
    }
}

/// The registry that counts for this user; a copy that cannot be used is told.
fn current() -> Current {
    // Without a state directory there is no copy.
    let directory = default_directory().unwrap_or_else(|_| PathBuf::from("/var/lib/penstock"));
    let (current, line) = Current::load(&directory);
    if let Some(line) = line {
        say(line);
    }
    current
}
