//! How fast a controller takes requests and reports: `controller_speed sqlite|postgres SECONDS` prints one JSON object.
//!
//! Client, controller and database are on this machine and share its processors; requests go over real HTTP connections.

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::node::{Node, Shared};
use common::{Client, Running, Store, config, directory, postgres, token};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Clients that submit at once.
const CLIENTS: usize = 64;

/// Files that wait while the last measurements are made.
const QUEUED: usize = 1_000_000;

/// Files of a call.
const BATCH: usize = 10_000;

fn body(run: u64, files: usize) -> Vec<u8> {
    let file = |n: usize| json!({ "path": format!("run-{run}/{:03}/file-{n:06}.raw", n / 100), "size": 200_000_000 });
    let body = json!({
        "class": "production", "source": "cern", "destination": "caltech", "from": "/data", "to": "/in",
        "files": (0..files).map(file).collect::<Vec<_>>(),
    });
    serde_json::to_vec(&body).expect("plain data")
}

/// Rate, and times of answers in milliseconds.
fn told(count: u64, elapsed: Duration, mut times: Vec<f64>) -> Value {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| {
        times
            .get(((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1)))
            .copied()
    };
    json!({ "per_second": count as f64 / elapsed.as_secs_f64(), "p50_ms": at(0.5), "p99_ms": at(0.99), "answers": times.len() })
}

/// Clients that submit requests of so many files for a while.
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
    told((times.len() * files) as u64, begun.elapsed(), times)
}

/// Nodes that settle a thousand files a second between them, each with a report in every quarter of a second.
async fn settle(running: &Running, during: Duration) -> Value {
    let world = Shared::default();
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for name in ["c1", "c2", "t1", "t2"] {
        let mut node = Node::new(name, running.address, &world);
        // Two hosts send, with an order each to both of the others: 62 files for each in a quarter of a second.
        (node.speed, node.transfers) = (63, 2);
        tasks.spawn(async move {
            let mut times = Vec::new();
            let mut ticks = tokio::time::interval(Duration::from_millis(250));
            while begun.elapsed() < during {
                ticks.tick().await;
                let asked = Instant::now();
                assert!(node.turn().await, "the controller answers");
                times.push(asked.elapsed().as_secs_f64() * 1e3);
            }
            times
        });
    }
    let times: Vec<f64> = tasks.join_all().await.into_iter().flatten().collect();
    let settled = world.lock().expect("nobody fails").written.len() as u64;
    told(settled, begun.elapsed(), times)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().unwrap_or_else(|| "sqlite".to_owned());
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(5.0);
    let during = Duration::from_secs_f64(seconds);
    let store = match kind.as_str() {
        "sqlite" => Store::Sqlite,
        _ => Store::Postgres(postgres::Postgres::shared().expect("PostgreSQL is installed")),
    };
    let (_keep, path) = directory();
    let line = store.line();
    let running = Running::start(config(&path, &line), &path);
    let (singles, batches, settled, queued, loaded_singles, loaded_settled) =
        running.block(async {
            let singles = submit(&running, CLIENTS, 1, during, u64::MAX).await;
            let batches = submit(&running, 4, BATCH, during, u64::MAX).await;
            let settled = settle(&running, 2 * during).await;
            let queued =
                submit(&running, 4, BATCH, Duration::from_secs(600), (QUEUED / BATCH) as u64).await;
            let loaded_singles = submit(&running, CLIENTS, 1, during, u64::MAX).await;
            let loaded_settled = settle(&running, 2 * during).await;
            (singles, batches, settled, queued, loaded_singles, loaded_settled)
        });
    running.stop();
    let begun = Instant::now();
    let running = Running::start(config(&path, &line), &path);
    running.block(async { running.client("reader").get("/api/v1/requests?limit=1").await });
    let restart = begun.elapsed().as_secs_f64();
    let report = json!({
        "store": kind, "single_files": singles, "files_in_batches": batches, "completions": settled,
        "queued_files": queued, "single_files_with_a_million_queued": loaded_singles,
        "completions_with_a_million_queued": loaded_settled, "restart_seconds": restart,
    });
    println!("{report}");
}
