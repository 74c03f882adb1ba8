//! `cargo xtask VERB`: the checks and measurements that are too long for a shell script.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::{
    bench, bpf, fuzz, image, kernels, kubernetes, package, simulate, suite, tidy, workspace_root,
};

/// Build helpers of Penstock.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct XtaskCli {
    #[command(subcommand)]
    verb: XtaskVerb,
}

#[derive(Debug, Subcommand)]
enum XtaskVerb {
    /// Check the rules that no compiler checks: layers, unsafe code, file length, names and comments, links, help texts.
    Tidy {
        /// Print every place that breaks a rule of language instead.
        #[arg(long, value_name = "RULE", value_parser = clap::builder::PossibleValuesParser::new(tidy::rules()))]
        list: Option<String>,
        /// Commit to the present counts of xtask/language.toml where they are lower.
        #[arg(long, conflicts_with = "list")]
        lower: bool,
    },
    /// Run every test, then list what was skipped and the slowest tests.
    Test(suite::Options),
    /// Build the eBPF objects from their C sources; needs clang.
    Bpf {
        /// Compare new builds with the committed objects instead.
        #[arg(long)]
        check: bool,
    },
    /// Measure against established programs or an earlier commit, side by side in one run.
    #[command(args_conflicts_with_subcommands = true)]
    Bench {
        #[command(flatten)]
        compare: bench::compare::Options,
        #[command(subcommand)]
        what: Option<BenchSubject>,
    },
    /// Fuzz the parsers and state machines: see fuzz/README.md.
    Fuzz(fuzz::Options),
    /// Run the tests of a component on kernels of Debian, in a virtual machine without hardware help; needs root.
    Kernels(kernels::Options),
    /// Build the OCI image with buildah; needs root.
    Image(image::Options),
    /// Build a deb, an rpm and an archive of the static binary.
    Package(package::Options),
    /// Build helm and kubeconform, which check the Helm chart; needs Go.
    Kubernetes(kubernetes::Options),
    /// Simulate controller and agents under faults, from one seed each: see docs/simulation.md.
    Simulate(simulate::Options),
}

#[derive(Debug, Subcommand)]
enum BenchSubject {
    /// `penstock cp` and `penstock nettest` against iperf3, rsync, xrdcp, GridFTP and rclone.
    Mover(bench::Options),
    /// curl, davix and rclone against our gateway, XRootD, nginx and Apache.
    Gateway(bench::gateway::Options),
    /// The fabric simulator: packets over links per second.
    Fabric(bench::fabric::Options),
    /// iperf3 unmarked, with flow labels and with destination options of `penstock tag run`.
    Marking(bench::marking::Options),
    /// The links of `penstock lab`: configured and measured round trips, rates, losses and speed.
    Lab(bench::lab::Options),
    /// The controller: allocation compared with linear programmes of HiGHS, and the API with its databases.
    Controller(bench::controller::Options),
    /// The collector from UDP to stored minutes, and samples per CPU second against goflow2 and sfacctd.
    Telemetry(bench::telemetry::Options),
    /// Rates and processor time by the count of streams or threads, on a machine with many processors.
    Scaling(bench::scaling::Options),
    /// Controllers of transfers on the modelled path, and their regret.
    Tuner(bench::tuner::Options),
}

fn main() -> ExitCode {
    match run(XtaskCli::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: XtaskVerb) -> Result<ExitCode> {
    match verb {
        XtaskVerb::Tidy { list: Some(rule), .. } => {
            for line in tidy::list(&workspace_root(), &rule)? {
                println!("{line}");
            }
            Ok(ExitCode::SUCCESS)
        }
        XtaskVerb::Tidy { lower: true, .. } => {
            for (rule, limit) in tidy::lower(&workspace_root())? {
                println!("{rule} = {limit}");
            }
            Ok(ExitCode::SUCCESS)
        }
        XtaskVerb::Tidy { .. } => {
            let faults = tidy::check(&workspace_root())?;
            for fault in &faults {
                eprintln!("{fault}");
            }
            if faults.is_empty() {
                println!("tidy: no faults");
                return Ok(ExitCode::SUCCESS);
            }
            eprintln!("tidy: {} faults", faults.len());
            Ok(ExitCode::FAILURE)
        }
        XtaskVerb::Test(options) => {
            suite::run(&workspace_root(), &options)?;
            Ok(ExitCode::SUCCESS)
        }
        XtaskVerb::Bpf { check } => {
            bpf::main(&workspace_root(), check)?;
            Ok(ExitCode::SUCCESS)
        }
        XtaskVerb::Bench { what: Some(subject), .. } => {
            run_bench(&subject)?;
            Ok(ExitCode::SUCCESS)
        }
        XtaskVerb::Bench { compare, what: None } => match bench::compare::run(&compare)? {
            true => Ok(ExitCode::SUCCESS),
            false => Ok(ExitCode::FAILURE),
        },
        XtaskVerb::Kernels(options) => {
            kernels::run(&workspace_root(), &options)?;
            Ok(ExitCode::SUCCESS)
        }
        XtaskVerb::Image(options) => {
            image::run(&workspace_root(), &options)?;
            Ok(ExitCode::SUCCESS)
        }
        XtaskVerb::Package(options) => {
            package::run(&workspace_root(), &options)?;
            Ok(ExitCode::SUCCESS)
        }
        XtaskVerb::Kubernetes(options) => {
            kubernetes::run(&workspace_root(), &options)?;
            Ok(ExitCode::SUCCESS)
        }
        XtaskVerb::Simulate(options) => {
            simulate::run(&workspace_root(), &options)?;
            Ok(ExitCode::SUCCESS)
        }
        XtaskVerb::Fuzz(options) => {
            fuzz::run(&workspace_root(), &options)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn run_bench(subject: &BenchSubject) -> Result<()> {
    match subject {
        BenchSubject::Mover(options) => bench::run(options),
        BenchSubject::Gateway(options) => bench::gateway::run(options),
        BenchSubject::Fabric(options) => bench::fabric::run(options),
        BenchSubject::Marking(options) => bench::marking::run(options),
        BenchSubject::Lab(options) => bench::lab::run(options),
        BenchSubject::Controller(options) => bench::controller::run(options),
        BenchSubject::Telemetry(options) => bench::telemetry::run(options),
        BenchSubject::Scaling(options) => bench::scaling::run(options),
        BenchSubject::Tuner(options) => bench::tuner::run(options),
    }
}
