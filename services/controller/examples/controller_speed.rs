//! Measures the rate of requests and reports: `controller_speed sqlite|postgres SECONDS` prints one JSON object.
//!
//! Client, controller and database share this machine's processors; requests use real HTTP connections.

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::node::{Node, Shared};
use common::{Client, Running, Store, config, directory, token};
use penstock_testkit::postgres::PostgresServer;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Concurrent clients.
const CLIENT_COUNT: usize = 64;

/// Files queued during the last measurements.
const QUEUED_FILES: usize = 1_000_000;

/// Files per request.
const FILES_PER_REQUEST: usize = 10_000;

fn body(run: u64, files: usize) -> Vec<u8> {
    use std::io::Write;
    let mut body = br#"{"class":"production","source":"cern","destination":"caltech","from":"/data","to":"/in","files":["#.to_vec();
    for n in 0..files {
        let comma = if n == 0 { "" } else { "," };
        let directory = n / 100;
        let _ = write!(
            body,
            r#"{comma}{{"path":"run-{run}/{directory:03}/file-{n:06}.raw","size":200000000}}"#
        );
    }
    body.extend_from_slice(b"]}");
    body
}

/// Formats the rate, and the response times in milliseconds.
fn rate_object(count: u64, elapsed: Duration, mut times: Vec<f64>) -> Value {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| {
        times
            .get(((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1)))
            .copied()
    };
    json!({ "per_second": count as f64 / elapsed.as_secs_f64(), "p50_ms": at(0.5), "p99_ms": at(0.99), "answers": times.len() })
}

/// Submits requests of this many files for a while.
async fn submit(
    running: &Running,
    clients: usize,
    files: usize,
    during: Duration,
    most: u64,
) -> Value {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let begun = Instant::now();
    let done = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let mut client = Client::new(running.address, &token("producer"));
        let done = Arc::clone(&done);
        tasks.spawn(async move {
            let mut times = Vec::new();
            while begun.elapsed() < during && done.fetch_add(1, Ordering::Relaxed) < most {
                let body = body(NEXT.fetch_add(1, Ordering::Relaxed), files);
                let asked = Instant::now();
                let (status, answer) =
                    client.try_ask("POST", "/api/v1/requests", &body).await.expect("an answer");
                assert_eq!(status, 201, "{answer}");
                times.push(asked.elapsed().as_secs_f64() * 1e3);
            }
            times
        });
    }
    let times: Vec<f64> = tasks.join_all().await.into_iter().flatten().collect();
    rate_object((times.len() * files) as u64, begun.elapsed(), times)
}

/// Load of nodes in [`settle`].
#[derive(Clone, Copy)]
struct NodeLoad {
    /// Interval of a node's reports; none to report again at once.
    every: Option<Duration>,
    /// Files that a sending node completes between two reports.
    files: usize,
}

/// 1,200 files a second: two sending nodes with four reports a second each.
const STEADY_LOAD: NodeLoad = NodeLoad { every: Some(Duration::from_millis(250)), files: 150 };

/// Highest possible load.
const PEAK_LOAD: NodeLoad = NodeLoad { every: None, files: 2000 };

/// Settles files on four nodes; measured from when their orders run.
async fn settle(running: &Running, pace: NodeLoad, during: Duration) -> Value {
    static BEGINNINGS: AtomicU64 = AtomicU64::new(0);
    let beginnings = BEGINNINGS.fetch_add(1, Ordering::Relaxed);
    let world = Shared::default();
    let settled = |world: &Shared| world.lock().expect("nobody fails").written.len() as u64;
    let mut nodes = ["c1", "c2", "t1", "t2"].map(|name| {
        let mut node = Node::new(name, running.address, &world);
        (node.speed, node.most, node.transfers) = (pace.files, pace.files, 8);
        // A new process, unlike that of the previous measurement.
        (0..beginnings).for_each(|_| node.crash());
        node
    });
    while !nodes.iter().all(|node| node.last.orders.len() >= 8) || settled(&world) == 0 {
        for node in &mut nodes {
            assert!(node.turn().await, "the controller answers");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = settled(&world);
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for mut node in nodes {
        tasks.spawn(async move {
            let mut times = Vec::new();
            let mut ticks = pace.every.map(tokio::time::interval);
            while begun.elapsed() < during {
                if let Some(ticks) = &mut ticks {
                    ticks.tick().await;
                }
                let asked = Instant::now();
                assert!(node.report().await, "the controller answers");
                times.push(asked.elapsed().as_secs_f64() * 1e3);
                node.fetch().await;
            }
            times
        });
    }
    let times: Vec<f64> = tasks.join_all().await.into_iter().flatten().collect();
    rate_object(settled(&world) - before, begun.elapsed(), times)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().unwrap_or_else(|| "sqlite".to_owned());
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(5.0);
    let during = Duration::from_secs_f64(seconds);
    let store = match kind.as_str() {
        "sqlite" => Store::Sqlite,
        _ => Store::Postgres(PostgresServer::shared().expect("PostgreSQL is installed")),
    };
    let (_keep, path) = directory();
    // Orders of single files are short: a few wait while one runs.
    let line = format!("transfers_per_pair = 4\n{}", store.line());
    let running = Running::start(config(&path, &line), &path);
    let report = running.block(async {
        json!({
            "store": kind,
            "single_files": submit(&running, CLIENT_COUNT, 1, during, u64::MAX).await,
            "files_in_batches": submit(&running, 4, FILES_PER_REQUEST, during, u64::MAX).await,
            "completions": settle(&running, STEADY_LOAD, 8 * during).await,
            "completions_at_most": settle(&running, PEAK_LOAD, during).await,
            "queued_files":
                submit(&running, 4, FILES_PER_REQUEST, Duration::from_secs(600), (QUEUED_FILES / FILES_PER_REQUEST) as u64).await,
            "single_files_with_a_million_queued": submit(&running, CLIENT_COUNT, 1, during, u64::MAX).await,
            "files_in_batches_with_a_million_queued": submit(&running, 4, FILES_PER_REQUEST, during, u64::MAX).await,
            "completions_with_a_million_queued": settle(&running, STEADY_LOAD, 8 * during).await,
            "completions_at_most_with_a_million_queued": settle(&running, PEAK_LOAD, during).await,
        })
    });
    running.stop();
    let begun = Instant::now();
    let running = Running::start(config(&path, &line), &path);
    running.block(async { running.client("reader").get("/api/v1/requests?limit=1").await });
    let mut report = report;
    report["restart_seconds"] = json!(begun.elapsed().as_secs_f64());
    println!("{report}");
}
