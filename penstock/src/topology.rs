//! `penstock topology`: checks, shows and draws a network description, and finds paths.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use penstock_topology::paths::{Disjoint, Path as Way, best_disjoint};
use penstock_topology::{
    DelaySource, FILE_BYTES_MAX, Node, NodeId, NodeKind, Scale, Topology, draw,
};
use penstock_units::display_latency;

use crate::exit::{Code, CommandFailure, OrExit, say};
use crate::input;
use crate::json::topology as shown;

/// Check, show and draw the description of a network, and find paths through it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A topology is a TOML file of sites, hosts with interfaces, switches and links; docs/topology.md has all \
of its words. FILE may be - for standard input.

Examples:
  penstock topology check experiments/topologies/*.toml
  penstock topology show experiments/topologies/sc25-scitags.toml
  penstock topology draw experiments/topologies/sc25-scitags.toml > sc25.svg
  penstock topology paths experiments/topologies/sc23-nre13.toml booth campus \\
    --count 2 --disjoint risks
  penstock topology show experiments/topologies/heps.toml \\
    --scale 1/1000 --json")]
pub(crate) struct TopologyVerbArgs {
    /// Print one JSON object; docs/json.md has its fields
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: TopologyCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TopologyCommand {
    /// Report all faults, with line and column
    Check {
        /// Files to check
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Print sites, nodes and links with derived values
    Show {
        #[command(flatten)]
        input: TopologyArgs,
    },
    /// Draw to standard output
    Draw {
        #[command(flatten)]
        input: TopologyArgs,
        /// Format of the drawing
        #[arg(long, value_enum, default_value_t = DrawFormat::Svg)]
        format: DrawFormat,
    },
    /// Find the shortest path, or several disjoint ones
    Paths {
        #[command(flatten)]
        input: TopologyArgs,
        /// Host or switch at the beginning
        from: String,
        /// Host or switch at the end
        to: String,
        /// Most paths
        #[arg(long, value_name = "N", default_value_t = 1)]
        #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
        count: u16,
        /// Elements that two paths may not share
        #[arg(long, value_enum, default_value_t = DisjointArg::Links)]
        disjoint: DisjointArg,
    },
}

/// Arguments that name a topology.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TopologyArgs {
    /// The topology, or - for standard input
    pub(crate) file: PathBuf,
    /// Scale rates and queues by this factor, such as 1/1000
    #[arg(long, default_value = "1")]
    pub(crate) scale: Scale,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum DrawFormat {
    /// A picture for browsers and printers
    Svg,
    /// A flowchart for Markdown
    Mermaid,
    /// The topology file of containerlab
    Containerlab,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum DisjointArg {
    /// A link
    Links,
    /// A switch
    Nodes,
    /// A risk group, and no link
    Risks,
}

pub(crate) fn run(args: &TopologyVerbArgs) -> Result<Code, CommandFailure> {
    let text = match &args.command {
        TopologyCommand::Check { files } => return check(files, args.json),
        TopologyCommand::Show { input } => {
            let topology = input.read()?;
            if args.json { line(&object(&topology)) } else { table(&topology) }
        }
        TopologyCommand::Draw { input, format } => {
            let topology = input.read()?;
            match format {
                DrawFormat::Svg => draw::svg(&topology),
                DrawFormat::Mermaid => draw::mermaid(&topology),
                DrawFormat::Containerlab => draw::containerlab(&topology),
            }
        }
        TopologyCommand::Paths { input, from, to, count, disjoint } => {
            let topology = input.read()?;
            let (from, to) = (node(&topology, from)?, node(&topology, to)?);
            let by = match disjoint {
                DisjointArg::Links => Disjoint::Links,
                DisjointArg::Nodes => Disjoint::Nodes,
                DisjointArg::Risks => Disjoint::Risks,
            };
            paths(&topology, [from, to], usize::from(*count), by, args.json)?
        }
    };
    print(&text)?;
    Ok(Code::Done)
}

impl TopologyArgs {
    /// # Errors
    /// Names the first fault of the file and the number of others, or the link whose scaled rate is zero.
    pub(crate) fn read(&self) -> Result<Topology, CommandFailure> {
        self.parse(&text_of(&self.file)?)
    }

    /// Parses a text that was read before.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn parse(&self, text: &str) -> Result<Topology, CommandFailure> {
        parse(&self.file, text, self.scale)
    }
}

/// Parses and scales a topology; the error is its first fault.
pub(crate) fn parse(file: &Path, text: &str, scale: Scale) -> Result<Topology, CommandFailure> {
    let read = Topology::read(text).map_err(|faults| {
        let first = faults.0.first().map(ToString::to_string).unwrap_or_default();
        let more = match faults.0.len() {
            0 | 1 => String::new(),
            count => format!(" (and {} more: penstock topology check)", count - 1),
        };
        anyhow!("{}:{first}{more}", file.display())
    });
    let topology = read.or_exit(Code::Usage)?;
    topology.check_scale(scale).or_exit(Code::Usage)?;
    Ok(topology.scaled(scale))
}

/// Reads a topology file as text.
///
/// # Errors
/// When it cannot be read or is not UTF-8.
pub(crate) fn text_of(file: &Path) -> Result<String, CommandFailure> {
    let cannot = || format!("cannot read {}", file.display());
    let bytes = input::read(file, FILE_BYTES_MAX).with_context(cannot).or_exit(Code::Usage)?;
    String::from_utf8(bytes)
        .map_err(|_| anyhow!("stream did not contain valid UTF-8"))
        .with_context(cannot)
        .or_exit(Code::Usage)
}

fn node(topology: &Topology, name: &str) -> Result<NodeId, CommandFailure> {
    let found = topology.node(name).ok_or_else(|| {
        let known: Vec<_> = topology.nodes.iter().take(20).map(|node| node.name.as_str()).collect();
        let name = name.escape_debug();
        anyhow!("there is no host or switch '{name}': there are {}", known.join(", "))
    });
    found.or_exit(Code::Usage)
}

fn check(files: &[PathBuf], json: bool) -> Result<Code, CommandFailure> {
    let mut code = Code::Done;
    let mut results = Vec::new();
    for file in files {
        let name = file.display().to_string();
        let faults = match Topology::read(&text_of(file)?) {
            Ok(topology) => {
                if !json {
                    print(&format!("{name}: good: {}\n", summary(&topology)))?;
                }
                Vec::new()
            }
            Err(faults) => faults.0,
        };
        for fault in &faults {
            code = Code::Failed;
            if !json {
                say(format!("{name}:{fault}"));
            }
        }
        let faults = faults.iter().map(|fault| shown::TopologyFaultJson {
            line: fault.line,
            column: fault.column,
            text: fault.text.clone(),
        });
        results.push(shown::CheckedFile { file: name, faults: faults.collect() });
    }
    if json {
        crate::json::print(&shown::TopologyCheckJson { files: results })?;
    }
    Ok(code)
}

fn print(text: &str) -> io::Result<()> {
    io::stdout().write_all(text.as_bytes())
}

fn line(value: &impl serde::Serialize) -> String {
    format!("{}\n", serde_json::to_string(value).expect("plain data"))
}

fn summary(topology: &Topology) -> String {
    let hosts = topology.hosts().count();
    let count = |count: usize, one: &str| match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {one}{}", if one.ends_with("ch") { "es" } else { "s" }),
    };
    [
        count(topology.sites.len(), "site"),
        count(hosts, "host"),
        count(topology.nodes.len() - hosts, "switch"),
        count(topology.links.len(), "link"),
    ]
    .join(", ")
}

fn table(topology: &Topology) -> String {
    let mut text = topology.title.as_deref().unwrap_or(&topology.name).to_owned();
    let _ = write!(text, "\n{}", summary(topology));
    if let Some(source) = &topology.source {
        let _ = write!(text, "\nafter {source}");
    }
    text += "\n\n";
    let width = |names: &mut dyn Iterator<Item = usize>| names.max().unwrap_or(0);
    let nodes = width(&mut topology.nodes.iter().map(|node| node.name.chars().count()));
    for node in &topology.nodes {
        let kind = if node.kind == NodeKind::Host { "host" } else { "switch" };
        let site = node.site.map_or("", |site| topology.sites[site.0].name.as_str());
        let row = format!("{:nodes$}  {kind:6}  {site}{}", node.name, interfaces(node));
        let _ = writeln!(text, "{}", row.trim_end());
    }
    text.push('\n');
    let links = width(&mut topology.links.iter().map(|link| link.name.chars().count()));
    for link in &topology.links {
        let [a, b] = link.ends.map(|end| topology.show_end(end));
        let mut row = format!("{:links$}  {a} - {b}  {}", link.name, draw::describe(link));
        if let Some(queue) = link.queue {
            let _ = write!(row, ", queue {queue}");
        }
        if let Some(mark) = link.mark {
            let _ = write!(row, ", marked from {mark}");
        }
        if let Some(operator) = &link.operator {
            let _ = write!(row, ", {operator}");
        }
        if !link.risk_groups.is_empty() {
            let _ = write!(row, ", risks: {}", link.risk_groups.join(" "));
        }
        let _ = writeln!(text, "{row}");
    }
    text
}

fn interfaces(node: &Node) -> String {
    let mut text = String::new();
    for interface in &node.interfaces {
        let _ = write!(text, "  {} mtu {}", interface.name, interface.mtu);
        if let Some(rate) = interface.rate {
            let _ = write!(text, " {rate}");
        }
        if let Some(numa_node) = interface.numa_node {
            let _ = write!(text, " numa {numa_node}");
        }
    }
    text
}

fn object(topology: &Topology) -> shown::NetworkJson {
    let sites = topology.sites.iter().map(|site| shown::SiteJson {
        name: site.name.clone(),
        title: site.title.clone(),
        latitude: site.position.map(|at| at.latitude),
        longitude: site.position.map(|at| at.longitude),
    });
    let nodes = topology.nodes.iter().map(|node| {
        let interfaces = node.interfaces.iter().map(|interface| shown::InterfaceJson {
            name: interface.name.clone(),
            rate_bits_per_second: interface.rate.map(|rate| rate.0),
            mtu_bytes: interface.mtu,
            numa_node: interface.numa_node,
        });
        shown::NodeJson {
            name: node.name.clone(),
            kind: if node.kind == NodeKind::Host { "host" } else { "switch" },
            site: node.site.map(|site| topology.sites[site.0].name.clone()),
            buffer_bytes: node.buffer.map(|buffer| buffer.0),
            interfaces: interfaces.collect(),
        }
    });
    let links = topology.links.iter().map(|link| shown::LinkJson {
        name: link.name.clone(),
        ends: link.ends.map(|end| topology.show_end(end)),
        rate_bits_per_second: link.rate.0,
        delay_seconds: link.delay.as_secs_f64(),
        delay_source: match link.delay_source {
            DelaySource::Given => "given",
            DelaySource::Fibre => "fibre",
            DelaySource::GreatCircle => "great_circle",
            DelaySource::None => "none",
        },
        jitter_seconds: link.jitter.as_secs_f64(),
        loss: link.loss,
        loss_burst_packets: link.loss_burst,
        queue_bytes: link.queue.map(|queue| queue.0),
        mark_bytes: link.mark.map(|mark| mark.0),
        vlan: link.vlan,
        risk_groups: link.risk_groups.clone(),
        operator: link.operator.clone(),
    });
    shown::NetworkJson {
        name: topology.name.clone(),
        title: topology.title.clone(),
        source: topology.source.clone(),
        sites: sites.collect(),
        nodes: nodes.collect(),
        links: links.collect(),
    }
}

fn paths(
    topology: &Topology,
    [from, to]: [NodeId; 2],
    count: usize,
    by: Disjoint,
    json: bool,
) -> Result<String, CommandFailure> {
    let name = |node: NodeId| topology.nodes[node.0].name.as_str();
    if from == to {
        return Err(anyhow!("'{}' is there already: name two nodes", name(from)))
            .or_exit(Code::Usage);
    }
    let (ways, are_best) = best_disjoint(topology, from, to, count, by);
    if ways.is_empty() {
        return Err(anyhow!("no way leads from '{}' to '{}'", name(from), name(to)).into());
    }
    if json {
        let paths = shown::PathsJson {
            from: name(from).to_owned(),
            to: name(to).to_owned(),
            paths: ways.iter().map(|way| path(topology, way)).collect(),
            best: are_best,
        };
        return Ok(line(&paths));
    }
    let mut text = String::new();
    for way in &ways {
        let nodes: Vec<_> = way.nodes.iter().map(|node| name(*node)).collect();
        let rate = way.rate(topology).map(|rate| rate.to_string()).unwrap_or_default();
        let round = display_latency(way.delay(topology) * 2);
        let _ = write!(text, "{}  {rate}, round trip {round}", nodes.join(" - "));
        if way.loss(topology) > 0.0 {
            let _ = write!(text, ", {:.3} % lost", way.loss(topology) * 100.0);
        }
        text.push('\n');
    }
    if ways.len() < count {
        let _ = writeln!(text, "no more than {} of {count} are there", ways.len());
    }
    if !are_best {
        text += "the search was given up: there may be more or better ones\n";
    }
    Ok(text)
}

fn path(topology: &Topology, way: &Way) -> shown::PathJson {
    let links = way.links.iter().map(|link| topology.links[link.0].name.clone());
    let nodes = way.nodes.iter().map(|node| topology.nodes[node.0].name.clone());
    shown::PathJson {
        nodes: nodes.collect(),
        links: links.collect(),
        rate_bits_per_second: way.rate(topology).map(|rate| rate.0),
        delay_seconds: way.delay(topology).as_secs_f64(),
        loss: way.loss(topology),
        risk_groups: way.risks(topology).into_iter().map(str::to_owned).collect(),
    }
}
