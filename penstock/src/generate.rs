//! `penstock generate`: man pages and completions from the same table as `--help`, for packagers.

use std::io;
use std::path::PathBuf;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::exit::{Code, Failure};

/// Write man pages or shell completions
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  penstock generate man /usr/share/man/man1
  penstock generate completions bash > /etc/bash_completion.d/penstock")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Write the man pages of penstock and of every verb into a directory
    Man {
        /// The directory; made when it is not there
        directory: PathBuf,
    },
    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

pub(crate) fn run(args: Args) -> Result<Code, Failure> {
    let mut command = crate::Cli::command();
    match args.what {
        What::Man { directory } => {
            let failed = || format!("cannot write man pages to {}", directory.display());
            std::fs::create_dir_all(&directory).with_context(failed)?;
            clap_mangen::generate_to(command, &directory).with_context(failed)?;
        }
        What::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command, "penstock", &mut text);
            io::Write::write_all(&mut io::stdout(), &text)?;
        }
    }
    Ok(Code::Done)
}
