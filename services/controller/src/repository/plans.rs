//! Checks the query plan of every statement of a controller: none scans a table that grows.
//!
//! The statements are captured from the database log during a simulated day with every feature in use. A statement
//! that this folder makes and the day does not run fails the test, so that none escapes the check.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use futures_util::future::BoxFuture;
use penstock_control::batch::BatchLimits;
use penstock_control::class::WorkClass;
use penstock_control::file::RequestFileState;
use penstock_control::fts::state::{FtsFileEvent, FtsFileState, FtsJobKind, FtsJobState};
use penstock_control::orders::{
    FaultKind, LISTED_PATH, ListedFile, OrderPhase, ReportedOutcome, RunSide,
};
use penstock_control::outcomes::FileChange;
use penstock_control::quota::ClientQuota;
use penstock_control::request::RequestState;
use penstock_control::run_contents::FileSpan;
use penstock_control::scheduler::Planner;
use penstock_rehearsal::controller_api::{ControllerApi, NewRequest};
use penstock_rehearsal::nodes::{NodeSpec, Nodes};
use penstock_testkit::postgres::PostgresServer;
use penstock_testkit::topologies::TWO_SITES;
use penstock_testkit::{Requirement, skip};
use penstock_topology::Topology;
use sqlx::{AnyConnection, AnyPool, AssertSqlSafe, Connection, Row};
use tracing::field::{Field, Visit};

use super::files::{FileSummary, NewFile};
use super::fts::FtsMover;
use super::requests::{self, RequestFilter, RequestSummary};
use super::reservations::{self, ReservationRequest};
use super::rows::TypedRow;
use super::statement::log;
use super::writer::TxContext;
use super::{
    Audit, DatabaseError, audit, batches, circuits, events, files, fts, hosts, links, rounds, runs,
    size,
};
use crate::config::Config;
use crate::rehearsal::StoreController;
use crate::use_cases::append::{self, AppendedFiles};
use crate::use_cases::change::{self, RequestChange};
use crate::use_cases::fts_requests::{self, FtsFileRequest};
use crate::use_cases::network::{self, Drain};
use crate::use_cases::submit::{Submission, Submitted};
use crate::use_cases::waiting::Situation;
use crate::use_cases::{cancel, reserve, samples};

static STATEMENTS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Captures statements from sqlx's log events.
struct StatementCapture;

#[derive(Default)]
struct MessageVisitor {
    summary: String,
    statement: String,
}

impl Visit for MessageVisitor {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "summary" => value.clone_into(&mut self.summary),
            "db.statement" => value.clone_into(&mut self.statement),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl tracing::Subscriber for StatementCapture {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "sqlx::query"
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut words = MessageVisitor::default();
        event.record(&mut words);
        // A short statement is its own summary.
        let text = if words.statement.is_empty() { words.summary } else { words.statement };
        STATEMENTS.lock().unwrap_or_else(PoisonError::into_inner).insert(text.trim().to_owned());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

fn entry() -> Audit {
    Audit {
        who: "test".to_owned(),
        peer: String::new(),
        what: "test",
        object: String::new(),
        detail: String::new(),
    }
}

fn asked(files: usize) -> NewRequest {
    NewRequest {
        class: "default".to_owned(),
        source: "cern".to_owned(),
        destination: "caltech".to_owned(),
        files: vec![1_000_000; files],
    }
}

/// Simulates requests, failures, a lost host, changes, queries and retention.
fn a_day(controller: &mut StoreController, config: &Config) {
    let planner = Planner::new(config.topology.clone(), config.classes.clone(), config.rules);
    let node = |name: &str| NodeSpec {
        name: name.to_owned(),
        interface: "eth0".to_owned(),
        rate_bps: 100_000_000_000,
        transfers: 4,
    };
    let mut nodes = Nodes::new(["c1", "t1", "t2"].map(node).into(), 100);
    let mut now = 1_795_392_000_000;
    for second in 0..400 {
        now += 1000;
        if second < 4 {
            controller.submit(now, vec![asked(1), asked(3), asked(40)]).unwrap();
        }
        nodes.set_down(if (3..100).contains(&second) { &["t1"] } else { &[] });
        nodes.advance(if second < 100 { 1 } else { 1000 });
        let mut reports = nodes.reports();
        for order in reports.iter_mut().flat_map(|(_, report)| &mut report.orders) {
            // One that ends before its files have outcomes, and one that fails for good.
            if second == 110 && order.order.side() == RunSide::Source {
                order.phase = OrderPhase::Ended;
            }
            let broken = |outcome: &mut ReportedOutcome| {
                if let Some(fault) = &mut outcome.fault {
                    fault.kind = FaultKind::Permanent;
                }
            };
            if second > 200 {
                order.outcomes.iter_mut().for_each(broken);
            }
        }
        let hosts: Vec<String> = reports.iter().map(|(host, _)| host.clone()).collect();
        let instructions = controller.report(now, reports).unwrap();
        for (host, instructions) in hosts.iter().zip(&instructions) {
            nodes
                .apply_instructions(host, instructions, |host, order| controller.order(host, order))
                .unwrap();
        }
        if second == 1 || second == 4 {
            change_all(controller);
        }
        controller.round(now, &mut |snapshot| planner.plan(snapshot)).unwrap();
    }
    controller.link(now, "between", true).unwrap();
    grow_requests(controller);
    use_network(controller, config, now);
    for _ in 0..3 {
        now += 1000;
        controller.round(now, &mut |snapshot| planner.plan(snapshot)).unwrap();
    }
}

fn change_all(controller: &StoreController) {
    let change = |id: i64, wanted: RequestChange| {
        let done = controller.writer.apply(move |cx| {
            let wanted = wanted.clone();
            Box::pin(async move { change::change(cx, id, &wanted, entry()).await })
        });
        controller.runtime.block_on(done).unwrap();
    };
    controller.runtime.block_on(async {
        let pool = &controller.database.pool;
        let all = RequestFilter { limit: 100, ..RequestFilter::default() };
        let found = requests::list(pool, &all).await.unwrap();
        let id = found.last().expect("there are some").id;
        for state in RequestFileState::ALL {
            files::list(pool, id, Some(state), -1, 10).await.unwrap();
        }
        files::list(pool, id, None, -1, 10).await.unwrap();
        events::list(pool, Some(id), 0, 10).await.unwrap();
        events::list(pool, None, 0, 10).await.unwrap();
        events::of_network(pool, (0, i64::MAX), 10).await.unwrap();
        events::last_id(pool).await.unwrap();
        runs::list(pool, Some(id), 10).await.unwrap();
        runs::list(pool, None, 10).await.unwrap();
        batches::next_attempt(pool, id).await.unwrap();
    });
    let requests = controller.runtime.block_on(async {
        let all = RequestFilter { limit: 100, ..RequestFilter::default() };
        requests::list(&controller.database.pool, &all).await.unwrap()
    });
    let open: Vec<i64> =
        requests.iter().filter(|one| one.ended.is_none()).map(|one| one.id).collect();
    let [first, second, third, ..] = open[..] else { return };
    let (deadline, priority) = (Some(Some(1_900_000_000_000)), Some(5));
    change(first, RequestChange { priority, deadline, paused: Some(true) });
    change(first, RequestChange { paused: Some(false), ..RequestChange::default() });
    change(second, RequestChange { paused: Some(true), ..RequestChange::default() });
    change(second, RequestChange { paused: Some(false), ..RequestChange::default() });
    let done = controller
        .writer
        .apply(move |cx| Box::pin(async move { cancel::cancel(cx, third, entry()).await }));
    controller.runtime.block_on(done).unwrap();
    let drained = controller.writer.apply(|cx| {
        Box::pin(async move {
            let hosts = ["t2".to_owned()];
            let gone = Drain { reason: "test".to_owned(), now: true, gone: true };
            network::drain(cx, "t2", &hosts, Some(&gone), entry()).await?;
            network::drain(cx, "t2", &hosts, None, entry()).await
        })
    });
    controller.runtime.block_on(drained).unwrap();
}

/// Applies a change and returns its result.
fn apply<T, F>(controller: &StoreController, work: F) -> T
where
    T: Send + 'static,
    F: for<'a> Fn(&'a mut TxContext) -> BoxFuture<'a, Result<T, DatabaseError>> + Send + 'static,
{
    controller.runtime.block_on(controller.writer.apply(work)).unwrap()
}

fn submission(key: &str, files: Vec<NewFile>, directory: bool) -> Submission {
    Submission { files, directory, open: !directory, ..samples::submission(key) }
}

fn new_file(path: &str) -> NewFile {
    NewFile { path: path.to_owned(), size: Some(1), digest: None }
}

/// Appends to open requests and lists a directory, with conflicts of destinations.
fn grow_requests(controller: &StoreController) {
    let submit = |submission| {
        let submitted = controller.runtime.block_on(controller.writer.submit(submission)).unwrap();
        match submitted {
            Submitted::New(stored) => stored.id,
            other => panic!("{other:?}"),
        }
    };
    let open = submit(submission("open", vec![new_file("a")], false));
    let again = controller.writer.submit(submission("open", vec![new_file("a")], false));
    assert!(matches!(controller.runtime.block_on(again).unwrap(), Submitted::Same(_)));
    let mut taken = submission("taken", vec![new_file("a")], false);
    taken.to = "/to/open".to_owned();
    let taken = controller.runtime.block_on(controller.writer.submit(taken)).unwrap();
    assert!(matches!(taken, Submitted::Taken { .. }));
    let is_open =
        apply(controller, move |cx| Box::pin(async move { requests::is_open(cx, open).await }));
    assert!(is_open);
    // The second call is a retry of the first.
    for (at, seal) in [(1, false), (1, false), (2, true)] {
        let new = AppendedFiles { at, files: vec![new_file(&format!("b{at}"))], seal };
        apply(controller, move |cx| {
            let new = new.clone();
            Box::pin(async move { append::append(cx, open, &new, entry()).await })
        });
    }
    let listing = submit(submission("listing", Vec::new(), true));
    for (again, paths) in [(true, ["x", "y"]), (true, ["y", "z"])] {
        apply(controller, move |cx| {
            Box::pin(async move {
                let files = paths.map(|path| ListedFile { path: path.to_owned(), bytes: 1 });
                let files: Vec<_> = files.iter().collect();
                append::add_listed_files(cx, listing, &files, again).await
            })
        });
    }
    let single = submit(submission("single", Vec::new(), true));
    apply(controller, move |cx| {
        Box::pin(async move {
            let file = ListedFile { path: LISTED_PATH.to_owned(), bytes: 1 };
            append::add_listed_files(cx, single, &[&file], true).await?;
            // The same destination: it fails.
            let same = ListedFile { path: "x".to_owned(), bytes: 1 };
            append::add_listed_files(cx, listing, &[&same], false).await
        })
    });
}

/// Makes reservations and circuits, and shows the network.
fn use_network(controller: &StoreController, config: &Config, now: i64) {
    let begins = now / 1000 - 10;
    let reserved = apply(controller, move |cx| {
        let wanted = ReservationRequest {
            client: "test".to_owned(),
            class: Some("default".to_owned()),
            source: "cern".to_owned(),
            destination: "caltech".to_owned(),
            rate_bps: 1_000_000_000,
            begins,
            ends: begins + 100_000,
            circuit: false,
        };
        Box::pin(async move {
            let id = reserve::reserve(cx, &wanted, entry()).await?;
            circuits::book(cx, *id.as_ref().unwrap()).await?;
            Ok(id)
        })
    });
    let id = reserved.unwrap();
    let pool = &controller.database.pool;
    let all = controller.runtime.block_on(circuits::live(pool)).unwrap();
    let one = all.into_iter().next().expect("it is booked");
    apply(controller, move |cx| {
        let one = one.clone();
        Box::pin(async move {
            circuits::mark_up(cx, &one, &one.route, &one.addresses).await?;
            circuits::store_counters(cx, &one, (1, 1), Some(false)).await?;
            circuits::mark_broken(cx, &one, "test", 1).await?;
            circuits::mark_released(cx, &one).await?;
            reservations::set_route(cx, id, &one.route).await?;
            links::clear_telemetry(cx).await?;
            rounds::renew_lease(cx, "test").await
        })
    });
    controller.runtime.block_on(async {
        reservations::list(pool, now, None).await.unwrap();
        reservations::list(pool, now, Some(id)).await.unwrap();
        reservations::current(pool, now).await.unwrap();
        Situation::read(pool, config, now, 3_000).await.unwrap();
        runs::by_class(pool, now).await.unwrap();
        runs::routes(pool, now).await.unwrap();
        runs::settled_paths(pool, now).await.unwrap();
        runs::summaries(pool).await.unwrap();
        batches::queued_by_class(pool).await.unwrap();
        hosts::up_since(pool, now).await.unwrap();
        hosts::drains(pool).await.unwrap();
        links::list(pool).await.unwrap();
        rounds::list(pool, i64::MAX, 10).await.unwrap();
        rounds::last_classes(pool).await.unwrap();
        audit::list(pool, i64::MAX, 10).await.unwrap();
    });
    run_rare_statements(controller, id);
    let telemetry = links::LinkTelemetry { up: Some(false), count: None };
    apply(controller, move |cx| {
        let news = [("between".to_owned(), telemetry.clone())];
        Box::pin(async move {
            links::store_telemetry(cx, &news).await?;
            reserve::cancel(cx, id, entry()).await
        })
    });
}

/// Jobs of FTS3 clients: stored, copied, moved by requests, cancelled, read and purged.
fn fts_jobs(controller: &StoreController) {
    let job = |uuid| fts::FtsJobRow {
        kind: FtsJobKind::MultiReplica,
        expires: Some(1),
        ..samples::fts_job(uuid)
    };
    let file = |by_request| fts::NewFtsFile {
        source_token: Some("secret".to_owned()),
        destination_token: Some("secret".to_owned()),
        ..samples::fts_file(by_request)
    };
    let other = fts::NewFtsFile { state: FtsFileState::NotUsed, ..file(false) };
    let rows = [(job("1"), vec![file(false), other]), (job("2"), vec![file(true)])];
    let stored = apply(controller, move |cx| {
        let rows = rows.clone();
        Box::pin(async move {
            let first = fts::insert(cx, &rows[0].0, &rows[0].1).await?;
            let again = fts::insert(cx, &rows[0].0, &rows[0].1).await?;
            Ok([first, again, fts::insert(cx, &rows[1].0, &rows[1].1).await?])
        })
    });
    assert_eq!(stored, [true, false, true]);
    let pool = &controller.database.pool;
    let pair = samples::FTS_PAIR;
    let (id, first, moved) = controller.runtime.block_on(async {
        let job = fts::job(pool, "1").await.unwrap().unwrap();
        assert!(fts::job_by_id(pool, job.id).await.unwrap().is_some());
        let mut due = Vec::new();
        for mover in [FtsMover::Copy, FtsMover::Request] {
            assert_eq!(fts::due_pairs(pool, mover, 1).await.unwrap(), [pair]);
            due.extend(fts::due(pool, mover, pair, 1, 10).await.unwrap());
        }
        assert_eq!(fts::expired(pool, 1).await.unwrap().len(), 2);
        (job.id, due[0].id, due[1].clone())
    });
    let new = NewFile { path: "f".to_owned(), size: None, digest: None };
    let submission = Submission { open: false, ..submission("fts", vec![new], false) };
    let requests = [FtsFileRequest { file: moved.id, retry_at: None, submission }];
    apply(controller, move |cx| {
        let requests = requests.clone();
        Box::pin(async move { fts_requests::submit(cx, &requests).await })
    });
    let live = apply(controller, move |cx| {
        Box::pin(async move { fts::live_requests(cx, moved.job).await })
    });
    assert_eq!(live.iter().map(|one| one.state).collect::<Vec<_>>(), [FtsFileState::Ready]);
    let uuids = apply(controller, move |cx| {
        Box::pin(async move {
            let started = fts::FtsFileChange::new(FtsFileEvent::Started);
            assert!(fts::change(cx, first, &started).await?);
            fts::set_moved(cx, first, 1).await?;
            fts_requests::set_priority(cx, id, 5, &entry()).await?;
            // The alternative begins.
            fts::change(cx, first, &fts::FtsFileChange::new(FtsFileEvent::Failed)).await?;
            fts::set_ban(cx, "https://a", Some(("test", "WAIT"))).await?;
            let uuids = fts_requests::cancel_storage(cx, "https://b", &entry()).await?;
            let cancelled = fts::FtsFileChange::new(FtsFileEvent::Cancelled);
            assert_eq!(fts_requests::end_files(cx, id, None, &cancelled, &entry()).await?, 0);
            Ok(uuids)
        })
    });
    assert_eq!(uuids, ["1", "2"]);
    controller.runtime.block_on(async {
        assert_eq!(fts::bans(pool).await.unwrap().len(), 1);
        assert_eq!(fts::clients(pool).await.unwrap().len(), 1);
        let files = fts::files(pool, id).await.unwrap();
        let states: Vec<FtsFileState> = files.iter().map(|file| file.state).collect();
        assert_eq!(states, [FtsFileState::Failed, FtsFileState::Canceled]);
        // Tokens go with the end of their file.
        assert!(
            files
                .iter()
                .all(|file| file.source_token.is_none() && file.destination_token.is_none())
        );
        assert!(fts::active(pool).await.unwrap().is_empty());
        assert_eq!(fts::active_count(pool).await.unwrap(), 0);
        assert!(fts::request_news(pool, 10).await.unwrap().is_empty());
        assert!(fts::request_bytes(pool, 10).await.unwrap().is_empty());
        let states = vec![FtsJobState::Canceled];
        let filter = fts::FtsJobFilter { limit: 10, states, ..fts::FtsJobFilter::default() };
        assert_eq!(fts::list(pool, &filter).await.unwrap().len(), 2);
        list_jobs_by_each_filter(pool).await;
    });
    let has_more = apply(controller, move |cx| {
        let end = cx.now + 1;
        Box::pin(async move { fts::purge(cx, end).await })
    });
    assert!(!has_more && controller.runtime.block_on(fts::job(pool, "1")).unwrap().is_none());
}

/// Lists jobs of one client, class and pair of storages by each condition alone.
async fn list_jobs_by_each_filter(pool: &AnyPool) {
    let some = |text: &str| Some(text.to_owned());
    let viewer = |client: &str, classes: &[&str]| fts::FtsJobFilter {
        viewer: Some(fts::FtsJobViewer {
            client: client.to_owned(),
            classes: classes.iter().map(|class| (*class).to_owned()).collect(),
        }),
        ..fts::FtsJobFilter::default()
    };
    let all = fts::FtsJobFilter::default();
    for (filter, found) in [
        (fts::FtsJobFilter { client: some("test"), ..all.clone() }, 2),
        (fts::FtsJobFilter { client: some("other"), ..all.clone() }, 0),
        (fts::FtsJobFilter { class: some("default"), ..all.clone() }, 2),
        (fts::FtsJobFilter { class: some("other"), ..all.clone() }, 0),
        (fts::FtsJobFilter { source: some("https://a/"), ..all.clone() }, 2),
        (fts::FtsJobFilter { source: some("https://b/"), ..all.clone() }, 0),
        (fts::FtsJobFilter { destination: some("https://b"), ..all.clone() }, 2),
        (fts::FtsJobFilter { destination: some("https://a"), ..all }, 0),
        (viewer("test", &[]), 2),
        (viewer("other", &["none", "default"]), 2),
        (viewer("other", &["none"]), 0),
        (viewer("other", &[]), 0),
    ] {
        let filter = fts::FtsJobFilter { limit: 10, ..filter };
        assert_eq!(fts::list(pool, &filter).await.unwrap().len(), found, "{filter:?}");
        let newest = fts::FtsJobFilter { limit: 1, ..filter };
        assert_eq!(fts::list(pool, &newest).await.unwrap().len(), found.min(1), "{newest:?}");
    }
}

/// Lists requests by each condition alone and by all.
async fn list_by_each_filter(pool: &AnyPool) {
    let some = || Some("test".to_owned());
    let none = || RequestFilter { limit: 10, ..RequestFilter::default() };
    for filter in [
        none(),
        RequestFilter { before: Some(i64::MAX), ..none() },
        RequestFilter { states: vec![RequestState::Staged, RequestState::Active], ..none() },
        RequestFilter { classes: Some(vec!["a".to_owned(), "b".to_owned()]), ..none() },
        RequestFilter { class: some(), ..none() },
        RequestFilter { source: some(), ..none() },
        RequestFilter { destination: some(), ..none() },
        RequestFilter { client: some(), ..none() },
        RequestFilter { client: some(), key: some(), ..none() },
    ] {
        requests::list(pool, &filter).await.unwrap();
    }
}

/// Runs the statements of rare cases and of simulations.
fn run_rare_statements(controller: &StoreController, missing: i64) {
    apply(controller, move |cx| {
        Box::pin(async move {
            batches::count_of_run(cx, missing).await?;
            batches::running_listings(cx, missing).await?;
            files::delete_first(cx, missing, 1).await?;
            let state = RequestFileState::Failed;
            let change = FileChange { seq: 0, state, attempt: 1, fault: None };
            files::store_changes(cx, vec![(missing, change)]).await?;
            let seqs = Some(vec![0, 2]);
            files::cancel(cx, missing, &FileSpan { first: 0, last: 2, seqs }).await?;
            requests::end_listing(cx, missing, None).await
        })
    });
    controller.runtime.block_on(async {
        let database = &controller.database;
        list_by_each_filter(&database.pool).await;
        requests::find(&database.pool, missing).await.unwrap();
        requests::open_count(&database.pool).await.unwrap();
        requests::summaries(&database.pool).await.unwrap();
        files::summaries(&database.pool).await.unwrap();
        size::measure(database).await.unwrap();
    });
}

/// Statements that read whole tables: counts and contents for the checks of simulations.
fn whole_reads() -> [String; 5] {
    [
        "SELECT COUNT(*) FROM file".to_owned(),
        "SELECT COUNT(*) FROM request".to_owned(),
        "SELECT COUNT(*) FROM request WHERE ended IS NULL".to_owned(),
        format!("SELECT {} FROM file ORDER BY request, seq", FileSummary::columns()),
        format!("SELECT {} FROM request ORDER BY id", RequestSummary::columns()),
    ]
}

/// Tables that grow with waiting or past work, and their aliases in statements.
const GROWING: [&str; 17] = [
    "file",
    "batch",
    "request",
    "run",
    "event",
    "audit",
    "round",
    "reservation",
    "circuit",
    "fts_job",
    "fts_file",
    "f",
    "b",
    "r",
    "n",
    "s",
    "c",
];

/// Indexes of unfinished rows only.
const LIVE: [&str; 7] = [
    "run_live",
    "run_from",
    "run_to",
    "batch_queued",
    "batch_waiting",
    "circuit_live",
    "fts_file_live",
];

/// Functions of `statement.rs` that make a statement.
const STATEMENT_FUNCTIONS: [&str; 6] =
    ["statement", "select", "select_with", "select_one", "insert_rows", "with_rows"];

/// True if a line of code calls a function that makes a statement.
fn makes_statement(line: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let code = line.split("//").next().unwrap_or_default();
    STATEMENT_FUNCTIONS.iter().any(|function| {
        code.match_indices(function).any(|(at, _)| {
            let (before, after) = (&code[..at], &code[at + function.len()..]);
            !before.ends_with(is_name)
                && !before.ends_with("fn ")
                && (after.starts_with('(') || after.starts_with("::<"))
        })
    })
}

/// Returns the calls in the sources of this folder that make a statement which SQLite runs: file name and line.
fn statement_calls() -> BTreeSet<(String, u32)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/repository");
    let mut calls = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if ["plans.rs", "rows.rs", "statement.rs"].contains(&name.as_str()) {
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        for (line, number) in source.lines().zip(1..) {
            if makes_statement(line) && !line.contains("DatabaseKind::Postgres =>") {
                calls.insert((name.clone(), number));
            }
        }
    }
    calls
}

/// Returns the calls that made one of these statements: file name and line.
fn calls_of(statements: &BTreeSet<String>) -> BTreeSet<(String, u32)> {
    let made = log::texts().into_iter();
    let ran = made.filter(|(_, texts)| !texts.is_disjoint(statements));
    ran.map(|((file, line), _)| (file.rsplit('/').next().unwrap_or(file).to_owned(), line))
        .collect()
}

async fn plan(connection: &mut AnyConnection, text: &str) -> Vec<String> {
    let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {text}"));
    let rows = sqlx::raw_sql(explain).fetch_all(connection).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>(3)).collect()
}

/// Runs every statement in the database of this URL.
fn run_statements(url: &str) -> StoreController {
    let mut config =
        Config::new(Topology::read(TWO_SITES).unwrap(), vec![WorkClass::new("default")]);
    config.batch = BatchLimits { files: 20, ..BatchLimits::default() };
    config.lost_after = std::time::Duration::from_secs(5);
    config.quotas =
        vec![ClientQuota { client: "test".to_owned(), requests: Some(1000), bytes: None }];
    config.keep = std::time::Duration::from_secs(100);
    let mut controller = StoreController::open(config.clone(), url).unwrap();
    a_day(&mut controller, &config);
    fts_jobs(&controller);
    controller
}

#[test]
fn statements_run_on_postgres() {
    match PostgresServer::shared() {
        Ok(server) => drop(run_statements(&server.new_database())),
        Err(error) => skip(Requirement::Program, &error.to_string()),
    }
}

#[test]
fn no_statement_scans_growing_tables() {
    tracing::subscriber::set_global_default(StatementCapture).expect("it is the only one");
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/plans.db?mode=rwc", directory.path().display());
    let controller = run_statements(&url);
    let mut statements =
        std::mem::take(&mut *STATEMENTS.lock().unwrap_or_else(PoisonError::into_inner));
    let expected = statement_calls();
    assert!(expected.len() > 100, "{} calls were found", expected.len());
    let unchecked: Vec<_> = expected.difference(&calls_of(&statements)).cloned().collect();
    assert!(unchecked.is_empty(), "statements that the day does not run: {unchecked:?}");
    statements.retain(|text| {
        let first = text.split_whitespace().next().unwrap_or_default();
        ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"].contains(&first)
    });
    for text in whole_reads() {
        assert!(statements.remove(&text), "{text}");
    }
    let mut wrong = Vec::new();
    controller.runtime.block_on(async {
        let mut connection = AnyConnection::connect(&url).await.unwrap();
        for text in &statements {
            for step in plan(&mut connection, text).await {
                let words: Vec<&str> = step.split_whitespace().collect();
                let whole = words.first() == Some(&"SCAN")
                    && words.get(1).is_some_and(|table| GROWING.contains(table))
                    && !words.iter().any(|word| LIVE.contains(word));
                let ends = text.contains("ORDER BY id LIMIT") || text.contains("DESC LIMIT");
                if whole && !ends {
                    wrong.push(format!("{step}: {text}"));
                }
            }
        }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
