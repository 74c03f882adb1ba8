//! Endpoints of the network: classes, hosts, links, rounds, orders and the audit log.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use penstock_http::{QueryParams, RawQuery, Refused, Unavailable};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::objects::{OrderFacts, Orders, seconds};
use super::{ApiClient, PARAMETERS_PAGE, body};
use crate::problem::{ProblemDetails, unavailable};
pub use crate::repository::rounds::ClassRate;
use crate::repository::{Audit, audit, batches, hosts, links, now_ms, rounds, runs};
use crate::shared::ControllerState;
use crate::use_cases::network;

/// Most rounds, orders and audit entries in one response.
const LIST_MAX: i64 = 1000;

/// Longest reason given by an operator, in characters.
const REASON_CHARS_MAX: usize = 500;

fn readable(shared: &ControllerState, asking: &ApiClient) -> Result<(), ProblemDetails> {
    if asking.who.may_read() {
        return Ok(());
    }
    shared.counters.refused();
    let text = format!("the token of '{}' needs the scope read", asking.who.name);
    Err(ProblemDetails::forbidden(text))
}

fn operable(shared: &ControllerState, asking: &ApiClient) -> Result<(), ProblemDetails> {
    if asking.who.may_operate() {
        return Ok(());
    }
    shared.counters.refused();
    let text = format!("the token of '{}' needs the scope operate", asking.who.name);
    Err(ProblemDetails::forbidden(text))
}

/// A class of work, with its present rates.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ControllerClass)]
pub struct ClassFacts {
    /// Name of the class.
    pub name: String,
    /// Scitags owner and activity that map to the class.
    pub label: Option<String>,
    /// 16-bit scitag of its packets.
    pub scitag: Option<u16>,
    /// Weight relative to other classes of its tier.
    pub weight: u32,
    /// Lower bound of its rate while it has work.
    pub floor_bps: u64,
    /// Soft high-water mark: upper bound while other classes can use the rest.
    pub mark_bps: Option<u64>,
    /// Hard upper bound of its rate.
    pub cap_bps: Option<u64>,
    /// Tiers are served in ascending order, 0 first.
    pub tier: u8,
    /// Hours of operation in UTC; empty for always.
    pub windows: Vec<String>,
    /// True while the class may run.
    pub open: bool,
    /// Unix seconds of the next opening, while the class may not run.
    pub opens_unix_seconds: Option<i64>,
    /// Number of queued files.
    pub queued_files: i64,
    /// Their bytes, of files with a known size.
    pub queued_bytes: i64,
    /// Sum of the allotted rates of its orders.
    pub allotted_bps: i64,
    /// Sum of the measured rates of its orders.
    pub measured_bps: i64,
    /// Number of its active orders.
    pub orders: i64,
}

/// Classes of the configuration.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Classes {
    /// Classes, in the order of the configuration.
    pub classes: Vec<ClassFacts>,
}

/// Classes of work, with queued work and present rates.
#[utoipa::path(get, path = "/api/v1/classes", security((), ("token" = [])), responses(
    (status = 200, body = Classes, description = "Classes with their weights and rates"), Refused,
    Unavailable))]
pub(super) async fn classes(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    given: RawQuery,
) -> Result<Json<Classes>, ProblemDetails> {
    QueryParams::new(given)?.none(PARAMETERS_PAGE)?;
    let pool = &shared.database.pool;
    let queued = batches::queued_by_class(pool).await.map_err(unavailable)?;
    let queued: HashMap<String, (i64, i64)> =
        queued.into_iter().map(|row| (row.class, (row.files, row.bytes))).collect();
    let running = runs::by_class(pool, now_ms() - shared.alive_ms()).await.map_err(unavailable)?;
    let running: HashMap<String, (i64, i64, i64)> = running
        .into_iter()
        .map(|row| (row.class, (row.allotted_bps, row.measured_bps, row.orders)))
        .collect();
    let now_s = now_ms() / 1000;
    let settings = shared.settings();
    let seen = settings.config.classes.iter().filter(|class| asking.who.may_see(&class.name));
    let classes = seen.map(|class| {
        let (queued_files, queued_bytes) = queued.get(&class.name).copied().unwrap_or_default();
        let (allotted_bps, measured_bps, orders) =
            running.get(&class.name).copied().unwrap_or_default();
        let open = class.is_open(now_s);
        ClassFacts {
            name: class.name.clone(),
            label: class.label.as_ref().map(|(owner, activity)| format!("{owner}/{activity}")),
            scitag: class.scitag,
            weight: class.weight,
            floor_bps: class.floor_bps,
            mark_bps: class.mark_bps,
            cap_bps: class.cap_bps,
            tier: class.tier,
            windows: class.windows.iter().map(ToString::to_string).collect(),
            open,
            opens_unix_seconds: (!open).then(|| class.opens(now_s)),
            queued_files,
            queued_bytes,
            allotted_bps,
            measured_bps,
            orders,
        }
    });
    Ok(Json(Classes { classes: classes.collect() }))
}

/// A host of the topology.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ControllerHost)]
pub struct HostFacts {
    /// Name of the host.
    pub name: String,
    /// Site of the host.
    pub site: Option<String>,
    /// `up`, `silent`, or `never` where it has never reported.
    pub state: String,
    /// True where no new transfer begins at the host.
    pub draining: bool,
    /// Reason of the drain, with the name of the token that asked for it; null where the host does not drain.
    pub drain_reason: Option<String>,
    /// Time of the last report; null where it has never reported.
    pub seen_unix_seconds: Option<f64>,
    /// Version of Penstock on the host; null where it has never reported.
    pub version: Option<String>,
    /// Addresses and ports for transfers.
    pub addresses: Vec<String>,
    /// Rate of the interfaces, or the limit in the agent's configuration; null where it is not known.
    pub network_bps: Option<u64>,
    /// Rate at which the host reads files, by the agent's configuration; null where that gives none.
    pub read_bps: Option<u64>,
    /// Rate at which the host writes files, by the agent's configuration; null where that gives none.
    pub write_bps: Option<u64>,
    /// Largest number of transfers at a time, by the agent's configuration; null where the host has never reported.
    pub transfers_max: Option<u32>,
    /// Present rate that the interfaces send; 0 where the host is silent.
    pub sent_bps: u64,
    /// Present rate that the interfaces receive; 0 where the host is silent.
    pub received_bps: u64,
    /// Orders at the host.
    pub orders: i64,
}

/// Hosts of the topology.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Hosts {
    /// Hosts, in the order of the topology.
    pub hosts: Vec<HostFacts>,
}

/// Hosts, as of their last report.
#[utoipa::path(get, path = "/api/v1/hosts", security((), ("token" = [])), responses(
    (status = 200, body = Hosts, description = "Hosts with their states"), Refused,
    Unavailable))]
pub(super) async fn hosts(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    given: RawQuery,
) -> Result<Json<Hosts>, ProblemDetails> {
    QueryParams::new(given)?.none(PARAMETERS_PAGE)?;
    if !asking.who.is_client() {
        return Err(ProblemDetails::forbidden("the token needs the scope read or submit"));
    }
    let pool = &shared.database.pool;
    let reported = hosts::list(pool).await.map_err(unavailable)?;
    let mut reported: HashMap<String, _> =
        reported.into_iter().map(|host| (host.name.clone(), host)).collect();
    let drained = hosts::drains(pool).await.map_err(unavailable)?.into_iter();
    let drained: HashMap<String, String> =
        drained.map(|drain| (drain.name, format!("{} ({})", drain.why, drain.who))).collect();
    let orders = runs::orders_by_host(pool).await.map_err(unavailable)?;
    let now = now_ms();
    let alive = shared.alive_ms();
    let settings = shared.settings();
    let topology = &settings.config.topology;
    let hosts = topology.hosts().map(|(_, node)| {
        let site = node.site.map(|site| topology.sites[site.0].name.clone());
        let drain = drained.get(&node.name).or_else(|| drained.get(site.as_deref()?));
        let mut facts = HostFacts {
            name: node.name.clone(),
            state: "never".to_owned(),
            draining: drain.is_some(),
            drain_reason: drain.cloned(),
            seen_unix_seconds: None,
            version: None,
            addresses: Vec::new(),
            network_bps: None,
            read_bps: None,
            write_bps: None,
            transfers_max: None,
            sent_bps: 0,
            received_bps: 0,
            orders: orders.get(&node.name).copied().unwrap_or(0),
            site,
        };
        let Some(host) = reported.remove(&node.name) else { return facts };
        let (seen, capacity, interfaces) = (host.seen, host.capacity.0, host.interfaces.0);
        facts.state = if now - seen <= alive { "up" } else { "silent" }.to_owned();
        facts.seen_unix_seconds = Some(seconds(seen));
        facts.version = Some(host.version);
        facts.addresses = host.addresses.0;
        facts.network_bps = capacity.network_bps;
        facts.read_bps = capacity.read_bps;
        facts.write_bps = capacity.write_bps;
        facts.transfers_max = Some(capacity.transfers);
        // The last rate of a silent host is not current.
        if now - seen <= alive {
            facts.sent_bps = interfaces.iter().map(|one| one.sent_bps).sum();
            facts.received_bps = interfaces.iter().map(|one| one.received_bps).sum();
        }
        facts
    });
    Ok(Json(Hosts { hosts: hosts.collect() }))
}

/// Options of a drain.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainBody {
    /// Reason, for human readers.
    #[serde(default)]
    pub reason: String,
    /// Set to withdraw running orders, whose work continues elsewhere; otherwise they finish.
    #[serde(default)]
    pub now: bool,
    /// Set if the host is gone for good: its orders count as stopped. Refused while the host reports.
    #[serde(default)]
    pub gone: bool,
}

/// Result of a drain.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Drained {
    /// Name of the host or site.
    pub name: String,
    /// True where no new transfer begins there.
    pub draining: bool,
}

async fn drain(
    shared: &ControllerState,
    asking: &ApiClient,
    (name, site): (String, bool),
    on: Option<DrainBody>,
) -> Result<Json<Drained>, ProblemDetails> {
    operable(shared, asking)?;
    let settings = shared.settings();
    let config = &settings.config;
    let known = if site { config.is_site(&name) } else { config.is_host(&name) };
    if !known {
        let what = if site { "site" } else { "host" };
        let text = format!(
            "the topology has no {what} '{name}': penstock drain, or GET /api/v1/hosts, lists hosts with their sites"
        );
        return Err(ProblemDetails::not_found(text));
    }
    let topology = &config.topology;
    let there = topology.hosts().filter(|(_, node)| match site {
        true => node.site.is_some_and(|site| topology.sites[site.0].name == name),
        false => node.name == name,
    });
    let hosts: Vec<String> = there.map(|(_, node)| node.name.clone()).collect();
    if on.as_ref().is_some_and(|on| on.reason.len() > REASON_CHARS_MAX || on.reason.contains('\0'))
    {
        return Err(ProblemDetails::field(
            "/reason",
            format!("a reason has at most {REASON_CHARS_MAX} bytes, none of them zero"),
        ));
    }
    if on.as_ref().is_some_and(|on| on.gone) {
        let up = up_hosts(shared).await?;
        if let Some(host) = hosts.iter().find(|host| up.contains(*host)) {
            let text = format!(
                "host '{host}' reports, so it is not gone: end its agent first, or take its work back with now"
            );
            return Err(ProblemDetails::at(StatusCode::CONFLICT, "/gone", text));
        }
    }
    let audit = Audit {
        who: asking.who.name.clone(),
        peer: asking.peer.clone(),
        what: if on.is_some() { "drain" } else { "undrain" },
        object: name.clone(),
        detail: on.as_ref().map(|on| on.reason.clone()).unwrap_or_default(),
    };
    let draining = on.is_some();
    let drained = name.clone();
    let done = shared.writer.apply(move |cx| {
        let (name, hosts, on, audit) = (drained.clone(), hosts.clone(), on.clone(), audit.clone());
        Box::pin(async move {
            let on = on.map(|on| network::Drain { reason: on.reason, now: on.now, gone: on.gone });
            network::drain(cx, &name, &hosts, on.as_ref(), audit).await
        })
    });
    done.await?;
    Ok(Json(Drained { name, draining }))
}

/// Returns the hosts that are up.
async fn up_hosts(shared: &ControllerState) -> Result<HashSet<String>, ProblemDetails> {
    let since = now_ms() - shared.alive_ms();
    hosts::up_since(&shared.database.pool, since).await.map_err(unavailable)
}

/// Parses an optional body.
fn drain_body(given: Result<Bytes, BytesRejection>) -> Result<DrainBody, ProblemDetails> {
    match &given {
        Ok(bytes) if matches!(bytes.trim_ascii(), b"" | b"null") => Ok(DrainBody::default()),
        _ => body(given),
    }
}

/// Stops the start of work at a host.
#[utoipa::path(put, path = "/api/v1/hosts/{name}/drain", security(("token" = [])),
    params(("name" = String, Path, description = "Of the host")), request_body = Option<DrainBody>, responses(
    (status = 200, body = Drained, description = "The host, which gets no new work"), Refused,
    Unavailable))]
pub(super) async fn drain_host(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    Path(name): Path<String>,
    given: Result<Bytes, BytesRejection>,
) -> Result<Json<Drained>, ProblemDetails> {
    drain(&shared, &asking, (name, false), Some(drain_body(given)?)).await
}

/// Resumes the start of work at a host.
#[utoipa::path(delete, path = "/api/v1/hosts/{name}/drain", security(("token" = [])),
    params(("name" = String, Path, description = "Of the host")), responses(
    (status = 200, body = Drained, description = "The host, which gets work again"), Refused,
    Unavailable))]
pub(super) async fn undrain_host(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    Path(name): Path<String>,
) -> Result<Json<Drained>, ProblemDetails> {
    drain(&shared, &asking, (name, false), None).await
}

/// Stops the start of work at the hosts of a site.
#[utoipa::path(put, path = "/api/v1/sites/{name}/drain", security(("token" = [])),
    params(("name" = String, Path, description = "Of the site")), request_body = Option<DrainBody>, responses(
    (status = 200, body = Drained, description = "The site, whose hosts get no new work"), Refused,
    Unavailable))]
pub(super) async fn drain_site(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    Path(name): Path<String>,
    given: Result<Bytes, BytesRejection>,
) -> Result<Json<Drained>, ProblemDetails> {
    drain(&shared, &asking, (name, true), Some(drain_body(given)?)).await
}

/// Resumes the start of work at the hosts of a site.
#[utoipa::path(delete, path = "/api/v1/sites/{name}/drain", security(("token" = [])),
    params(("name" = String, Path, description = "Of the site")), responses(
    (status = 200, body = Drained, description = "The site, whose hosts get work again"), Refused,
    Unavailable))]
pub(super) async fn undrain_site(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    Path(name): Path<String>,
) -> Result<Json<Drained>, ProblemDetails> {
    drain(&shared, &asking, (name, true), None).await
}

/// A link of the topology.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ControllerLink)]
pub struct LinkState {
    /// Name of the link.
    pub name: String,
    /// Capacity of each direction.
    pub capacity_bps: u64,
    /// True if an operator set it down, or an interface at its end reports so.
    pub down: bool,
    /// State reported by its interfaces through the collector; null if unknown.
    pub up: Option<bool>,
    /// Counted rate from its first end to the other, in bits per second.
    pub forward_bps: Option<u64>,
    /// Counted rate in the other direction, in bits per second.
    pub back_bps: Option<u64>,
    /// Unix seconds of the end of the counted interval.
    pub counted_unix_seconds: Option<f64>,
    /// Reason given by the operator.
    pub reason: Option<String>,
    /// Unix seconds of the operator's last change.
    pub since_unix_seconds: Option<f64>,
    /// Sum of the allotted rates of orders over it, both directions together.
    pub allotted_bps: i64,
    /// Sum of the measured rates of orders over it.
    pub measured_bps: i64,
    /// Number of orders over it.
    pub orders: i64,
}

/// Links of the topology.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LinkStates {
    /// Links, in the order of the topology.
    pub links: Vec<LinkState>,
}

/// Links, with their allotted rates.
#[utoipa::path(get, path = "/api/v1/links", operation_id = "controller_links", security((), ("token" = [])), responses(
    (status = 200, body = LinkStates, description = "Links with capacities and states"), Refused,
    Unavailable))]
pub(super) async fn links(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    given: RawQuery,
) -> Result<Json<LinkStates>, ProblemDetails> {
    QueryParams::new(given)?.none(PARAMETERS_PAGE)?;
    readable(&shared, &asking)?;
    let pool = &shared.database.pool;
    let said = links::list(pool).await.map_err(unavailable)?;
    let said: HashMap<String, _> = said.into_iter().map(|link| (link.name.clone(), link)).collect();
    let seen = links::telemetry(pool).await.map_err(unavailable)?;
    let mut used: HashMap<String, (i64, i64, i64)> = HashMap::new();
    for run in runs::routes(pool, now_ms() - shared.alive_ms()).await.map_err(unavailable)? {
        for link in run.route.0 {
            let used = used.entry(link).or_default();
            *used = (used.0 + run.allotted_bps, used.1 + run.measured_bps, used.2 + 1);
        }
    }
    let settings = shared.settings();
    let links = settings.config.topology.links.iter().map(|link| {
        let row = said.get(&link.name);
        let (allotted_bps, measured_bps, orders) =
            used.get(&link.name).copied().unwrap_or_default();
        let telemetry = seen.get(&link.name).cloned().unwrap_or_default();
        let said = row.is_some_and(|row| row.down);
        LinkState {
            name: link.name.clone(),
            capacity_bps: link.rate.0,
            down: said || telemetry.up == Some(false),
            up: telemetry.up,
            forward_bps: telemetry.count.and_then(|count| count.bps[0]),
            back_bps: telemetry.count.and_then(|count| count.bps[1]),
            counted_unix_seconds: telemetry.count.map(|count| seconds(count.at_ms)),
            reason: match said {
                true => row.map(|row| row.why.clone()),
                false if telemetry.up == Some(false) => {
                    Some("an interface at its end says so".to_owned())
                }
                false => row.map(|row| row.why.clone()),
            },
            since_unix_seconds: row
                .filter(|_| said || telemetry.up != Some(false))
                .map(|row| seconds(row.since)),
            allotted_bps,
            measured_bps,
            orders,
        }
    });
    Ok(Json(LinkStates { links: links.collect() }))
}

/// State of a link, as set by an operator or monitor.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkBody {
    /// True to set the link down, false to set it up.
    pub down: bool,
    /// Reason, for human readers.
    #[serde(default)]
    pub reason: String,
}

/// Sets a link down or up; a round moves its transfers at once.
#[utoipa::path(put, path = "/api/v1/links/{name}", security(("token" = [])),
    params(("name" = String, Path, description = "Of the link")), request_body = LinkBody, responses(
    (status = 200, body = LinkBody, description = "The link as it is now"), Refused,
    Unavailable))]
pub(super) async fn set_link(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    Path(name): Path<String>,
    given: Result<Bytes, BytesRejection>,
) -> Result<Json<LinkBody>, ProblemDetails> {
    operable(&shared, &asking)?;
    if shared.settings().config.topology.link(&name).is_none() {
        let text = format!("the topology has no link '{name}': GET /api/v1/links lists them");
        return Err(ProblemDetails::not_found(text));
    }
    let asked: LinkBody = body(given)?;
    if asked.reason.len() > REASON_CHARS_MAX || asked.reason.contains('\0') {
        return Err(ProblemDetails::field(
            "/reason",
            format!("a reason has at most {REASON_CHARS_MAX} bytes, none of them zero"),
        ));
    }
    let audit = Audit {
        who: asking.who.name.clone(),
        peer: asking.peer.clone(),
        what: "link",
        object: name.clone(),
        detail: serde_json::to_string(&asked).expect("plain data"),
    };
    let said = asked.clone();
    let done = shared.writer.apply(move |cx| {
        let (name, said, audit) = (name.clone(), said.clone(), audit.clone());
        Box::pin(async move { network::set_link(cx, &name, said.down, &said.reason, audit).await })
    });
    done.await?;
    Ok(Json(asked))
}

/// A round of the scheduler.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Round)]
pub struct RoundFacts {
    /// Id of the round.
    pub id: i64,
    /// Time of the round in Unix seconds.
    pub unix_seconds: f64,
    /// Cause of the round: event, timer or start.
    pub cause: String,
    /// Duration of the decision.
    pub seconds: f64,
    /// Number of active orders.
    pub orders: i64,
    /// Number of orders started.
    pub started: i64,
    /// Number of orders changed.
    pub changed: i64,
    /// Allotted and measured rate of each class with orders.
    pub classes: Vec<ClassRate>,
    /// Events of the round, for human readers.
    pub notes: Vec<String>,
}

/// A part of the list of rounds.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Rounds {
    /// Rounds before `before`, newest first.
    pub rounds: Vec<RoundFacts>,
    /// Value of `before` that lists the next part; null if there is none.
    pub next: Option<i64>,
}

/// Lists recorded rounds, newest first.
#[utoipa::path(get, path = "/api/v1/rounds", operation_id = "allocation_rounds", security((), ("token" = [])),
    params(("before" = Option<i64>, Query, description = "With smaller numbers than this", minimum = 0),
        ("limit" = Option<i64>, Query, description = "Largest number of items", minimum = 1, maximum = 1000)), responses(
    (status = 200, body = Rounds, description = "Rounds, the newest first"), Refused,
    Unavailable))]
pub(super) async fn rounds(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    given: RawQuery,
) -> Result<Json<Rounds>, ProblemDetails> {
    readable(&shared, &asking)?;
    let mut params = QueryParams::new(given)?;
    let before = params.parsed::<i64>("before")?.unwrap_or(i64::MAX);
    let limit = params.limit(100, LIST_MAX)?;
    params.none(PARAMETERS_PAGE)?;
    let rows = rounds::list(&shared.database.pool, before, limit).await.map_err(unavailable)?;
    let rounds: Vec<RoundFacts> = rows
        .into_iter()
        .map(|row| RoundFacts {
            id: row.id,
            unix_seconds: seconds(row.at),
            cause: row.cause,
            seconds: row.micros as f64 / 1e6,
            orders: row.runs,
            started: row.started,
            changed: row.changed,
            classes: row.classes.0,
            notes: row.notes.0,
        })
        .collect();
    let next = rounds.last().map(|last| last.id).filter(|_| rounds.len() as i64 == limit);
    Ok(Json(Rounds { rounds, next }))
}

/// Active orders of all requests.
#[utoipa::path(get, path = "/api/v1/orders", operation_id = "running_orders", security((), ("token" = [])), responses(
    (status = 200, body = Orders, description = "Orders of all agents"), Refused,
    Unavailable))]
pub(super) async fn orders(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    given: RawQuery,
) -> Result<Json<Orders>, ProblemDetails> {
    QueryParams::new(given)?.none(PARAMETERS_PAGE)?;
    readable(&shared, &asking)?;
    let runs = runs::list(&shared.database.pool, None, 10 * LIST_MAX).await.map_err(unavailable)?;
    let recent = now_ms() - shared.alive_ms();
    let orders = runs.into_iter().map(|run| OrderFacts::at(run, |run| run.seen >= recent));
    Ok(Json(Orders { orders: orders.collect() }))
}

/// An entry of the audit log.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuditFacts {
    /// Id of the entry.
    pub id: i64,
    /// Time of the change in Unix seconds.
    pub unix_seconds: f64,
    /// Name of the client's token.
    pub who: String,
    /// Address of the client.
    pub peer: String,
    /// Action: submit, append, change, cancel, drain, undrain or link.
    pub what: String,
    /// Object of the action.
    pub object: String,
    /// Details of the action.
    pub detail: String,
}

/// A part of the audit log.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuditLog {
    /// Entries before `before`, newest first.
    pub entries: Vec<AuditFacts>,
    /// Value of `before` that lists the next part; null if there is none.
    pub next: Option<i64>,
}

/// Entries of the audit log, newest first.
#[utoipa::path(get, path = "/api/v1/audit", operation_id = "audit_log", security(("token" = [])),
    params(("before" = Option<i64>, Query, description = "With smaller numbers than this", minimum = 0),
        ("limit" = Option<i64>, Query, description = "Largest number of items", minimum = 1, maximum = 1000)), responses(
    (status = 200, body = AuditLog, description = "Changes with their authors, the newest first"), Refused,
    Unavailable))]
pub(super) async fn audit(
    State(shared): State<Arc<ControllerState>>,
    asking: ApiClient,
    given: RawQuery,
) -> Result<Json<AuditLog>, ProblemDetails> {
    operable(&shared, &asking)?;
    let mut params = QueryParams::new(given)?;
    let before = params.parsed::<i64>("before")?.unwrap_or(i64::MAX);
    let limit = params.limit(100, LIST_MAX)?;
    params.none(PARAMETERS_PAGE)?;
    let rows = audit::list(&shared.database.pool, before, limit).await.map_err(unavailable)?;
    let entries: Vec<AuditFacts> = rows
        .into_iter()
        .map(|row| AuditFacts {
            id: row.id,
            unix_seconds: seconds(row.at),
            who: row.who,
            peer: row.peer,
            what: row.what,
            object: row.object,
            detail: row.detail,
        })
        .collect();
    let next = entries.last().map(|last| last.id).filter(|_| entries.len() as i64 == limit);
    Ok(Json(AuditLog { entries, next }))
}
