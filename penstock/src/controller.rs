//! `penstock controller`: what an operator of a controller needs besides `penstock serve`.

use crate::exit::{Code, Failure};

mod init;

/// Set up a controller with its agents
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  penstock controller init site dtn-a=a dtn-b=b
  penstock controller init wan dtn1=cern@192.0.2.1 dtn2=caltech@198.51.100.1 \\
    --listen 192.0.2.9:8621")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Init(init::Args),
}

pub(crate) fn run(args: &Args) -> Result<Code, Failure> {
    match &args.what {
        What::Init(args) => init::run(args),
    }
}
