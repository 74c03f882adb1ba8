//! `penstock tag`: scitags (owner and activity of a flow) as names and as numbers on the wire; packet marking.
//!
//! Each subcommand is a file below this one.

use std::path::PathBuf;

use anyhow::anyhow;
use penstock_agent::registry::ActiveRegistry;
use penstock_daemon::state::default_directory;
use penstock_scitags::registry::LookupError;
use penstock_scitags::{Registry, Scitag};

use crate::exit::{Code, CommandFailure, say};

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
pub(crate) struct TagArgs {
    /// Print one JSON object; docs/json.md has its fields
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: TagCommand,
}

impl TagArgs {
    /// True for subcommands that run as a daemon.
    pub(crate) fn is_daemon(&self) -> bool {
        matches!(self.command, TagCommand::Run(_))
    }
}

#[derive(Debug, clap::Subcommand)]
enum TagCommand {
    Encode(encode::TagEncodeArgs),
    Decode(decode::TagDecodeArgs),
    Registry(registry::TagRegistryArgs),
    Run(run::TagRunArgs),
    Status(status::TagStatusArgs),
    Stop(run::StopArgs),
}

pub(crate) fn run(args: TagArgs) -> Result<Code, CommandFailure> {
    match args.command {
        TagCommand::Encode(what) => encode::run(&what, args.json),
        TagCommand::Decode(what) => decode::run(&what, args.json),
        TagCommand::Registry(what) => registry::run(what, args.json),
        TagCommand::Run(what) => run::run(what, args.json),
        TagCommand::Status(what) => status::run(&what, args.json),
        TagCommand::Stop(what) => run::stop(&what, args.json),
    }
}

/// Parses a scitag with the names of `registry`.
fn find(registry: &Registry, text: &str) -> anyhow::Result<Scitag> {
    registry.find(text).map_err(|error| match error {
        LookupError::Owner { .. } | LookupError::Activity { .. } => {
            anyhow!("{error} (penstock tag registry lists all names)")
        }
        other => other.into(),
    })
}

/// Parses a scitag with this user's registry.
pub(crate) fn lookup(text: &str) -> anyhow::Result<Scitag> {
    find(&current().registry, text)
}

/// Names of a scitag number, if registered.
pub(crate) fn name_of(number: u16) -> String {
    match Scitag::from_number(u64::from(number)) {
        Ok(tag) => current().registry.name(tag),
        Err(_) => number.to_string(),
    }
}

/// Loads this user's registry; warns about an unusable copy.
fn current() -> ActiveRegistry {
    // There is no copy without a state directory.
    let directory = default_directory().unwrap_or_else(|_| PathBuf::from("/var/lib/penstock"));
    let (current, line) = ActiveRegistry::load(&directory);
    if let Some(line) = line {
        say(line);
    }
    current
}
