//! `penstock plan`: network needs of experiments by year, and when links of a topology overflow.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use penstock_plan::{DemandPlan, LinkLoads, TrafficModel, chart, forecast};
use penstock_topology::{Scale, Topology, draw};
use penstock_units::{BitRate, ByteCount, display_duration};

use crate::exit::{Code, CommandFailure, OrExit};
use crate::json::plan as shown;
use crate::table::table;
use crate::topology::{TopologyArgs, text_of};

/// Plan capacity: what experiments need year by year, what links must carry, when they overflow
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A plan is a TOML file of experiments, the sites between which they move data, models of what networks must have for it, \
and growth; docs/plan.md has all of its words. FILE may be - for standard input.

Examples:
  penstock plan experiments/plans/hl-lhc.toml
  penstock plan experiments/plans/hl-lhc.toml \\
    --topology experiments/plans/hl-lhc-network.toml --model minimal
  penstock plan experiments/plans/hl-lhc.toml --svg > need.svg
  penstock plan experiments/plans/hl-lhc.toml \\
    --topology experiments/plans/hl-lhc-network.toml \\
    --svg --year 2031 > links.svg
  penstock plan experiments/plans/hl-lhc.toml --json")]
pub(crate) struct PlanArgs {
    /// The plan, or - for standard input
    file: PathBuf,
    /// Topology that carries the traffic
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Only this model; the first for a picture of links
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Only this year; the first for a picture of links
    #[arg(long)]
    year: Option<u16>,
    /// Print one JSON object; docs/json.md has its fields
    #[arg(long, conflicts_with = "svg")]
    json: bool,
    /// Draw links by utilisation with --topology, else the need by year, or of one year with --year
    #[arg(long)]
    svg: bool,
}

pub(crate) fn run(args: &PlanArgs) -> Result<Code, CommandFailure> {
    let text = text_of(&args.file)?;
    let mut plan = DemandPlan::read(&text)
        .map_err(|faults| {
            let first = faults.0.first().map(ToString::to_string).unwrap_or_default();
            let more = match faults.0.len() {
                0 | 1 => String::new(),
                count => format!(" (and {} more)", count - 1),
            };
            anyhow!("{}:{first}{more}", args.file.display())
        })
        .or_exit(Code::Usage)?;
    if let Some(name) = &args.model {
        let known: Vec<_> = plan.models.iter().map(|model| model.name.clone()).collect();
        plan.models.retain(|model| model.name == *name);
        if plan.models.is_empty() {
            let name = name.escape_debug();
            let error = anyhow!("there is no model '{name}': there are {}", known.join(", "));
            return Err(error).or_exit(Code::Usage);
        }
    }
    let years: Vec<u16> =
        plan.years.clone().filter(|year| args.year.is_none_or(|only| only == *year)).collect();
    if years.is_empty() {
        let (first, last) = (plan.years.start(), plan.years.end());
        return Err(anyhow!("the plan is for the years {first} to {last}")).or_exit(Code::Usage);
    }
    let network = match &args.topology {
        Some(file) => Some(LoadedNetwork::read(file, &plan)?),
        None => None,
    };
    let printed = if args.svg {
        picture(&plan, network.as_ref(), &years)
    } else if args.json {
        format!(
            "{}\n",
            serde_json::to_string(&object(&plan, network.as_ref(), &years))
                .context("plain data")?
        )
    } else {
        tables(&plan, network.as_ref(), &years)
    };
    io::stdout().write_all(printed.as_bytes())?;
    Ok(Code::Done)
}

/// A topology with the link loads of each model.
struct LoadedNetwork {
    topology: Topology,
    loads: Vec<LinkLoads>,
}

impl LoadedNetwork {
    fn read(file: &std::path::Path, plan: &DemandPlan) -> Result<Self, CommandFailure> {
        let topology = TopologyArgs { file: file.to_owned(), scale: Scale::FULL }.read()?;
        let loads = plan.models.iter().map(|model| LinkLoads::of(plan, &topology, model));
        let loads: Result<Vec<_>, _> = loads.collect();
        let loads = loads.map_err(|error| anyhow!("{}: {error}", file.display()));
        Ok(Self { loads: loads.or_exit(Code::Usage)?, topology })
    }
}

fn picture(plan: &DemandPlan, network: Option<&LoadedNetwork>, years: &[u16]) -> String {
    let Some(LoadedNetwork { topology, loads }) = network else { return chart::svg(plan, years) };
    let year = usize::from(years[0] - plan.years.start());
    let rates: Vec<BitRate> = loads[0].links.iter().map(|link| link.most(year)).collect();
    draw::svg_loaded(topology, &rates)
}

fn tables(plan: &DemandPlan, network: Option<&LoadedNetwork>, years: &[u16]) -> String {
    let mut text = plan.title.as_deref().unwrap_or(&plan.name).to_owned();
    if let Some(source) = &plan.source {
        let _ = write!(text, "\nafter {source}");
    }
    text += "\n\n";
    let first = *plan.years.start();
    let words = ["experiment", "flow", "from", "to", &format!("mean {first}"), "growth", ""];
    let mut rows = vec![words.map(str::to_owned).to_vec()];
    for experiment in &plan.experiments {
        for flow in &experiment.flows {
            let to = match flow.to.as_slice() {
                [only] => plan.sites[only.site].name.clone(),
                many => format!("{} sites", many.len()),
            };
            let data = flow.data.map_or_else(String::new, |(bytes, time)| {
                format!("{} within {}", decimal(bytes), display_duration(time))
            });
            let growth = format!("{} % a year", flow.growth_permille as f64 / 10.0);
            let from = plan.sites[flow.from].name.clone();
            let (name, rate) = (flow.name.clone(), flow.rate.to_string());
            rows.push(vec![experiment.name.clone(), name, from, to, rate, growth, data]);
        }
    }
    text += &table(&rows);
    for model in &plan.models {
        text += "\n";
        text += &need(plan, model, years);
    }
    if let Some(network) = network {
        for (model, loads) in plan.models.iter().zip(&network.loads) {
            text += "\n";
            text += &link_table(plan, network, model, loads, years);
        }
    }
    text
}

/// Formats bytes in powers of 1000, as data volumes are planned.
fn decimal(ByteCount(bytes): ByteCount) -> String {
    const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let (mut number, mut unit) = (bytes as f64, 0);
    while number >= 999.95 && unit + 1 < UNITS.len() {
        (number, unit) = (number / 1000.0, unit + 1);
    }
    let number = format!("{number:.1}");
    format!("{} {}", number.strip_suffix(".0").unwrap_or(&number), UNITS[unit])
}

/// Table of the need of each experiment and in total.
fn need(plan: &DemandPlan, model: &TrafficModel, years: &[u16]) -> String {
    let mut words = vec![format!("need, {}", model.name)];
    words.extend(years.iter().map(ToString::to_string));
    let mut rows = vec![words];
    for experiment in &plan.experiments {
        let rate = |year: &u16| forecast::of_experiment(plan, experiment, model, *year).to_string();
        rows.push([experiment.name.clone()].into_iter().chain(years.iter().map(rate)).collect());
    }
    let rate = |year: &u16| forecast::total(plan, model, *year).to_string();
    rows.push(["total".to_owned()].into_iter().chain(years.iter().map(rate)).collect());
    let factors: Vec<String> = model
        .factors
        .iter()
        .map(|factor| format!("{} × {}", factor.permille as f64 / 1000.0, factor.name))
        .collect();
    let factors =
        if factors.is_empty() { String::new() } else { format!("{}\n", factors.join(", ")) };
    format!("{}{factors}", table(&rows))
}

fn link_table(
    plan: &DemandPlan,
    network: &LoadedNetwork,
    model: &TrafficModel,
    loads: &LinkLoads,
    years: &[u16],
) -> String {
    let mut words = vec![format!("links, {}", model.name), "rate".to_owned()];
    words.extend(years.iter().map(ToString::to_string));
    words.push("overflows".to_owned());
    let mut rows = vec![words];
    for load in &loads.links {
        let link = &network.topology.links[load.link.0];
        let mut row = vec![link.name.clone(), link.rate.to_string()];
        row.extend(years.iter().map(|year| {
            let most = load.most(usize::from(year - plan.years.start()));
            if most.0 == 0 {
                return "-".to_owned();
            }
            format!("{most} {:.0} %", most.0 as f64 / link.rate.0 as f64 * 100.0)
        }));
        row.push(load.overflows.map_or_else(String::new, |year| format!("in {year}")));
        rows.push(row);
    }
    table(&rows)
}

fn object(
    plan: &DemandPlan,
    network: Option<&LoadedNetwork>,
    years: &[u16],
) -> shown::CapacityPlan {
    let site = |site: usize| plan.sites[site].name.clone();
    let experiments = plan.experiments.iter().map(|experiment| {
        let flows = experiment.flows.iter().map(|flow| {
            let shares = flow.split(flow.rate);
            let shares = shares
                .map(|(to, rate)| shown::Share { site: site(to), rate_bits_per_second: rate.0 });
            shown::FlowJson {
                name: flow.name.clone(),
                from: site(flow.from),
                to: shares.collect(),
                rate_bits_per_second: flow.rate.0,
                data_bytes: flow.data.map(|(bytes, _)| bytes.0),
                within_seconds: flow.data.map(|(_, time)| time.as_secs_f64()),
                growth_per_year: flow.growth_permille as f64 / 1000.0,
            }
        });
        shown::ExperimentJson {
            name: experiment.name.clone(),
            title: experiment.title.clone(),
            flows: flows.collect(),
        }
    });
    let models = plan.models.iter().enumerate().map(|(number, model)| {
        let factors = model.factors.iter().map(|factor| shown::Factor {
            name: factor.name.clone(),
            times: factor.permille as f64 / 1000.0,
        });
        let links = network.map(|network| {
            let all = network.loads[number].links.iter();
            all.map(|load| link_object(plan, &network.topology, load, years)).collect()
        });
        shown::ModelJson {
            name: model.name.clone(),
            title: model.title.clone(),
            factors: factors.collect(),
            years: years.iter().map(|year| year_object(plan, model, *year)).collect(),
            links,
        }
    });
    shown::CapacityPlan {
        name: plan.name.clone(),
        title: plan.title.clone(),
        source: plan.source.clone(),
        topology: network.map(|network| network.topology.name.clone()),
        experiments: experiments.collect(),
        models: models.collect(),
    }
}

fn year_object(plan: &DemandPlan, model: &TrafficModel, year: u16) -> shown::Year {
    let experiments = plan.experiments.iter().map(|one| shown::ExperimentNeed {
        name: one.name.clone(),
        rate_bits_per_second: forecast::of_experiment(plan, one, model, year).0,
    });
    let sites = plan.sites.iter().enumerate().map(|(number, site)| {
        let [into, out] = forecast::of_site(plan, number, model, year);
        shown::SiteNeed {
            name: site.name.clone(),
            in_bits_per_second: into.0,
            out_bits_per_second: out.0,
        }
    });
    shown::Year {
        year,
        rate_bits_per_second: forecast::total(plan, model, year).0,
        experiments: experiments.collect(),
        sites: sites.collect(),
    }
}

fn link_object(
    plan: &DemandPlan,
    topology: &Topology,
    load: &penstock_plan::LinkLoad,
    years: &[u16],
) -> shown::PlanLinkJson {
    let link = &topology.links[load.link.0];
    let by_year = years.iter().map(|year| {
        let [there, back] = load.rates[usize::from(year - plan.years.start())];
        shown::LinkYear { year: *year, rates_bits_per_second: [there.0, back.0] }
    });
    shown::PlanLinkJson {
        name: link.name.clone(),
        ends: link.ends.map(|end| topology.show_end(end)),
        rate_bits_per_second: link.rate.0,
        years: by_year.collect(),
        overflows: load.overflows,
    }
}
