//! `penstock`: the whole software of a data transfer node in one binary, a verb in each file.
//!
//! A verb lowers its arguments once into typed values, calls the crate that does the work, and returns an exit code or a
//! failure, which is printed here as one line.

#![forbid(unsafe_code)]
// Doc comments of arguments are help texts, where brackets mark optional parts; those of results end with a unit in brackets.
#![allow(rustdoc::broken_intra_doc_links)]

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::exit::{Code, CommandFailure, say};

mod buffer_limits;
mod chart;
mod controller;
mod cp;
mod credentials;
mod disk;
#[cfg(test)]
mod documentation;
mod exit;
mod experiment;
mod fabric;
mod generate;
mod host;
mod input;
mod json;
mod lab;
mod local_transfers;
mod log;
mod login;
mod nettest;
mod numbers;
mod plan;
mod progress;
mod rehearse;
mod requests;
mod sample;
mod serve;
mod table;
mod tag;
mod terminal;
mod token;
mod topology;
mod transfers;
mod tune;

const AFTER_HELP: &str = "\
Exit codes: 0 done; 1 failed; 2 usage; 3 done in part; 4 integrity check failed; 5 refused \
(identity or permission).

Environment: PENSTOCK_STATE is the directory for keys, tokens and journals (else /var/lib/penstock as \
root, else $XDG_STATE_HOME/penstock); PENSTOCK_LOG says what is logged (warn, info, debug).

Fields of the objects of --json, with units and meanings: docs/json.md, or penstock generate json.";

/// Moves data sets between data transfer nodes: fast, intact, resumable.
#[derive(Debug, Parser)]
#[command(name = "penstock", version, after_help = AFTER_HELP, max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    verb: VerbArgs,
}

#[derive(Debug, Subcommand)]
enum VerbArgs {
    Cp(cp::CpArgs),
    Serve(serve::ServeArgs),
    Login(login::LoginArgs),
    Token(token::TokenArgs),
    Transfers(transfers::TransfersArgs),
    Tune(tune::TuneVerbArgs),
    Submit(requests::submit::SubmitArgs),
    List(requests::list::ListArgs),
    Show(requests::show::ShowArgs),
    Set(requests::set::SetArgs),
    Cancel(requests::set::CancelArgs),
    Drain(requests::drain::DrainArgs),
    Reserve(requests::reserve::ReserveArgs),
    Controller(controller::ControllerVerbArgs),
    /// Measure what TCP or UDP carries between two machines, memory to memory.
    Nettest(nettest::NettestArgs),
    Disk(disk::DiskArgs),
    Host(host::HostArgs),
    Tag(tag::TagArgs),
    Sample(sample::SampleArgs),
    Topology(topology::TopologyVerbArgs),
    Plan(plan::PlanArgs),
    Rehearse(rehearse::RehearseArgs),
    Lab(lab::LabArgs),
    Fabric(fabric::FabricArgs),
    Experiment(experiment::ExperimentArgs),
    Generate(generate::GenerateArgs),
    #[command(hide = true)]
    FarEnd(cp::FarEndArgs),
}

impl VerbArgs {
    fn run(self) -> Result<ExitCode, CommandFailure> {
        match self {
            Self::Cp(args) => cp::run(&args),
            Self::Serve(args) => serve::run(args),
            Self::Login(args) => login::run(args),
            Self::Token(args) => token::run(args),
            Self::Transfers(args) => transfers::run(args),
            Self::Tune(args) => tune::run(args),
            Self::Submit(args) => requests::submit::run(args),
            Self::List(args) => requests::list::run(&args),
            Self::Show(args) => requests::show::run(&args),
            Self::Set(args) => requests::set::run(args),
            Self::Cancel(args) => requests::set::cancel(&args),
            Self::Drain(args) => requests::drain::run(&args),
            Self::Reserve(args) => requests::reserve::run(args),
            Self::Controller(args) => controller::run(&args),
            Self::Disk(args) => disk::run(args),
            Self::Host(args) => host::run(args),
            Self::Tag(args) => tag::run(args),
            Self::Sample(args) => sample::run(args),
            Self::Topology(args) => topology::run(&args),
            Self::Plan(args) => plan::run(&args),
            Self::Rehearse(args) => rehearse::run(&args),
            Self::Lab(args) => lab::run(&args),
            Self::Fabric(args) => fabric::run(args),
            Self::Experiment(args) => experiment::run(&args),
            Self::Generate(args) => generate::run(args),
            Self::FarEnd(args) => cp::run_far_end(&args),
            Self::Nettest(args) => return Ok(nettest::run(args)),
        }
        .map(ExitCode::from)
    }
}

fn main() -> ExitCode {
    let cli = match CommandLine::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let daemon = match &cli.verb {
        VerbArgs::Serve(_) | VerbArgs::Sample(_) => true,
        VerbArgs::Tag(args) => args.is_daemon(),
        _ => false,
    };
    log::start(daemon);
    match cli.verb.run() {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

/// Prints help texts unchanged, and usage errors as one line.
fn usage(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
        || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    {
        // A closed output is no error.
        let _ = error.print();
        return if error.use_stderr() { Code::Usage.into() } else { Code::Done.into() };
    }
    say(usage_line(&error.to_string()));
    Code::Usage.into()
}

/// Joins clap's message into one line: the error, its tips, and the help to see.
fn usage_line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let (what, usage) = text.split_once("\n\nUsage: ").unwrap_or((text, ""));
    let what = what.split("\n\nFor more information").next().unwrap_or(what);
    let verb: Vec<&str> = usage
        .split_whitespace()
        .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase()))
        .collect();
    let verb = if verb.is_empty() { "the verb with".to_owned() } else { verb.join(" ") };
    let joined = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut parts = what.split("\n\n  tip: ").flat_map(|part| part.split("\n  tip: ")).map(joined);
    let mut line = parts.next().unwrap_or_default();
    for tip in parts {
        line = format!("{line}; {tip}");
    }
    format!("{line}; see {verb} --help")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn a_mistake_is_one_line() {
        for (arguments, line) in [
            (
                &["penstock", "nettst"][..],
                "subcommand 'nettst'; a similar subcommand exists: 'nettest'; see penstock --help",
            ),
            (
                &["penstock", "serve", "--lsten", "x"],
                "'--lsten' found; a similar argument exists: '--listen'; see penstock serve --help",
            ),
            (
                &["penstock", "cp", "a", "b", "--label", "flo"],
                "[possible values: flow, destination",
            ),
            (&["penstock", "serve", "--streams", "0"], "invalid value '0' for '--streams <N>'"),
            (&["penstock", "login", "x"], "required arguments were not provided: --fingerprint"),
        ] {
            let error = CommandLine::try_parse_from(arguments).unwrap_err();
            let text = usage_line(&error.to_string());
            assert!(text.contains(line) && text.ends_with(" --help"), "{text}");
            assert!(
                !text.contains('\n') && !text.contains("  ") && !text.contains("tip:"),
                "{text}"
            );
        }
    }

    #[test]
    fn every_verb_has_summary_and_examples() {
        for verb in CommandLine::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            assert!(verb.get_about().is_some(), "{}", verb.get_name());
            let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("penstock "), "{} has no examples", verb.get_name());
        }
    }
}
