//! A scripted controller: sends the instructions of a test and records the reports.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use penstock_control::orders::{
    Acknowledged, ActiveOrder, Instructions, ListedFile, Order, OrderId, OrderPhase, OrderReport,
    OrderSettings, OrderTask, Report, ReportedOutcome,
};

use crate::common::wait_until;

pub(crate) const TOKEN: &str = "the-token-that-hosts-show";

/// Instructions for a host, and its reports.
#[derive(Debug, Default)]
pub(crate) struct Host {
    pub(crate) orders: BTreeMap<u64, (Order, OrderSettings)>,
    /// The last report, and the number of reports.
    pub(crate) report: Report,
    pub(crate) reports: u64,
    /// Reported outcomes by order, with their run, without repetitions.
    pub(crate) outcomes: BTreeMap<u64, Vec<(u64, ReportedOutcome)>>,
    pub(crate) entries: BTreeMap<u64, Vec<ListedFile>>,
    /// The last report of each order, and the ended orders.
    pub(crate) last: BTreeMap<u64, OrderReport>,
    pub(crate) ended: BTreeMap<u64, OrderReport>,
    /// Runs of each order by first report.
    pub(crate) runs: BTreeMap<u64, Vec<u64>>,
    heard: HashMap<(u64, u64), (u64, u64)>,
    /// Answer in place of instructions.
    pub(crate) nonsense: Option<(StatusCode, Vec<u8>)>,
    pub(crate) lease_seconds: u32,
}

#[derive(Debug, Default)]
struct Script {
    hosts: BTreeMap<String, Host>,
    /// Set when the controller drops all requests.
    away: bool,
    /// Contradictions between reports.
    faults: Vec<String>,
}

pub(crate) struct Controller {
    pub(crate) address: SocketAddr,
    script: Arc<Mutex<Script>>,
    _runtime: tokio::runtime::Runtime,
}

type Shared = Arc<Mutex<Script>>;

impl Controller {
    pub(crate) fn start() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let script = Shared::default();
        let router = Router::new()
            .route("/api/v1/agents/{host}/report", post(report))
            .route("/api/v1/agents/{host}/orders/{id}", get(order))
            .layer(DefaultBodyLimit::max(16 << 20))
            .with_state(Arc::clone(&script));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { address, script, _runtime: runtime }
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    /// Runs `with` on the state of a host.
    pub(crate) fn host<T>(&self, host: &str, with: impl FnOnce(&mut Host) -> T) -> T {
        with(self.script().hosts.entry(host.to_owned()).or_default())
    }

    pub(crate) fn order(&self, host: &str, order: u64, task: OrderTask, settings: OrderSettings) {
        let request = format!("r{order}");
        let content = Order { order: OrderId::from(order), request, task };
        self.host(host, |host| host.orders.insert(order, (content, settings)));
    }

    pub(crate) fn set(&self, host: &str, order: u64, settings: OrderSettings) {
        self.host(host, |host| host.orders.get_mut(&order).unwrap().1 = settings);
    }

    pub(crate) fn withdraw(&self, host: &str, order: u64) {
        self.host(host, |host| host.orders.remove(&order));
    }

    pub(crate) fn set_away(&self, away: bool) {
        self.script().away = away;
    }

    /// Polls the state of a host until `with` returns a value.
    #[track_caller]
    pub(crate) fn await_host<T>(
        &self,
        what: &str,
        host: &str,
        mut ask: impl FnMut(&mut Host) -> Option<T>,
    ) -> T {
        let answer = wait_until(what, Duration::from_secs(120), || self.host(host, &mut ask));
        self.check();
        answer
    }

    /// Waits for the first report of a host.
    pub(crate) fn await_report(&self, host: &str) -> Report {
        self.await_host("a report", host, |host| (host.reports > 0).then(|| host.report.clone()))
    }

    /// Waits until an order has ended.
    #[track_caller]
    pub(crate) fn await_end(&self, host: &str, order: u64) -> OrderReport {
        let begun = Instant::now();
        loop {
            let (ended, last) = self.host(host, |host| {
                (host.ended.get(&order).cloned(), host.last.get(&order).cloned())
            });
            self.check();
            if let Some(ended) = ended {
                return ended;
            }
            assert!(begun.elapsed() < Duration::from_secs(150), "order {order}: {last:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Outcome of each file; the latest run wins.
    pub(crate) fn outcomes(&self, host: &str, order: u64) -> BTreeMap<u32, ReportedOutcome> {
        let report = self.host(host, |host| host.outcomes.get(&order).cloned().unwrap_or_default());
        report.into_iter().map(|(_, outcome)| (outcome.file, outcome)).collect()
    }

    /// Asserts that no report contradicted an earlier one.
    #[track_caller]
    pub(crate) fn check(&self) {
        let script = self.script();
        assert_eq!(script.faults, Vec::<String>::new());
    }
}

async fn report(
    State(script): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, Vec<u8>) {
    let mut script = script.lock().unwrap();
    if script.away {
        return (StatusCode::SERVICE_UNAVAILABLE, b"{\"error\": \"away\"}".to_vec());
    }
    if headers.get("authorization").is_none_or(|value| *value != format!("Bearer {TOKEN}")) {
        return (StatusCode::UNAUTHORIZED, Vec::new());
    }
    let report: Report = match serde_json::from_slice(&body) {
        Ok(report) => report,
        Err(error) => {
            script.faults.push(format!("a report of {name} that is none: {error}"));
            return (StatusCode::BAD_REQUEST, Vec::new());
        }
    };
    let mut faults = Vec::new();
    let host = script.hosts.entry(name).or_default();
    let mut acknowledged = Vec::new();
    for order in &report.orders {
        if order.run > 0 {
            acknowledged.push(host.record_report(order, &mut faults));
        }
    }
    host.report = report;
    host.reports += 1;
    let instructions = Instructions {
        lease_seconds: host.lease_seconds,
        orders: host
            .orders
            .iter()
            .map(|(order, (_, settings))| ActiveOrder {
                order: OrderId::from(*order),
                settings: settings.clone(),
            })
            .collect(),
        acknowledged,
    };
    let answer = match &host.nonsense {
        Some(nonsense) => nonsense.clone(),
        None => (StatusCode::OK, serde_json::to_vec(&instructions).unwrap()),
    };
    script.faults.extend(faults);
    answer
}

impl Host {
    fn record_report(&mut self, report: &OrderReport, faults: &mut Vec<String>) -> Acknowledged {
        let order = report.order.number();
        let runs = self.runs.entry(order).or_default();
        if !runs.contains(&report.run) {
            runs.push(report.run);
        }
        let (outcomes, entries) = self.heard.entry((order, report.run)).or_default();
        if report.outcomes_from > *outcomes || report.entries_from > *entries {
            faults.push(format!("order {}: something was left out", report.order));
        }
        let known = |heard: u64, from: u64| usize::try_from(heard.saturating_sub(from)).unwrap();
        let new = report.outcomes.iter().skip(known(*outcomes, report.outcomes_from));
        let all = self.outcomes.entry(order).or_default();
        for outcome in new {
            *outcomes += 1;
            if all.iter().any(|(run, one)| *run == report.run && one.file == outcome.file) {
                faults.push(format!("order {}: told twice: {outcome:?}", report.order));
            }
            all.push((report.run, outcome.clone()));
        }
        let new = report.entries.iter().skip(known(*entries, report.entries_from)).cloned();
        let list = self.entries.entry(order).or_default();
        let before = list.len();
        list.extend(new);
        *entries += (list.len() - before) as u64;
        self.last.insert(order, OrderReport { outcomes: Vec::new(), ..report.clone() });
        if report.phase == OrderPhase::Ended {
            self.ended.insert(order, report.clone());
        }
        Acknowledged {
            order: report.order,
            run: report.run,
            outcomes: *outcomes,
            entries: *entries,
            end: report.phase == OrderPhase::Ended,
        }
    }
}

async fn order(
    State(script): State<Shared>,
    Path((name, id)): Path<(String, u64)>,
) -> (StatusCode, Vec<u8>) {
    let script = script.lock().unwrap();
    let order = script.hosts.get(&name).and_then(|host| host.orders.get(&id));
    match order {
        _ if script.away => (StatusCode::SERVICE_UNAVAILABLE, Vec::new()),
        Some((order, _)) => (StatusCode::OK, serde_json::to_vec(order).unwrap()),
        None => (StatusCode::NOT_FOUND, Vec::new()),
    }
}
