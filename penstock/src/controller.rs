//! `penstock controller`: setup of a controller, which `penstock serve` then runs.

use crate::exit::{Code, CommandFailure};

mod init;

/// Set up a controller with its agents
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  penstock controller init site dtn-a=a dtn-b=b
  penstock controller init wan dtn1=cern@192.0.2.1 dtn2=caltech@198.51.100.1 \\
    --listen 192.0.2.9:8621")]
pub(crate) struct ControllerVerbArgs {
    #[command(subcommand)]
    command: ControllerCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ControllerCommand {
    Init(init::ControllerInitArgs),
}

pub(crate) fn run(args: &ControllerVerbArgs) -> Result<Code, CommandFailure> {
    match &args.command {
        ControllerCommand::Init(args) => init::run(args),
    }
}
