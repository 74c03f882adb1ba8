//! The network of the topology, and the use of its links.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use penstock_http::{ProblemDetails, Refused};
use penstock_topology::{LinkEnd, NodeKind, Topology};
use serde::Serialize;
use utoipa::ToSchema;

use super::facts::{InterfaceReport, all_interfaces};
use super::series::{RangeRequest, live};
use super::{RawQuery, TelemetryParams};
use crate::changes::InterfaceSnapshot;
use crate::config::KnownExporter;
use crate::directory::address_in_key;
use crate::query::{By, Query};
use crate::query_executor::TimeBuckets;
use crate::row::RowDirection;
use crate::shared::{Shared, unix_now};

/// Seconds of samples that give a rate without counters.
const SAMPLED_S: i64 = 10;

/// Age of a report beyond which the state of an interface is unknown.
const STATE_S: f64 = 120.0;

/// A site of the topology.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TopologySite)]
pub(crate) struct SiteFacts {
    /// Key, as in filters.
    name: String,
    /// Display name of the site.
    title: String,
    /// Latitude in degrees, north positive; null if unknown.
    latitude: Option<f64>,
    /// Longitude in degrees, east positive; null if unknown.
    longitude: Option<f64>,
}

/// A host or switch of the topology.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TopologyNode)]
pub(crate) struct NodeFacts {
    /// Name of the node.
    name: String,
    /// Kind of the node: host or switch.
    kind: &'static str,
    /// Site of the node.
    site: Option<String>,
    /// Names of its interfaces.
    interfaces: Vec<String>,
}

/// A link of the topology.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TopologyLink)]
pub(crate) struct LinkFacts {
    /// Name of the link.
    name: String,
    /// End a: node, or node:interface.
    a: String,
    /// End b: node, or node:interface.
    b: String,
    /// Node of end a.
    a_node: String,
    /// Node of end b.
    b_node: String,
    /// Site of end a.
    a_site: Option<String>,
    /// Site of end b.
    b_site: Option<String>,
    /// Capacity of each direction in bits per second.
    capacity_bps: u64,
    /// Delay of one direction.
    delay_ms: f64,
    /// VLAN id; null if untagged.
    vlan: Option<u16>,
}

/// The topology of the network.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Topology)]
pub(crate) struct TopologyFacts {
    /// Name of the network; null without a topology.
    name: Option<String>,
    /// Title of the network.
    title: Option<String>,
    /// Sites of the network.
    sites: Vec<SiteFacts>,
    /// Hosts and switches of the network.
    nodes: Vec<NodeFacts>,
    /// Links of the network.
    links: Vec<LinkFacts>,
}

fn site_of(topology: &Topology, end: LinkEnd) -> Option<String> {
    let site = topology.nodes[end.node.0].site?;
    Some(topology.sites[site.0].name.clone())
}

fn links_of(topology: &Topology) -> Vec<LinkFacts> {
    let node = |end: LinkEnd| topology.nodes[end.node.0].name.clone();
    let facts = topology.links.iter().map(|link| {
        let [a, b] = link.ends;
        LinkFacts {
            name: link.name.clone(),
            a: topology.show_end(a),
            b: topology.show_end(b),
            a_node: node(a),
            b_node: node(b),
            a_site: site_of(topology, a),
            b_site: site_of(topology, b),
            capacity_bps: link.rate.0,
            delay_ms: link.delay.as_secs_f64() * 1e3,
            vlan: link.vlan,
        }
    });
    facts.collect()
}

/// Returns the configured topology; empty without one.
#[utoipa::path(get, path = "/api/v1/topology", security((), ("token" = [])),
    responses((status = 200, body = TopologyFacts, description = "The topology"), Refused))]
pub(super) async fn topology(
    State(shared): State<Arc<Shared>>,
    given: RawQuery,
) -> Result<Json<TopologyFacts>, ProblemDetails> {
    TelemetryParams::new(given)?.none()?;
    let Some(topology) = &shared.config.topology else {
        let (sites, nodes, links) = (Vec::new(), Vec::new(), Vec::new());
        return Ok(Json(TopologyFacts { name: None, title: None, sites, nodes, links }));
    };
    let sites = topology.sites.iter().map(|site| SiteFacts {
        name: site.name.clone(),
        title: site.shown().to_owned(),
        latitude: site.position.map(|position| position.latitude),
        longitude: site.position.map(|position| position.longitude),
    });
    let nodes = topology.nodes.iter().map(|node| NodeFacts {
        name: node.name.clone(),
        kind: match node.kind {
            NodeKind::Host => "host",
            NodeKind::Switch => "switch",
        },
        site: node.site.map(|site| topology.sites[site.0].name.clone()),
        interfaces: node.interfaces.iter().map(|interface| interface.name.clone()).collect(),
    });
    Ok(Json(TopologyFacts {
        name: Some(topology.name.clone()),
        title: topology.title.clone(),
        sites: sites.collect(),
        nodes: nodes.collect(),
        links: links_of(topology),
    }))
}

/// Use of one direction of a link.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = TelemetryFlowing)]
pub(crate) struct DirectionUse {
    /// Bits per second; null if neither end reports.
    bps: Option<f64>,
    /// Half-width of the 95 % interval; 0 for counted rates.
    error_bps: Option<f64>,
    /// Share of the capacity in use, 0 to 1.
    share: Option<f64>,
    /// Source of the rate: counters or samples.
    from: Option<&'static str>,
    /// Seconds over which the rate is a mean; null if unknown.
    interval_s: Option<f64>,
}

/// A link with its use.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryLink)]
pub(crate) struct LinkUse {
    /// The link in the topology.
    #[serde(flatten)]
    facts: LinkFacts,
    /// Traffic from a to b.
    a_to_b: DirectionUse,
    /// Traffic from b to a.
    b_to_a: DirectionUse,
    /// False if the interface at either end is reported down; null without a recent report.
    up: Option<bool>,
    /// Time of the last counters of either end, in seconds since 1970.
    told_unix_seconds: Option<f64>,
}

/// All links with their use.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryLinks)]
pub(crate) struct Links {
    /// Links in the order of the topology.
    links: Vec<LinkUse>,
}

/// End of a link: a node's interface, or the link itself at a node with unnamed ports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum LinkEndKey {
    Interface(String, String),
    Link(String, String),
}

/// Exporters of the configuration by their address.
fn known_exporters(shared: &Shared) -> HashMap<String, &KnownExporter> {
    let known = shared.config.exporters.iter();
    known.map(|one| (one.address.to_canonical().to_string(), one)).collect()
}

/// End of a link at which an interface is; `None` if the interface has neither a name nor a
/// configured link.
fn end_of(known: &HashMap<String, &KnownExporter>, facts: &InterfaceReport) -> Option<LinkEndKey> {
    let known = known.get(address_in_key(&facts.exporter));
    let link = known.and_then(|known| {
        let by_name = facts.interface.as_ref().and_then(|name| known.links.get(name));
        known.links.get(&facts.index.to_string()).or(by_name)
    });
    match (link, &facts.interface) {
        (Some(link), _) => Some(LinkEndKey::Link(facts.host.clone(), link.clone())),
        (None, Some(name)) => Some(LinkEndKey::Interface(facts.host.clone(), name.clone())),
        (None, None) => None,
    }
}

/// Finds the report for an end of a link.
fn at_end<'t, T>(
    topology: &Topology,
    report: &'t HashMap<LinkEndKey, T>,
    end: LinkEnd,
    link: &str,
) -> Option<&'t T> {
    let node = &topology.nodes[end.node.0];
    let by_link = report.get(&LinkEndKey::Link(node.name.clone(), link.to_owned()));
    let by_name = || {
        let interface = node.interfaces.get(end.interface?)?;
        report.get(&LinkEndKey::Interface(node.name.clone(), interface.name.clone()))
    };
    by_link.or_else(by_name)
}

/// Keys of the interfaces at both ends of each link of the topology, in its order.
pub(super) fn keys_at_ends(shared: &Shared) -> Vec<[Option<String>; 2]> {
    let Some(topology) = &shared.config.topology else { return Vec::new() };
    let (interfaces, _) = all_interfaces(shared);
    let known = known_exporters(shared);
    let keys: HashMap<LinkEndKey, String> = interfaces
        .iter()
        .filter_map(|facts| Some((end_of(&known, facts)?, facts.key.clone())))
        .collect();
    let links = topology.links.iter();
    links
        .map(|link| link.ends.map(|end| at_end(topology, &keys, end, &link.name).cloned()))
        .collect()
}

/// State of each interface, with its link in the topology.
pub(crate) fn interface_states(shared: &Shared) -> Vec<InterfaceSnapshot> {
    let names = shared.config.topology.iter().flat_map(|topology| &topology.links);
    let links: HashMap<String, &str> = keys_at_ends(shared)
        .into_iter()
        .zip(names)
        .flat_map(|(keys, link)| keys.into_iter().flatten().map(|key| (key, link.name.as_str())))
        .collect();
    let now = unix_now();
    let (interfaces, _) = all_interfaces(shared);
    let states = interfaces.into_iter().map(|facts| {
        let fresh = facts.told_s.is_some_and(|report| report > now - STATE_S);
        InterfaceSnapshot {
            link: links.get(&facts.key).map(|link| (*link).to_owned()),
            up: facts.up.filter(|_| fresh),
            name: facts.name,
            key: facts.key,
        }
    });
    states.collect()
}

/// Report of the interface at an end of a link.
#[derive(Debug)]
struct EndReport {
    /// Received and sent traffic.
    flowing: [DirectionUse; 2],
    up: Option<bool>,
    /// Time of the report, in seconds since 1970.
    at_s: Option<f64>,
}

/// Reports by end of a link.
type Rates = HashMap<LinkEndKey, EndReport>;

/// Mean rates of interfaces by key, received and sent, over a time range.
pub(super) struct InterfaceMeans {
    pub(super) by_key: [HashMap<String, (f64, f64)>; 2],
    pub(super) length_s: f64,
}

fn rates(shared: &Shared, means: Option<&InterfaceMeans>) -> Rates {
    let (interfaces, _) = all_interfaces(shared);
    let now = unix_now() as i64;
    let span = TimeBuckets { start_s: now - SAMPLED_S - 1, step_s: SAMPLED_S, buckets: 1 };
    let sampled = |direction| {
        let query = Query { direction: Some(direction), ..Query::of(By::Interface) };
        let answer = live(shared, &query, span);
        let seconds = answer.covered_s[0];
        let known = answer.series.iter().filter(|_| seconds > 0.0);
        known
            .map(|(key, sums)| {
                let rate = |bytes: f64| bytes * 8.0 / seconds;
                (key.clone(), (rate(sums[0].bytes), rate(answer.half_widths(sums)[0])))
            })
            .collect::<HashMap<_, _>>()
    };
    let own;
    let (sampled, length_s) = match means {
        Some(means) => (&means.by_key, means.length_s),
        None => {
            own = [sampled(RowDirection::In), sampled(RowDirection::Out)];
            (&own, SAMPLED_S as f64)
        }
    };
    let known = known_exporters(shared);
    let mut rates = Rates::new();
    for facts in interfaces {
        let Some(at) = end_of(&known, &facts) else { continue };
        let flowing = |counted: Option<f64>, sampled: &HashMap<String, (f64, f64)>| match counted
            .filter(|_| means.is_none())
        {
            Some(bps) => DirectionUse {
                bps: Some(bps),
                error_bps: Some(0.0),
                share: None,
                from: Some("counters"),
                interval_s: facts.interval_s,
            },
            None => match sampled.get(&facts.key) {
                Some((bps, error)) => DirectionUse {
                    bps: Some(bps.round()),
                    error_bps: Some(error.round()),
                    share: None,
                    from: Some(if *error == 0.0 { "counters" } else { "samples" }),
                    interval_s: Some(length_s),
                },
                None => DirectionUse::default(),
            },
        };
        let both = [
            flowing(facts.input.counted_bps(), &sampled[0]),
            flowing(facts.output.counted_bps(), &sampled[1]),
        ];
        let fresh = facts.told_s.is_some_and(|report| report > now as f64 - STATE_S);
        let up = facts.up.filter(|_| fresh);
        rates.insert(at, EndReport { flowing: both, up, at_s: facts.told_s });
    }
    rates
}

/// Lists links of the topology with their use, as reported by the interfaces at their ends: now, or
/// as means over a time range.
#[utoipa::path(get, path = "/api/v1/telemetry/links", operation_id = "telemetry_links", security((), ("token" = [])),
    params(
        ("from" = Option<i64>, Query, description = "As of series; the newest figures if not given"),
        ("to" = Option<i64>, Query, description = "As of series"),
    ),
    responses((status = 200, body = Links, description = "Links with their rates"), Refused))]
pub(super) async fn links(
    State(shared): State<Arc<Shared>>,
    given: RawQuery,
) -> Result<Json<Links>, ProblemDetails> {
    let mut params = TelemetryParams::new(given)?;
    if !params.has("from") && !params.has("to") {
        params.none()?;
        return Ok(Json(Links { links: links_in_use(&shared, None) }));
    }
    let asked = RangeRequest::new(&mut params)?;
    params.none()?;
    let means = super::link_series::means(&shared, asked).await?;
    Ok(Json(Links { links: links_in_use(&shared, Some(&means)) }))
}

/// Share of a link's capacity in use, in its busier direction; `None` without a report.
pub(crate) fn link_share(shared: &Shared, name: &str) -> Option<f64> {
    let links = links_in_use(shared, None);
    let link = links.iter().find(|link| link.facts.name == name)?;
    [link.a_to_b.share, link.b_to_a.share].into_iter().flatten().reduce(f64::max)
}

fn links_in_use(shared: &Shared, means: Option<&InterfaceMeans>) -> Vec<LinkUse> {
    let Some(topology) = &shared.config.topology else { return Vec::new() };
    let rates = rates(shared, means);
    let report = |end: LinkEnd, link: &str| at_end(topology, &rates, end, link);
    let at = |end: LinkEnd, link: &str, out: usize| {
        let found = &report(end, link)?.flowing[out];
        found.bps.map(|_| found)
    };
    let links = links_of(topology).into_iter().zip(&topology.links).map(|(facts, link)| {
        let [a, b] = link.ends;
        let flowing = |from, to| match at(from, &link.name, 1).or_else(|| at(to, &link.name, 0)) {
            None => DirectionUse::default(),
            Some(flowing) => DirectionUse {
                bps: flowing.bps,
                error_bps: flowing.error_bps,
                share: flowing.bps.map(|bps| bps / link.rate.0 as f64),
                from: flowing.from,
                interval_s: flowing.interval_s,
            },
        };
        let ends = [report(a, &link.name), report(b, &link.name)];
        let states = ends.iter().flatten().filter_map(|report| report.up);
        let times = ends.iter().flatten().filter_map(|report| report.at_s);
        LinkUse {
            facts,
            a_to_b: flowing(a, b),
            b_to_a: flowing(b, a),
            up: states.reduce(|one, other| one && other),
            told_unix_seconds: times.reduce(f64::max),
        }
    });
    links.collect()
}
