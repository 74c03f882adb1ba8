//! `penstock generate`: man pages and completions from the same table as `--help`, for packagers.

use std::io;
use std::path::PathBuf;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::exit::{Code, CommandFailure};
use crate::json::node::{Completions, ManPages};
use crate::json::{self, reference};

mod man;

/// Write man pages or shell completions
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  penstock generate man /usr/share/man/man1
  penstock generate completions bash > /etc/bash_completion.d/penstock
  penstock generate json > json.md")]
pub(crate) struct GenerateArgs {
    /// Print one JSON object: files of man pages, or shell and text; docs/json.md has its fields
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: GenerateCommand,
}

#[derive(Debug, clap::Subcommand)]
enum GenerateCommand {
    /// Write the man pages of penstock and of every verb into a directory
    Man {
        /// The directory; created if missing
        directory: PathBuf,
    },
    /// Print the reference of every object that --json prints, as Markdown
    Json,
    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

pub(crate) fn run(args: GenerateArgs) -> Result<Code, CommandFailure> {
    let mut command = crate::CommandLine::command();
    match args.command {
        GenerateCommand::Man { directory } => {
            let failed = || format!("cannot write man pages to {}", directory.display());
            std::fs::create_dir_all(&directory).with_context(failed)?;
            man::write_pages(command, &directory).with_context(failed)?;
            if args.json {
                let mut files = Vec::new();
                for entry in std::fs::read_dir(&directory).with_context(failed)? {
                    let path = entry.with_context(failed)?.path();
                    if path.extension().is_some_and(|section| section == "1") {
                        files.push(path.display().to_string());
                    }
                }
                files.sort();
                json::print(&ManPages { files })?;
            }
        }
        GenerateCommand::Json => {
            io::Write::write_all(&mut io::stdout(), reference::page().as_bytes())?
        }
        GenerateCommand::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command, "penstock", &mut text);
            if args.json {
                let text = String::from_utf8_lossy(&text).into_owned();
                json::print(&Completions { shell: shell.to_string(), text })?;
            } else {
                io::Write::write_all(&mut io::stdout(), &text)?;
            }
        }
    }
    Ok(Code::Done)
}
