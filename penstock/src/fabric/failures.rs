//! Injected failures of a run: links and switches that fail, hosts that send PFC pauses without end.

use std::time::Duration;

use anyhow::anyhow;
use penstock_fabric::{FabricNetwork, FailureChange, FailurePart, time};
use penstock_units::parse_duration;

use crate::exit::{Code, CommandFailure, OrExit};

/// Latest time in picoseconds.
const TIME_PS_MAX: u64 = 1 << 60;
/// Most names that an error lists.
const NAMES_SHOWN: usize = 20;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FailureArgs {
    /// A link or switch that fails at a time, by its name (in generated networks a link is named by its ends)
    #[arg(long, value_name = "NAME@TIME")]
    fail: Vec<String>,
    /// A link or switch that works again
    #[arg(long, value_name = "NAME@TIME")]
    repair: Vec<String>,
    /// A host that pauses all traffic to it (PFC storm), from a time on, for a duration
    #[arg(long, value_name = "HOST@TIME+TIME")]
    storm: Vec<String>,
}

impl FailureArgs {
    /// True if no failure is requested.
    pub(crate) fn is_none(&self) -> bool {
        self.fail.is_empty() && self.repair.is_empty() && self.storm.is_empty()
    }

    /// Lowers the failures into changes of the network.
    ///
    /// # Errors
    /// When a name is unknown or a time invalid.
    pub(crate) fn changes(
        &self,
        network: &FabricNetwork,
    ) -> Result<Vec<FailureChange>, CommandFailure> {
        let failures = self.fail.iter().map(|text| (text, false));
        let mut changes = failures
            .chain(self.repair.iter().map(|text| (text, true)))
            .map(|(text, is_up)| {
                let (name, at) = split(text, '@', "NAME@TIME, such as leaf0-spine1@1ms")?;
                let (at_ps, part) = (picoseconds(at)?, part(network, name)?);
                Ok(FailureChange { at_ps, part, is_up })
            })
            .collect::<Result<Vec<FailureChange>, CommandFailure>>()?;
        for text in &self.storm {
            let form = "HOST@TIME+TIME, such as h0@1ms+25s";
            let (name, times) = split(text, '@', form)?;
            let (from, long) = split(times, '+', form)?;
            let (from_ps, long_ps) = (picoseconds(from)?, picoseconds(long)?);
            let of_name = |host: &u32| network.nodes[*host as usize].name == name;
            let host = network.hosts().find(of_name).ok_or_else(|| {
                let hosts = network.hosts().map(|host| &network.nodes[host as usize].name);
                missing("host", name, hosts)
            })?;
            let part = FailurePart::Host(host);
            changes.push(FailureChange { at_ps: from_ps, part, is_up: false });
            let at_ps = (from_ps + long_ps).min(TIME_PS_MAX);
            changes.push(FailureChange { at_ps, part, is_up: true });
        }
        Ok(changes)
    }
}

fn split<'a>(text: &'a str, at: char, form: &str) -> Result<(&'a str, &'a str), CommandFailure> {
    text.rsplit_once(at)
        .ok_or_else(|| anyhow!("'{}' is no {form}", text.escape_debug()))
        .or_exit(Code::Usage)
}

fn picoseconds(text: &str) -> Result<u64, CommandFailure> {
    let time: Duration = parse_duration(text).or_exit(Code::Usage)?;
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Ok(nanoseconds.saturating_mul(time::PS_PER_NANOSECOND).min(TIME_PS_MAX))
}

fn part(network: &FabricNetwork, name: &str) -> Result<FailurePart, CommandFailure> {
    if let Some(link) = network.links.iter().position(|link| link == name) {
        return Ok(FailurePart::Link(link as u32));
    }
    let switch = network.nodes.iter().position(|node| !node.is_host && node.name == name);
    if let Some(switch) = switch {
        return Ok(FailurePart::Switch(switch as u32));
    }
    let switches = network.nodes.iter().filter(|node| !node.is_host).map(|node| &node.name);
    Err(missing("link or switch", name, switches.chain(&network.links)))
}

fn missing<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a String>) -> CommandFailure {
    let known: Vec<&str> = known.take(NAMES_SHOWN).map(String::as_str).collect();
    let name = name.escape_debug();
    CommandFailure::new(
        Code::Usage,
        anyhow!("there is no {what} '{name}': there are {}", known.join(", ")),
    )
}
