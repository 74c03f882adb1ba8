//! `penstock fabric`: simulates traffic in a RoCE fabric packet by packet.
//!
//! Each subcommand is a file below this one; the simulator is `penstock-fabric`.

use crate::exit::{Code, CommandFailure};
use crate::json::fabric::{Parameter, Parameters};
use crate::table::table;

mod failures;
mod hpcc;
mod network;
mod page;
mod parquet;
mod run;
mod show;
mod sweep;
mod threads;
mod timeline;
mod traffic;

/// Simulate a RoCE fabric packet by packet
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The network is a topology file (penstock topology), or is made by numbers. Everything else is a parameter, set by \
--set NAME=VALUE and listed with its default and source by penstock fabric parameters. The same seed gives the same \
bytes. docs/fabric-model.md says what is exact and what is approximated.

Examples:
  penstock fabric run --spine-leaf 2x8x4 --workload write_bw --from h0 --to h31
  penstock fabric run experiments/topologies/heps.toml --workload write_bw \\
    --from transfer01 --to k8sgn08 -a --iterations 200
  penstock fabric run --star 17 --workload incast --size 1MB \\
    --set cc=none --set pfc_threshold=static
  penstock fabric run --fat-tree 8 --workload poisson \\
    --sizes web-search --load 0.3 --time 2ms --out result
  penstock fabric run --spine-leaf 2x8x4 --workload permutation --size 50MB \\
    --fail leaf0-spine1@1ms --repair leaf0-spine1@5ms
  penstock fabric run --spine-leaf 4x4x4 --workload all_to_all \\
    --fail spine1@200us --set recovery=selective --set routing=adaptive
  penstock fabric run --fat-tree 16 --workload poisson --load 0.3 \\
    --time 20us --threads 8
  penstock fabric run --dumbbell 2 --delay 20ms --workload permutation \\
    --size 1GB --set cc=cubic --set mtu=8948
  penstock fabric run --hpcc docs/samples/hpcc/config.txt --out result
  penstock fabric sweep --star 9 --workload incast --size 1MB \\
    --grid cc=dcqcn,hpcc,dctcp --grid seed=1,2,3
  penstock fabric parameters")]
pub(crate) struct FabricArgs {
    /// Print one JSON object; docs/json.md has its fields
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: FabricCommand,
}

#[derive(Debug, clap::Subcommand)]
enum FabricCommand {
    Run(run::FabricRunArgs),
    Sweep(sweep::FabricSweepArgs),
    /// List all parameters with defaults, meanings and sources
    Parameters,
}

pub(crate) fn run(args: FabricArgs) -> Result<Code, CommandFailure> {
    match args.command {
        FabricCommand::Run(what) => run::run(&what, args.json),
        FabricCommand::Sweep(what) => sweep::run(&what, args.json),
        FabricCommand::Parameters => parameters(args.json),
    }
}

fn parameters(json: bool) -> Result<Code, CommandFailure> {
    let rows = penstock_fabric::Parameters::default().rows();
    if json {
        let parameters = rows.into_iter().map(|row| Parameter {
            name: row.name,
            default: row.value,
            form: row.form,
            meaning: row.meaning,
            source: row.source,
        });
        crate::json::print(&Parameters { parameters: parameters.collect() })?;
    } else {
        let cell = |text: &str| text.to_owned();
        let mut cells = vec![["parameter", "default", "meaning", "source"].map(cell).to_vec()];
        cells.extend(rows.iter().map(|row| {
            vec![cell(row.name), row.value.clone(), cell(row.meaning), cell(row.source)]
        }));
        show::print(&table(&cells))?;
    }
    Ok(Code::Done)
}
