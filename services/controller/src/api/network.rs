//! Classes, hosts, links, rounds, orders, and who changed what.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use penstock_operations::orders::Capacity;
use serde::{Deserialize, Serialize};
use sqlx::Row;
use utoipa::ToSchema;

use super::objects::{OrderFacts, Orders, seconds};
use super::{Asking, Given, Params, body};
use crate::problem::Problem;
use crate::shared::Shared;
pub use crate::store::dispatch::ClassRate;
use crate::store::report::InterfaceFacts;
use crate::store::writer::Audit;
use crate::store::{change, now_ms, read, seen};

/// Most rounds, orders and entries of the audit log in one answer.
const LIST_MAX: i64 = 1000;

/// Longest reason that an operator may give.
const WHY_MAX: usize = 500;

fn readable(shared: &Shared, asking: &Asking) -> Result<(), Problem> {
    if asking.who.may_read() {
        return Ok(());
    }
    shared.counters.refused();
    let text = format!("the token of '{}' needs the scope read", asking.who.name);
    Err(Problem::forbidden(text))
}

fn operable(shared: &Shared, asking: &Asking) -> Result<(), Problem> {
    if asking.who.may_operate() {
        return Ok(());
    }
    shared.counters.refused();
    let text = format!("the token of '{}' needs the scope operate", asking.who.name);
    Err(Problem::forbidden(text))
}

/// A class of work, and what it has.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ControllerClass)]
pub struct ClassFacts {
    /// Its name.
    pub name: String,
    /// Owner and activity that it stands for.
    pub label: Option<String>,
    /// The 16-bit scitag of its packets.
    pub scitag: Option<u16>,
    /// Against others of its tier.
    pub weight: u32,
    /// What it has at least while it wants it.
    pub floor_bps: u64,
    /// High-water mark: what it has at most while others could use the rest.
    pub mark_bps: Option<u64>,
    /// What it never exceeds.
    pub cap_bps: Option<u64>,
    /// Tier 0 is served first.
    pub tier: u8,
    /// When it may run, in UTC; empty for always.
    pub windows: Vec<String>,
    /// It may run now.
    pub open: bool,
    /// When it may run next, in seconds since 1970, where it may not now.
    pub opens_unix_seconds: Option<i64>,
    /// Files that wait.
    pub queued_files: i64,
    /// Their bytes, as far as they are known.
    pub queued_bytes: i64,
    /// What its orders are allotted.
    pub allotted_bps: i64,
    /// What they have, as measured.
    pub measured_bps: i64,
    /// Its orders that stand.
    pub orders: i64,
}

/// Classes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Classes {
    /// In the order of the configuration.
    pub classes: Vec<ClassFacts>,
}

/// Classes of work, with what waits and what each has.
#[utoipa::path(get, path = "/api/v1/classes", security((), ("token" = [])), responses(
    (status = 200, body = Classes), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn classes(
    State(shared): State<Arc<Shared>>,
    asking: Asking,
) -> Result<Json<Classes>, Problem> {
    let pool = &shared.database.pool;
    let text = "SELECT class, CAST(SUM(files) AS BIGINT), CAST(SUM(bytes) AS BIGINT) FROM queue GROUP BY class";
    let queued = sqlx::query(text).fetch_all(pool).await?;
    let queued: HashMap<String, (i64, i64)> =
        queued.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect();
    let text = "SELECT class, CAST(COALESCE(SUM(rate_bps), 0) AS BIGINT), CAST(SUM(CASE WHEN seen >= $1 THEN measured_bps ELSE 0 END) AS BIGINT),
            COUNT(*)
        FROM run WHERE state < 2 GROUP BY class";
    let recent = now_ms() - shared.alive_ms();
    let running = sqlx::query(text).bind(recent).fetch_all(pool).await?;
    let running: HashMap<String, (i64, i64, i64)> =
        running.iter().map(|row| (row.get(0), (row.get(1), row.get(2), row.get(3)))).collect();
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

/// Hosts.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Hosts {
    /// Hosts, in the order of the topology.
    pub hosts: Vec<HostFacts>,
}

/// Hosts, as they reported last.
#[utoipa::path(get, path = "/api/v1/hosts", security((), ("token" = [])), responses(
    (status = 200, body = Hosts), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn hosts(
    State(shared): State<Arc<Shared>>,
    asking: Asking,
) -> Result<Json<Hosts>, Problem> {
    if !asking.who.is_client() {
        return Err(Problem::forbidden("the token needs the scope read or submit"));
    }
    let pool = &shared.database.pool;
    let text = "SELECT name, seen, version, addresses, capacity, interfaces FROM host";
    let reported = sqlx::query(text).fetch_all(pool).await?;
    let reported: HashMap<String, _> =
        reported.iter().map(|row| (row.get::<String, _>(0), row)).collect();
    let drained = sqlx::query("SELECT name, who, why FROM drain").fetch_all(pool).await?;
    let drained: HashMap<String, String> = drained
        .iter()
        .map(|row| {
            let (who, why): (String, String) = (row.get(1), row.get(2));
            (row.get(0), format!("{why} ({who})"))
        })
        .collect();
    let mut orders: HashMap<String, i64> = HashMap::new();
    for text in [
        "SELECT from_host, COUNT(*) FROM run WHERE state < 2 GROUP BY from_host",
        "SELECT to_host, COUNT(*) FROM run WHERE state < 2 GROUP BY to_host",
    ] {
        for row in sqlx::query(text).fetch_all(pool).await? {
            *orders.entry(row.get(0)).or_default() += row.get::<i64, _>(1);
        }
    }
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
        let Some(row) = reported.get(&node.name) else { return facts };
        let seen: i64 = row.get(1);
        let capacity: Capacity = serde_json::from_str(&row.get::<String, _>(4)).unwrap_or_default();
        let interfaces: Vec<InterfaceFacts> =
            serde_json::from_str(&row.get::<String, _>(5)).unwrap_or_default();
        facts.state = if now - seen <= alive { "up" } else { "silent" }.to_owned();
        facts.seen_unix_seconds = Some(seconds(seen));
        facts.version = Some(row.get(2));
        facts.addresses = serde_json::from_str(&row.get::<String, _>(3)).unwrap_or_default();
        facts.network_bps = capacity.network_bps;
        facts.read_bps = capacity.read_bps;
        facts.write_bps = capacity.write_bps;
        facts.transfers_max = Some(capacity.transfers);
        // What a silent host sent last is no rate of now.
        if now - seen <= alive {
            facts.sent_bps = interfaces.iter().map(|one| one.sent_bps).sum();
            facts.received_bps = interfaces.iter().map(|one| one.received_bps).sum();
        }
        facts
    });
    Ok(Json(Hosts { hosts: hosts.collect() }))
}

/// Why something is drained.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainBody {
    /// For people.
    #[serde(default)]
    pub reason: String,
    /// What runs there is taken back, and goes on elsewhere; otherwise it runs to its end.
    #[serde(default)]
    pub now: bool,
    /// It is gone for good: what it was told to do is over, and nobody waits for it. Refused while it reports.
    #[serde(default)]
    pub gone: bool,
}

/// What was done.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Drained {
    /// Name of the host or site.
    pub name: String,
    /// True where no new transfer begins there.
    pub draining: bool,
}

async fn drain(
    shared: &Shared,
    asking: &Asking,
    (name, site): (String, bool),
    on: Option<DrainBody>,
) -> Result<Json<Drained>, Problem> {
    operable(shared, asking)?;
    let settings = shared.settings();
    let config = &settings.config;
    let known = if site { config.is_site(&name) } else { config.is_host(&name) };
    if !known {
        let what = if site { "site" } else { "host" };
        let text = format!(
            "the topology has no {what} '{name}': GET /api/v1/hosts lists hosts with their sites"
        );
        return Err(Problem::not_found(text));
    }
    let topology = &config.topology;
    let there = topology.hosts().filter(|(_, node)| match site {
        true => node.site.is_some_and(|site| topology.sites[site.0].name == name),
        false => node.name == name,
    });
    let hosts: Vec<String> = there.map(|(_, node)| node.name.clone()).collect();
    if on.as_ref().is_some_and(|on| on.reason.len() > WHY_MAX || on.reason.contains('\0')) {
        return Err(Problem::field(
            "/reason",
            format!("a reason has at most {WHY_MAX} bytes, none of them zero"),
        ));
    }
    if on.as_ref().is_some_and(|on| on.gone) {
        let up = up_hosts(shared).await?;
        if let Some(host) = hosts.iter().find(|host| up.contains(*host)) {
            let text = format!(
                "host '{host}' reports, so it is not gone: end its agent first, or take its work back with now"
            );
            return Err(Problem::at(StatusCode::CONFLICT, "/gone", text));
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
            let on = on.map(|on| change::Drain { reason: on.reason, now: on.now, gone: on.gone });
            change::drain(cx, &name, &hosts, on.as_ref(), audit).await
        })
    });
    done.await?;
    Ok(Json(Drained { name, draining }))
}

/// Hosts that report.
async fn up_hosts(shared: &Shared) -> Result<HashSet<String>, Problem> {
    let text = "SELECT name FROM host WHERE seen > $1";
    let query = sqlx::query(text).bind(now_ms() - shared.alive_ms());
    let rows = query.fetch_all(&shared.database.pool).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Reads a body that may be left out.
fn drain_body(given: Result<Bytes, BytesRejection>) -> Result<DrainBody, Problem> {
    match &given {
        Ok(bytes) if bytes.is_empty() => Ok(DrainBody::default()),
        _ => body(given),
    }
}

/// Nothing new begins at a host.
#[utoipa::path(put, path = "/api/v1/hosts/{name}/drain", security(("token" = [])),
    params(("name" = String, Path, description = "Of the host")), request_body = DrainBody, responses(
    (status = 200, body = Drained), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn drain_host(
    State(shared): State<Arc<Shared>>,
    asking: Asking,
    Path(name): Path<String>,
    given: Result<Bytes, BytesRejection>,
) -> Result<Json<Drained>, Problem> {
    drain(&shared, &asking, (name, false), Some(drain_body(given)?)).await
}

/// A host takes work again.
#[utoipa::path(delete, path = "/api/v1/hosts/{name}/drain", security(("token" = [])),
    params(("name" = String, Path, description = "Of the host")), responses(
    (status = 200, body = Drained), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn undrain_host(
    State(shared): State<Arc<Shared>>,
    asking: Asking,
    Path(name): Path<String>,
) -> Result<Json<Drained>, Problem> {
    drain(&shared, &asking, (name, false), None).await
}

/// Nothing new begins at the hosts of a site.
#[utoipa::path(put, path = "/api/v1/sites/{name}/drain", security(("token" = [])),
    params(("name" = String, Path, description = "Of the site")), request_body = DrainBody, responses(
    (status = 200, body = Drained), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn drain_site(
    State(shared): State<Arc<Shared>>,
    asking: Asking,
    Path(name): Path<String>,
    given: Result<Bytes, BytesRejection>,
) -> Result<Json<Drained>, Problem> {
    drain(&shared, &asking, (name, true), Some(drain_body(given)?)).await
}

/// The hosts of a site take work again.
#[utoipa::path(delete, path = "/api/v1/sites/{name}/drain", security(("token" = [])),
    params(("name" = String, Path, description = "Of the site")), responses(
    (status = 200, body = Drained), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn undrain_site(
    State(shared): State<Arc<Shared>>,
    asking: Asking,
    Path(name): Path<String>,
) -> Result<Json<Drained>, Problem> {
    drain(&shared, &asking, (name, true), None).await
}

/// A link of the topology.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ControllerLink)]
pub struct LinkState {
    /// Its name.
    pub name: String,
    /// Of each direction.
    pub capacity_bps: u64,
    /// It is down: somebody said so, or an interface at its end.
    pub down: bool,
    /// What its interfaces say, by the collector; null where they say nothing.
    pub up: Option<bool>,
    /// What they counted from its first end to the other, in bits per second.
    pub forward_bps: Option<u64>,
    /// And back.
    pub back_bps: Option<u64>,
    /// Until when they counted it, in seconds since 1970.
    pub counted_unix_seconds: Option<f64>,
    /// Why, as was said.
    pub reason: Option<String>,
    /// Since when, in seconds since 1970.
    pub since_unix_seconds: Option<f64>,
    /// What orders over it are allotted, both directions together.
    pub allotted_bps: i64,
    /// What they have, as measured.
    pub measured_bps: i64,
    /// Orders over it.
    pub orders: i64,
}

/// Links.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LinkStates {
    /// In the order of the topology.
    pub links: Vec<LinkState>,
}

/// Links, with what is allotted of them.
#[utoipa::path(get, path = "/api/v1/links", security((), ("token" = [])), responses(
    (status = 200, body = LinkStates), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn links(
    State(shared): State<Arc<Shared>>,
    asking: Asking,
) -> Result<Json<LinkStates>, Problem> {
    readable(&shared, &asking)?;
    let pool = &shared.database.pool;
    let text = "SELECT name, down, since, why FROM link";
    let said = sqlx::query(text).fetch_all(pool).await?;
    let said: HashMap<String, _> = said.iter().map(|row| (row.get::<String, _>(0), row)).collect();
    let seen = seen::all(pool).await?;
    let mut used: HashMap<String, (i64, i64, i64)> = HashMap::new();
    let text =
        "SELECT route, COALESCE(rate_bps, 0), CASE WHEN seen >= $1 THEN measured_bps ELSE 0 END
        FROM run WHERE state < 2";
    let recent = now_ms() - shared.alive_ms();
    for row in sqlx::query(text).bind(recent).fetch_all(pool).await? {
        let route: Vec<String> = serde_json::from_str(&row.get::<String, _>(0)).unwrap_or_default();
        for link in route {
            let used = used.entry(link).or_default();
            *used = (used.0 + row.get::<i64, _>(1), used.1 + row.get::<i64, _>(2), used.2 + 1);
        }
    }
    let settings = shared.settings();
    let links = settings.config.topology.links.iter().map(|link| {
        let row = said.get(&link.name);
        let (allotted_bps, measured_bps, orders) =
            used.get(&link.name).copied().unwrap_or_default();
        let told = seen.get(&link.name).cloned().unwrap_or_default();
        let said = row.is_some_and(|row| row.get::<i64, _>(1) > 0);
        LinkState {
            name: link.name.clone(),
            capacity_bps: link.rate.0,
            down: said || told.up == Some(false),
            up: told.up,
            forward_bps: told.count.and_then(|count| count.bps[0]),
            back_bps: told.count.and_then(|count| count.bps[1]),
            counted_unix_seconds: told.count.map(|count| seconds(count.at_ms)),
            reason: match said {
                true => row.map(|row| row.get(3)),
                false if told.up == Some(false) => {
                    Some("an interface at its end says so".to_owned())
                }
                false => row.map(|row| row.get(3)),
            },
            since_unix_seconds: row
                .filter(|_| said || told.up != Some(false))
                .map(|row| seconds(row.get(2))),
            allotted_bps,
            measured_bps,
            orders,
        }
    });
    Ok(Json(LinkStates { links: links.collect() }))
}

/// What is said of a link.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkBody {
    /// It is down, or up again.
    pub down: bool,
    /// For people.
    #[serde(default)]
    pub reason: String,
}

/// Says that a link is down, or up again: the next round, at once, puts what used it elsewhere.
#[utoipa::path(put, path = "/api/v1/links/{name}", security(("token" = [])),
    params(("name" = String, Path, description = "Of the link")), request_body = LinkBody, responses(
    (status = 200, body = LinkBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn set_link(
    State(shared): State<Arc<Shared>>,
    asking: Asking,
    Path(name): Path<String>,
    given: Result<Bytes, BytesRejection>,
) -> Result<Json<LinkBody>, Problem> {
    operable(&shared, &asking)?;
    if shared.settings().config.topology.link(&name).is_none() {
        let text = format!("the topology has no link '{name}': GET /api/v1/links lists them");
        return Err(Problem::not_found(text));
    }
    let asked: LinkBody = body(given)?;
    if asked.reason.len() > WHY_MAX || asked.reason.contains('\0') {
        return Err(Problem::field(
            "/reason",
            format!("a reason has at most {WHY_MAX} bytes, none of them zero"),
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
        Box::pin(async move { change::link(cx, &name, said.down, &said.reason, audit).await })
    });
    done.await?;
    Ok(Json(asked))
}

/// A round.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Round)]
pub struct RoundFacts {
    /// Its number.
    pub id: i64,
    /// When, in seconds since 1970.
    pub unix_seconds: f64,
    /// What it was made for: event, timer or start.
    pub cause: String,
    /// How long it took to decide.
    pub seconds: f64,
    /// Orders that it looked at.
    pub orders: i64,
    /// Orders that it began.
    pub started: i64,
    /// Orders that go on otherwise.
    pub changed: i64,
    /// What each class that ran was allotted, and had.
    pub classes: Vec<ClassRate>,
    /// What people should know.
    pub notes: Vec<String>,
}

/// Rounds.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Rounds {
    /// The newest first.
    pub rounds: Vec<RoundFacts>,
    /// Give this as `before` for the next part; null where there is none.
    pub next: Option<i64>,
}

/// Rounds, the newest first.
#[utoipa::path(get, path = "/api/v1/rounds", security((), ("token" = [])),
    params(("before" = Option<i64>, Query, description = "With smaller numbers than this"),
        ("limit" = Option<i64>, Query, description = "At most so many", minimum = 1, maximum = 1000)), responses(
    (status = 200, body = Rounds), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn rounds(
    State(shared): State<Arc<Shared>>,
    asking: Asking,
    given: Given,
) -> Result<Json<Rounds>, Problem> {
    readable(&shared, &asking)?;
    let mut params = Params::new(given)?;
    let before = params.parsed::<i64>("before")?.unwrap_or(i64::MAX);
    let limit = params.limit(100, LIST_MAX)?;
    params.none()?;
    let text = "SELECT id, at, cause, micros, runs, started, changed, classes, notes FROM round
        WHERE id < $1 ORDER BY id DESC LIMIT $2";
    let rows = sqlx::query(text).bind(before).bind(limit).fetch_all(&shared.database.pool).await?;
    let rounds: Vec<RoundFacts> = rows
        .iter()
        .map(|row| RoundFacts {
            id: row.get(0),
            unix_seconds: seconds(row.get(1)),
            cause: row.get(2),
            seconds: row.get::<i64, _>(3) as f64 / 1e6,
            orders: row.get(4),
            started: row.get(5),
            changed: row.get(6),
            classes: serde_json::from_str(&row.get::<String, _>(7)).unwrap_or_default(),
            notes: serde_json::from_str(&row.get::<String, _>(8)).unwrap_or_default(),
        })
        .collect();
    let next = rounds.last().map(|last| last.id).filter(|_| rounds.len() as i64 == limit);
    Ok(Json(Rounds { rounds, next }))
}

/// Orders that stand, of all requests.
#[utoipa::path(get, path = "/api/v1/orders", security((), ("token" = [])), responses(
    (status = 200, body = Orders), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn orders(
    State(shared): State<Arc<Shared>>,
    asking: Asking,
) -> Result<Json<Orders>, Problem> {
    readable(&shared, &asking)?;
    let runs = read::runs(&shared.database.pool, None, 10 * LIST_MAX).await?;
    let recent = now_ms() - shared.alive_ms();
    let orders = runs.into_iter().map(|run| OrderFacts::at(run, |run| run.seen >= recent));
    Ok(Json(Orders { orders: orders.collect() }))
}

/// Who changed what.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuditFacts {
    /// Its number.
    pub id: i64,
    /// When, in seconds since 1970.
    pub unix_seconds: f64,
    /// Name of the token.
    pub who: String,
    /// From which address.
    pub peer: String,
    /// submit, append, change, cancel, drain, undrain or link.
    pub what: String,
    /// What it was done to.
    pub object: String,
    /// In detail.
    pub detail: String,
}

/// The audit log.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuditLog {
    /// The newest first.
    pub entries: Vec<AuditFacts>,
    /// Give this as `before` for the next part; null where there is none.
    pub next: Option<i64>,
}

/// The audit log, the newest first.
#[utoipa::path(get, path = "/api/v1/audit", security(("token" = [])),
    params(("before" = Option<i64>, Query, description = "With smaller numbers than this"),
        ("limit" = Option<i64>, Query, description = "At most so many", minimum = 1, maximum = 1000)), responses(
    (status = 200, body = AuditLog), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn audit(
    State(shared): State<Arc<Shared>>,
    asking: Asking,
    given: Given,
) -> Result<Json<AuditLog>, Problem> {
    operable(&shared, &asking)?;
    let mut params = Params::new(given)?;
    let before = params.parsed::<i64>("before")?.unwrap_or(i64::MAX);
    let limit = params.limit(100, LIST_MAX)?;
    params.none()?;
    let text = "SELECT id, at, who, peer, what, object, detail FROM audit WHERE id < $1 ORDER BY id DESC LIMIT $2";
    let rows = sqlx::query(text).bind(before).bind(limit).fetch_all(&shared.database.pool).await?;
    let entries: Vec<AuditFacts> = rows
        .iter()
        .map(|row| AuditFacts {
            id: row.get(0),
            unix_seconds: seconds(row.get(1)),
            who: row.get(2),
            peer: row.get(3),
            what: row.get(4),
            object: row.get(5),
            detail: row.get(6),
        })
        .collect();
    let next = entries.last().map(|last| last.id).filter(|_| entries.len() as i64 == limit);
    Ok(Json(AuditLog { entries, next }))
}
