//! Use cases over a database in memory, in virtual time.

use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::BoxFuture;
use penstock_calendar::ReserveError;
use penstock_control::class::WorkClass;
use penstock_control::file::RequestFileState;
use penstock_control::orders::{
    Capacity, FaultKind, Instructions, OrderFault, OrderId, OrderPhase, OrderReport, OrderTask,
    Report, ReportedOutcome,
};
use penstock_control::quota::ClientQuota;
use penstock_control::request::RequestState;
use penstock_testkit::topologies::TWO_SITES;
use penstock_topology::Topology;

use super::append::{self, AppendedFiles};
use super::change::{self, ChangeOutcome, RequestChange};
use super::reserve;
use crate::config::Config;
use crate::repository::files::NewFile;
use crate::repository::requests;
use crate::repository::reservations::ReservationRequest;
use crate::repository::writer::TxContext;
use crate::repository::{Audit, DatabaseError};
use crate::simulation::{
    ClientRequest, DrainKind, RequestStatus, SimulatedController, SubmitReply,
};

mod changes;
mod files;
mod quotas;
mod waiting;

const START_MS: i64 = 1_795_392_000_000;

/// A controller with two hosts, and its clock.
struct TwoSites {
    controller: SimulatedController,
    class: WorkClass,
    now_ms: i64,
}

impl TwoSites {
    fn new() -> Self {
        Self::with_class(WorkClass::new("default"))
    }

    /// Opens a controller with this class alone.
    fn with_class(class: WorkClass) -> Self {
        Self::open(class, Vec::new())
    }

    /// Opens a controller with this quota.
    fn with_quota(quota: ClientQuota) -> Self {
        Self::open(WorkClass::new("default"), vec![quota])
    }

    fn open(class: WorkClass, quotas: Vec<ClientQuota>) -> Self {
        static OPENED: AtomicU32 = AtomicU32::new(0);
        let name = format!("use-cases-{}", OPENED.fetch_add(1, Ordering::Relaxed));
        let topology = Topology::read(TWO_SITES).unwrap();
        let config = Config { quotas, ..Config::new(topology, vec![class.clone()]) };
        let controller = SimulatedController::open(config, &name).unwrap();
        controller.set_time(START_MS);
        Self { controller, class, now_ms: START_MS }
    }

    fn advance(&mut self, ms: i64) {
        self.now_ms += ms;
        self.controller.set_time(self.now_ms);
    }

    fn try_submit(&self, key: &str, to: &str, files: &[&str]) -> SubmitReply {
        let asked = ClientRequest {
            key: key.to_owned(),
            class: "default".to_owned(),
            source: "cern".to_owned(),
            destination: "caltech".to_owned(),
            from: "/from".to_owned(),
            to: to.to_owned(),
            files: Some(files.iter().map(|path| ((*path).to_owned(), Some(10))).collect()),
            attempts: 2,
        };
        self.controller.submit(asked).unwrap()
    }

    fn submit(&self, files: &[&str]) -> i64 {
        match self.try_submit("key", "/to", files) {
            SubmitReply::New(id) => id,
            other => panic!("{other:?}"),
        }
    }

    fn report(&self, host: &str, orders: Vec<OrderReport>) -> Instructions {
        let capacity = Capacity { transfers: 4, streams: 16, ..Capacity::default() };
        let addresses = vec!["192.0.2.1:8620".to_owned()];
        let report =
            Report { start: host.to_owned(), addresses, capacity, orders, ..Report::default() };
        self.controller.report(host, report).unwrap()
    }

    /// Advances time by a second, lets both hosts report nothing and runs a round.
    fn run_round(&mut self) {
        self.advance(1_000);
        for host in ["c1", "t1"] {
            self.report(host, Vec::new());
        }
        self.controller.round().unwrap();
    }

    /// Starts the submitted files and returns the order of the sender.
    fn start(&mut self) -> OrderId {
        self.run_round();
        self.run_round();
        self.run_round();
        let active = self.report("c1", Vec::new()).orders;
        active.first().expect("the sender has an order").order
    }

    /// Reports the end of an order whose files have these faults.
    fn end(&self, order: OrderId, faults: &[Option<FaultKind>]) {
        let outcome = |(file, fault): (usize, &Option<FaultKind>)| ReportedOutcome {
            file: file as u32,
            bytes: 10,
            was_there: false,
            digest: None,
            fault: fault.map(|kind| OrderFault { kind, text: "refused".to_owned() }),
        };
        let report = OrderReport {
            order,
            run: 1,
            phase: OrderPhase::Ended,
            outcomes: faults.iter().enumerate().map(outcome).collect(),
            ..OrderReport::default()
        };
        self.report("c1", vec![report]);
    }

    fn request(&self, id: i64) -> RequestStatus {
        let all = self.controller.requests().unwrap();
        all.into_iter().find(|one| one.id == id).expect("it is stored")
    }

    /// Waits for a query of the database.
    fn read<T>(&self, query: impl Future<Output = Result<T, DatabaseError>>) -> T {
        self.controller.runtime.block_on(query).unwrap()
    }

    fn apply<T, F>(&self, work: F) -> T
    where
        T: Send + 'static,
        F: for<'a> Fn(&'a mut TxContext) -> BoxFuture<'a, Result<T, DatabaseError>>
            + Send
            + 'static,
    {
        self.controller.runtime.block_on(self.controller.writer.apply(work)).unwrap()
    }

    /// Reserves a rate between the sites from a minute after the start on, for ten minutes.
    fn try_reserve(&self, class: Option<&str>, gigabits: i64) -> Result<i64, ReserveError> {
        let class = class.map(str::to_owned);
        self.apply(move |cx| {
            let begins = START_MS / 1000 + 60;
            let wanted = ReservationRequest {
                client: "test".to_owned(),
                class: class.clone(),
                source: "cern".to_owned(),
                destination: "caltech".to_owned(),
                rate_bps: gigabits * 1_000_000_000,
                begins,
                ends: begins + 600,
                circuit: false,
            };
            Box::pin(async move { reserve::reserve(cx, &wanted, audit()).await })
        })
    }
}

fn audit() -> Audit {
    Audit {
        who: "test".to_owned(),
        peer: "::1".to_owned(),
        what: "test",
        object: String::new(),
        detail: String::new(),
    }
}

#[test]
fn repeated_submission_returns_first_request() {
    let sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    assert_eq!(sites.try_submit("key", "/to", &["a"]), SubmitReply::Same(id));
    assert_eq!(sites.try_submit("key", "/to", &["b"]), SubmitReply::Refused);
    assert_eq!(sites.controller.requests().unwrap().len(), 1);
}

#[test]
fn used_destination_is_refused() {
    let sites = TwoSites::new();
    sites.submit(&["a"]);
    assert_eq!(sites.try_submit("other", "/to", &["b", "a"]), SubmitReply::Refused);
    assert!(matches!(sites.try_submit("third", "/to", &["b"]), SubmitReply::New(_)));
}

#[test]
fn sender_starts_after_receiver_and_rate() {
    let mut sites = TwoSites::new();
    sites.submit(&["a", "b"]);
    sites.run_round();
    sites.advance(1_000);
    assert!(sites.report("c1", Vec::new()).orders.is_empty(), "no rate, no ticket at t1");
    assert_eq!(sites.report("t1", Vec::new()).orders.len(), 1);
    sites.controller.round().unwrap();
    let order = sites.report("c1", Vec::new()).orders[0].clone();
    assert!(order.settings.rate_bps.is_some());
    let Some(order) = sites.controller.order("c1", order.order).unwrap() else {
        panic!("it is active")
    };
    let OrderTask::Send(send) = order.task else { panic!("c1 sends") };
    assert_eq!((send.files.len(), send.to.as_str()), (2, "/to"));
    assert_eq!(sites.controller.order("t1", order.order).unwrap().map(|order| order.order), None);
}

#[test]
fn reported_outcomes_end_request() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a", "b"]);
    let order = sites.start();
    assert_eq!(sites.request(id).state, RequestState::Active);
    sites.end(order, &[None, Some(FaultKind::Permanent)]);
    let request = sites.request(id);
    assert_eq!((request.state, request.files), (RequestState::Partial, [2, 1, 1, 0]));
    // A report that arrives again changes nothing.
    sites.end(order, &[None, None]);
    assert_eq!(sites.request(id).files, [2, 1, 1, 0]);
}

#[test]
fn reported_transports_add_to_request() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    let order = sites.start();
    let report = |transport: &str, reason: &str| {
        let report = OrderReport {
            order,
            run: 1,
            phase: OrderPhase::Running,
            transport: transport.to_owned(),
            transport_reason: reason.to_owned(),
            ..OrderReport::default()
        };
        sites.report("c1", vec![report]);
        let found = sites.read(requests::find(&sites.controller.database.pool, id));
        let found = found.expect("it is stored");
        (found.transport.unwrap_or_default(), found.transport_reason.unwrap_or_default())
    };
    let pair = |transport: &str, reason: &str| (transport.to_owned(), reason.to_owned());
    assert_eq!(report("", ""), pair("", ""));
    assert_eq!(report("rdma", "mlx5_0"), pair("rdma", "mlx5_0"));
    assert_eq!(report("rdma", "mlx5_0"), pair("rdma", "mlx5_0"));
    assert_eq!(report("tcp", "no device"), pair("mixed", "no device"));
}

#[test]
fn transient_fault_waits_for_retry() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    let order = sites.start();
    sites.end(order, &[Some(FaultKind::Transient)]);
    sites.run_round();
    assert!(sites.controller.runs().unwrap().is_empty(), "it waits");
    assert_eq!(sites.request(id).state, RequestState::Active);
    sites.advance(10_000);
    let order = sites.start();
    sites.end(order, &[Some(FaultKind::Transient)]);
    assert_eq!(sites.request(id).state, RequestState::Failed, "of two attempts both failed");
}

#[test]
fn cancelled_queue_ends_at_maintenance() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a", "b"]);
    sites.controller.cancel(id).unwrap();
    assert_eq!(sites.request(id).state, RequestState::Staged);
    sites.run_round();
    let request = sites.request(id);
    assert_eq!((request.state, request.files), (RequestState::Cancelled, [2, 0, 0, 2]));
    let files = sites.controller.files().unwrap();
    assert!(files.iter().all(|file| file.state == RequestFileState::Cancelled));
}

#[test]
fn cancelled_run_ends_once_hosts_stop() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    sites.start();
    sites.controller.cancel(id).unwrap();
    sites.controller.round().unwrap();
    let runs = sites.controller.runs().unwrap();
    assert!(!runs[0].active && sites.request(id).state == RequestState::Active);
    // Two reports of each host without the order.
    sites.run_round();
    sites.run_round();
    assert_eq!(sites.request(id).state, RequestState::Cancelled);
}

#[test]
fn paused_request_starts_no_run() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    sites.controller.pause(id, true).unwrap();
    sites.run_round();
    assert!(sites.controller.runs().unwrap().is_empty());
    sites.controller.pause(id, false).unwrap();
    sites.run_round();
    assert_eq!(sites.controller.runs().unwrap().len(), 1);
}

#[test]
fn ended_request_takes_no_change() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    let order = sites.start();
    sites.end(order, &[None]);
    let change = |id| {
        sites.apply(move |cx| {
            Box::pin(async move {
                let wanted = RequestChange { priority: Some(5), ..RequestChange::default() };
                change::change(cx, id, &wanted, audit()).await
            })
        })
    };
    assert_eq!(change(id), ChangeOutcome::Over("done".to_owned()));
    assert_eq!(change(id + 1_000), ChangeOutcome::Missing);
}

#[test]
fn append_to_sealed_request_fails() {
    let sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    let append = |at, path: &str| {
        let file = NewFile { path: path.to_owned(), size: None, digest: None };
        sites.apply(move |cx| {
            let file = file.clone();
            let new = AppendedFiles { at, files: vec![file], seal: false };
            Box::pin(async move { append::append(cx, id, &new, audit()).await })
        })
    };
    assert_eq!(append(1, "b"), ChangeOutcome::Sealed);
    assert_eq!(append(0, "a"), ChangeOutcome::Done, "a repeated call");
    assert_eq!(append(0, "b"), ChangeOutcome::Sealed, "another file at the same place");
}

#[test]
fn lost_destination_requeues_its_files() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    sites.start();
    sites.advance(10);
    sites.controller.drain("t1", Some(DrainKind::Gone)).unwrap();
    for _ in 0..3 {
        sites.advance(1_000);
        sites.report("c1", Vec::new());
        sites.controller.round().unwrap();
    }
    assert!(sites.controller.runs().unwrap().is_empty());
    let request = sites.request(id);
    assert_eq!((request.state, request.files), (RequestState::Active, [1, 0, 0, 0]));
}

#[test]
fn retention_purges_expired_request() {
    let mut sites = TwoSites::new();
    sites.submit(&["a"]);
    let order = sites.start();
    sites.end(order, &[None]);
    sites.run_round();
    assert_eq!(sites.controller.requests().unwrap().len(), 1);
    sites.advance(8 * 86_400_000);
    sites.run_round();
    assert!(sites.controller.requests().unwrap().is_empty());
    assert!(sites.controller.files().unwrap().is_empty());
}

#[test]
fn reservation_beyond_capacity_is_refused() {
    let sites = TwoSites::new();
    let reserve = |gigabits| sites.try_reserve(Some("default"), gigabits);
    let id = reserve(20).unwrap();
    // Reservations may take 80 % of the 37.6 Gb/s that file bytes can use of 40 Gb/s.
    let Err(ReserveError::Shortage(shortage)) = reserve(15) else { panic!("30.08 Gb/s are there") };
    assert_eq!(shortage.largest.0, 10_080_000_000);
    let is_given_back =
        sites.apply(move |cx| Box::pin(async move { reserve::cancel(cx, id, audit()).await }));
    assert!(is_given_back && reserve(15).is_ok());
}
