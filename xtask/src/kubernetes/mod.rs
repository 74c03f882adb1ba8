//! `cargo xtask kubernetes`: the programs that check the Helm chart, the checks, and the chart on a real cluster.
//!
//! [`tools`] builds programs from Go modules once, [`chart`] renders and checks. `--cluster` also builds those of a cluster,
//! starts control plane and nodes in network namespaces (`cluster`), and runs `scenario`: two agents, a controller and a
//! collector (`installed_chart`), 500 files each time (`copies`), a killed pod, a drained node, an upgrade, an uninstallation;
//! then tuned nodes, marker and sampler (`node_parts`), and two controllers with PostgreSQL (`database`). It needs root and the
//! packages of `tools/setup.sh kubernetes`. `make test` builds the first programs alone, and goes on where Go is missing.

pub mod chart;
mod cluster;
mod copies;
mod database;
mod installed_chart;
mod node_parts;
mod scenario;
pub mod tools;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::image::{self, Scratch};
use crate::static_build;
use cluster::{KubernetesCluster, output};
use tools::Tool;

/// Tag of the image that the cluster runs.
const IMAGE_TAG: &str = "cluster";

/// Options of `cargo xtask kubernetes`.
#[derive(Debug, Args)]
pub struct Options {
    /// Programs to build
    #[arg(value_enum, default_values = ["helm", "kubeconform"])]
    programs: Vec<Tool>,
    /// Install the chart on a cluster that runs on this machine, and copy files while its parts fail
    #[arg(long)]
    cluster: bool,
    /// Binary of the image, with its libraries if it is dynamic, in place of a static release build
    #[arg(long, value_name = "FILE", requires = "cluster")]
    binary: Option<PathBuf>,
    /// End after the installation and one copy
    #[arg(long, requires = "cluster")]
    short: bool,
}

/// Builds the programs that are missing and the schemas of Kubernetes, or runs the chart on a cluster.
///
/// # Errors
/// When Go is missing, a build fails, or the chart does not do on the cluster what it should.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if options.cluster {
        return run_cluster(root, options);
    }
    for tool in &options.programs {
        println!("kubernetes: {}", tools::build(root, *tool)?.display());
    }
    println!("kubernetes: {}", chart::write_schemas(root)?.display());
    Ok(())
}

fn run_cluster(root: &Path, options: &Options) -> Result<()> {
    for tool in Tool::CLUSTER {
        tools::build(root, tool)?;
    }
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => static_build::build(root)?,
    };
    let images =
        [image::build(root, &binary, "localhost/penstock", IMAGE_TAG)?, pause_image(root)?];
    let cluster = KubernetesCluster::start(root, 2, &images)?;
    scenario::run(root, &cluster, &binary, options.short)
}

/// Image of the process that holds the namespaces of a pod; returns its archive.
fn pause_image(root: &Path) -> Result<PathBuf> {
    let folder = root.join("target/image");
    let archive = folder.join("pause.tar");
    let source = folder.join("pause.c");
    let program = folder.join("pause");
    std::fs::write(&source, include_str!("pause.c"))
        .with_context(|| source.display().to_string())?;
    output(Command::new("cc").args(["-Os", "-static", "-s", "-o"]).args([&program, &source]))?;
    let image = Scratch::new(&folder)?;
    image.put(&program, "pause", 0o755)?;
    image.set_entrypoint("/pause")?;
    image.commit("0", &archive, "localhost/pause:1")?;
    Ok(archive)
}
