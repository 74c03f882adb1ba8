//! Simulated network: a topology file, or a generated one.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use penstock_fabric::{FabricNetwork, generate};
use penstock_topology::{Scale, Topology};
use penstock_units::{BitRate, parse_duration};

use crate::exit::{Code, CommandFailure, OrExit};
use crate::topology::TopologyArgs;

/// Most hosts: more need more memory than most machines have.
const HOSTS_MAX: usize = 1 << 17;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NetworkArgs {
    /// The topology, or - for standard input
    #[arg(value_name = "FILE", conflicts_with_all = ["star", "dumbbell", "spine_leaf", "fat_tree"])]
    file: Option<PathBuf>,
    /// Number of hosts on one switch
    #[arg(long, value_name = "HOSTS", group = "made")]
    star: Option<usize>,
    /// Number of host pairs across one link; 0 is two hosts without a switch
    #[arg(long, value_name = "PAIRS", group = "made")]
    dumbbell: Option<usize>,
    /// Number of spines, of leaves, and of hosts on each leaf
    #[arg(long, value_name = "SxLxH", group = "made")]
    spine_leaf: Option<SpineLeafSize>,
    /// Fat-tree of switches with K ports
    #[arg(long, value_name = "K", group = "made")]
    fat_tree: Option<usize>,
    /// Rate of hosts in a generated network
    #[arg(long, default_value = "100G")]
    rate: BitRate,
    /// Rate of links between switches; the rate of hosts by default
    #[arg(long, value_name = "RATE")]
    uplink: Option<BitRate>,
    /// Delay of each link
    #[arg(long, default_value = "1us", value_parser = parse_duration)]
    delay: Duration,
}

/// Numbers of spines, leaves, and hosts on each leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SpineLeafSize([usize; 3]);

impl FromStr for SpineLeafSize {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let numbers: Option<Vec<usize>> =
            text.split('x').map(|word| word.parse().ok().filter(|number| *number > 0)).collect();
        numbers
            .and_then(|numbers| numbers.try_into().ok())
            .map(Self)
            .context("write spines, leaves and hosts on each leaf, such as 2x8x4")
    }
}

impl NetworkArgs {
    /// True if no network is named.
    pub(crate) fn is_none(&self) -> bool {
        self.file.is_none()
            && self.star.is_none()
            && self.dumbbell.is_none()
            && self.spine_leaf.is_none()
            && self.fat_tree.is_none()
    }

    /// Builds the network and returns it with its name.
    ///
    /// # Errors
    /// When no or several networks are named, the file is invalid, or the network has fewer than two hosts.
    pub(crate) fn network(&self) -> Result<(String, FabricNetwork), CommandFailure> {
        let topology = self.topology()?;
        let network = FabricNetwork::new(&topology).or_exit(Code::Usage)?;
        Ok((topology.name, network))
    }

    fn topology(&self) -> Result<Topology, CommandFailure> {
        let usage = |text: String| CommandFailure::new(Code::Usage, anyhow!(text));
        let rate = self.rate.0;
        let uplink = self.uplink.map_or(rate, |rate| rate.0);
        if rate == 0 || uplink == 0 {
            return Err(usage("a rate is 0: nothing would move".to_owned()));
        }
        let delay = u64::try_from(self.delay.as_nanos()).unwrap_or(u64::MAX);
        if delay > 10_000_000_000 {
            return Err(usage("a link has at most 10s of delay".to_owned()));
        }
        let few = |hosts: Option<usize>| match hosts {
            Some(hosts) if hosts <= HOSTS_MAX => Ok(()),
            _ => Err(usage(format!("that has more than {HOSTS_MAX} hosts"))),
        };
        if let Some(file) = &self.file {
            return TopologyArgs { file: file.clone(), scale: Scale::FULL }.read();
        }
        if let Some(hosts) = self.star {
            few(Some(hosts))?;
            return Ok(generate::star(hosts, rate, delay));
        }
        if let Some(pairs) = self.dumbbell {
            few(pairs.checked_mul(2))?;
            return Ok(generate::dumbbell(pairs, rate, uplink, delay));
        }
        if let Some(SpineLeafSize([spines, leaves, hosts])) = self.spine_leaf {
            few(leaves.checked_mul(hosts))?;
            few(leaves.checked_mul(spines))?;
            return Ok(generate::spine_leaf(spines, leaves, hosts, rate, uplink, delay));
        }
        if let Some(k) = self.fat_tree {
            if k < 2 || k % 2 != 0 {
                return Err(usage(format!(
                    "a fat-tree has switches of 2, 4, 6 ... ports, not {k}"
                )));
            }
            few(k.checked_pow(3).map(|cube| cube / 4))?;
            return Ok(generate::fat_tree(k, 1.0, rate, delay));
        }
        Err(usage(
            "no network: name a topology file, or use --star, --dumbbell, --spine-leaf or --fat-tree"
                .to_owned(),
        ))
    }
}
