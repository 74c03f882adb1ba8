//! The network of the topology, and how much of its links is in use.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use penstock_http::{ApiError, ErrorBody};
use penstock_topology::{LinkEnd, NodeKind, Topology};
use serde::Serialize;
use utoipa::ToSchema;

use super::facts::{InterfaceFacts, all_interfaces};
use super::series::{Asked, live};
use super::{Given, Params};
use crate::answer::Span;
use crate::changes::InterfaceState;
use crate::config::KnownExporter;
use crate::query::{By, Query};
use crate::row::Direction;
use crate::shared::{Shared, unix_now};

/// Samples of so many seconds tell a rate where nothing is counted.
const SAMPLED_S: i64 = 10;

/// An interface that told nothing for so long is not known to be up or down.
const STATE_S: f64 = 120.0;

/// A site.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TopologySite)]
pub(crate) struct SiteFacts {
    /// As filters take it.
    name: String,
    /// For people.
    title: String,
    /// In degrees, north positive; null where it is not known.
    latitude: Option<f64>,
    /// In degrees, east positive.
    longitude: Option<f64>,
}

/// A host or switch.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TopologyNode)]
pub(crate) struct NodeFacts {
    /// Its name.
    name: String,
    /// host or switch.
    kind: &'static str,
    /// Its site.
    site: Option<String>,
    /// Names of its interfaces.
    interfaces: Vec<String>,
}

/// A link.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TopologyLink)]
pub(crate) struct LinkFacts {
    /// Its name.
    name: String,
    /// One end: node, or node:interface.
    a: String,
    /// The other end.
    b: String,
    /// Node of one end.
    a_node: String,
    /// Node of the other.
    b_node: String,
    /// Site of one end.
    a_site: Option<String>,
    /// Site of the other.
    b_site: Option<String>,
    /// Of each direction.
    capacity_bps: u64,
    /// One way.
    delay_ms: f64,
    /// VLAN.
    vlan: Option<u16>,
}

/// A network.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Topology)]
pub(crate) struct Network {
    /// Its name; null where none is configured.
    name: Option<String>,
    /// Its longer name.
    title: Option<String>,
    /// Places.
    sites: Vec<SiteFacts>,
    /// Hosts and switches.
    nodes: Vec<NodeFacts>,
    /// Links.
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

/// The network that the collector was told of; empty where it was told of none.
#[utoipa::path(get, path = "/api/v1/topology", security((), ("token" = [])),
    responses((status = 200, body = Network), (status = "4XX", body = ErrorBody, content_type = "application/problem+json")))]
pub(super) async fn topology(
    State(shared): State<Arc<Shared>>,
    given: Given,
) -> Result<Json<Network>, ApiError> {
    Params::new(given)?.none()?;
    let Some(topology) = &shared.config.topology else {
        let (sites, nodes, links) = (Vec::new(), Vec::new(), Vec::new());
        return Ok(Json(Network { name: None, title: None, sites, nodes, links }));
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
    Ok(Json(Network {
        name: Some(topology.name.clone()),
        title: topology.title.clone(),
        sites: sites.collect(),
        nodes: nodes.collect(),
        links: links_of(topology),
    }))
}

/// A direction of a link.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = TelemetryFlowing)]
pub(crate) struct Flowing {
    /// Bits per second; null where neither end tells.
    bps: Option<f64>,
    /// Half-width of the 95 % interval; 0 for what is counted.
    error_bps: Option<f64>,
    /// Of the capacity, 0 to 1.
    share: Option<f64>,
    /// counters or samples.
    from: Option<&'static str>,
    /// Over how many seconds; null where it is not known.
    interval_s: Option<f64>,
}

/// A link with its use.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryLink)]
pub(crate) struct LinkUse {
    /// What the topology says.
    #[serde(flatten)]
    facts: LinkFacts,
    /// From a to b.
    a_to_b: Flowing,
    /// From b to a.
    b_to_a: Flowing,
    /// False where the interface at either end says that it is down; null where neither told lately.
    up: Option<bool>,
    /// When counters of either end came last, in seconds since 1970.
    told_unix_seconds: Option<f64>,
}

/// Links with their use.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TelemetryLinks)]
pub(crate) struct Links {
    /// In the order of the topology.
    links: Vec<LinkUse>,
}

/// An end of a link: a node's interface, or, at a node whose ports have no names, the link itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum At {
    Interface(String, String),
    Link(String, String),
}

/// Exporters of the configuration by their address.
fn known_exporters(shared: &Shared) -> HashMap<String, &KnownExporter> {
    let known = shared.config.exporters.iter();
    known.map(|one| (one.address.to_canonical().to_string(), one)).collect()
}

/// The end of a link that an interface is at; `None` where it has neither a name nor a link in the configuration.
fn end_of(known: &HashMap<String, &KnownExporter>, facts: &InterfaceFacts) -> Option<At> {
    let known = facts.exporter.split('/').next().and_then(|address| known.get(address));
    let link = known.and_then(|known| {
        let by_name = facts.interface.as_ref().and_then(|name| known.links.get(name));
        known.links.get(&facts.index.to_string()).or(by_name)
    });
    match (link, &facts.interface) {
        (Some(link), _) => Some(At::Link(facts.host.clone(), link.clone())),
        (None, Some(name)) => Some(At::Interface(facts.host.clone(), name.clone())),
        (None, None) => None,
    }
}

/// Finds an end of a link among what interfaces told.
fn at_end<'t, T>(
    topology: &Topology,
    told: &'t HashMap<At, T>,
    end: LinkEnd,
    link: &str,
) -> Option<&'t T> {
    let node = &topology.nodes[end.node.0];
    let by_link = told.get(&At::Link(node.name.clone(), link.to_owned()));
    let by_name = || {
        let interface = node.interfaces.get(end.interface?)?;
        told.get(&At::Interface(node.name.clone(), interface.name.clone()))
    };
    by_link.or_else(by_name)
}

/// Keys of the interfaces at both ends of each link of the topology, in its order.
pub(super) fn keys_at_ends(shared: &Shared) -> Vec<[Option<String>; 2]> {
    let Some(topology) = &shared.config.topology else { return Vec::new() };
    let (interfaces, _) = all_interfaces(shared);
    let known = known_exporters(shared);
    let keys: HashMap<At, String> = interfaces
        .iter()
        .filter_map(|facts| Some((end_of(&known, facts)?, facts.key.clone())))
        .collect();
    let links = topology.links.iter();
    links
        .map(|link| link.ends.map(|end| at_end(topology, &keys, end, &link.name).cloned()))
        .collect()
}

/// State of each interface, with the link of the topology that it is at.
pub(crate) fn interface_states(shared: &Shared) -> Vec<InterfaceState> {
    let names = shared.config.topology.iter().flat_map(|topology| &topology.links);
    let links: HashMap<String, &str> = keys_at_ends(shared)
        .into_iter()
        .zip(names)
        .flat_map(|(keys, link)| keys.into_iter().flatten().map(|key| (key, link.name.as_str())))
        .collect();
    let now = unix_now();
    let (interfaces, _) = all_interfaces(shared);
    let states = interfaces.into_iter().map(|facts| {
        let fresh = facts.told_s.is_some_and(|told| told > now - STATE_S);
        InterfaceState {
            link: links.get(&facts.key).map(|link| (*link).to_owned()),
            up: facts.up.filter(|_| fresh),
            name: facts.name,
            key: facts.key,
        }
    });
    states.collect()
}

/// What an end of a link tells.
#[derive(Debug)]
struct Told {
    /// In and out.
    flowing: [Flowing; 2],
    up: Option<bool>,
    /// When, in seconds since 1970.
    at_s: Option<f64>,
}

/// Rates at ends of links.
type Rates = HashMap<At, Told>;

/// Mean rates of interfaces by key, in and out, over a span that was asked for.
pub(super) struct Means {
    pub(super) by_key: [HashMap<String, (f64, f64)>; 2],
    pub(super) length_s: f64,
}

fn rates(shared: &Shared, means: Option<&Means>) -> Rates {
    let (interfaces, _) = all_interfaces(shared);
    let now = unix_now() as i64;
    let span = Span { start_s: now - SAMPLED_S - 1, step_s: SAMPLED_S, buckets: 1 };
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
            own = [sampled(Direction::In), sampled(Direction::Out)];
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
            Some(bps) => Flowing {
                bps: Some(bps),
                error_bps: Some(0.0),
                share: None,
                from: Some("counters"),
                interval_s: facts.interval_s,
            },
            None => match sampled.get(&facts.key) {
                Some((bps, error)) => Flowing {
                    bps: Some(bps.round()),
                    error_bps: Some(error.round()),
                    share: None,
                    from: Some(if *error == 0.0 { "counters" } else { "samples" }),
                    interval_s: Some(length_s),
                },
                None => Flowing::default(),
            },
        };
        let both = [
            flowing(facts.input.counted_bps(), &sampled[0]),
            flowing(facts.output.counted_bps(), &sampled[1]),
        ];
        let fresh = facts.told_s.is_some_and(|told| told > now as f64 - STATE_S);
        let up = facts.up.filter(|_| fresh);
        rates.insert(at, Told { flowing: both, up, at_s: facts.told_s });
    }
    rates
}

/// Links of the topology with their use, as the interfaces at their ends tell it: now, or as means of a time.
#[utoipa::path(get, path = "/api/v1/telemetry/links", security((), ("token" = [])),
    params(
        ("from" = Option<i64>, Query, description = "As of series; the newest figures if not given"),
        ("to" = Option<i64>, Query, description = "As of series"),
    ),
    responses((status = 200, body = Links), (status = "4XX", body = ErrorBody, content_type = "application/problem+json")))]
pub(super) async fn links(
    State(shared): State<Arc<Shared>>,
    given: Given,
) -> Result<Json<Links>, ApiError> {
    let mut params = Params::new(given)?;
    if !params.has("from") {
        params.none()?;
        return Ok(Json(Links { links: links_in_use(&shared, None) }));
    }
    let asked = Asked::new(&mut params)?;
    params.none()?;
    let means = super::link_series::means(&shared, asked).await?;
    Ok(Json(Links { links: links_in_use(&shared, Some(&means)) }))
}

/// How much of a link's capacity is in use, in the direction that is used more; `None` where nobody tells.
pub(crate) fn link_share(shared: &Shared, name: &str) -> Option<f64> {
    let links = links_in_use(shared, None);
    let link = links.iter().find(|link| link.facts.name == name)?;
    [link.a_to_b.share, link.b_to_a.share].into_iter().flatten().reduce(f64::max)
}

fn links_in_use(shared: &Shared, means: Option<&Means>) -> Vec<LinkUse> {
    let Some(topology) = &shared.config.topology else { return Vec::new() };
    let rates = rates(shared, means);
    let told = |end: LinkEnd, link: &str| at_end(topology, &rates, end, link);
    let at = |end: LinkEnd, link: &str, out: usize| {
        let found = &told(end, link)?.flowing[out];
        found.bps.map(|_| found)
    };
    let links = links_of(topology).into_iter().zip(&topology.links).map(|(facts, link)| {
        let [a, b] = link.ends;
        let flowing = |from, to| match at(from, &link.name, 1).or_else(|| at(to, &link.name, 0)) {
            None => Flowing::default(),
            Some(flowing) => Flowing {
                bps: flowing.bps,
                error_bps: flowing.error_bps,
                share: flowing.bps.map(|bps| bps / link.rate.0 as f64),
                from: flowing.from,
                interval_s: flowing.interval_s,
            },
        };
        let ends = [told(a, &link.name), told(b, &link.name)];
        let states = ends.iter().flatten().filter_map(|told| told.up);
        let times = ends.iter().flatten().filter_map(|told| told.at_s);
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
