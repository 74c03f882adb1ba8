//! The store when the process is killed, the file is damaged or locked, and the disk is full.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use sqlx::Connection;

use super::*;
use crate::row::{RowDirection, RowVantage};

const CHILD: &str = "PENSTOCK_TEST_STORE_CHILD";

fn counter(index: u32) -> SumRow {
    let at = RowVantage { exporter: "192.0.2.1".into(), host: true, direction: RowDirection::In };
    SumRow::Counter { at, index, unsampled: false }
}

/// A minute whose content follows from its number.
fn minute(number: i64) -> Minute {
    let cell = |bytes: i64| SumCell { bytes: bytes as f64, error_squared: 0.0, seconds: 60.0 };
    let rows = (0..50).map(|index| (counter(index), cell(number * i64::from(index)))).collect();
    Minute { id: number, start_s: number * 60, seconds: 60.0, rows, counters: Vec::new() }
}

async fn sum_of(store: &Store, number: i64) -> f64 {
    let (from, to) = (number * 60, number * 60 + 60);
    let rows = store.read(Tier::Minute, RowKind::Counter, (from, to), (from, 60)).await.unwrap();
    rows.iter().map(|(_, _, cell)| cell.bytes).sum()
}

/// Helper process of the test below, which kills it.
#[tokio::test]
async fn writes_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let store = Store::new(Path::new(&dir), 1 << 30);
    let mut ids = HashMap::new();
    let first = store.open().await.unwrap();
    let last = database::newest(&first).await.unwrap().unwrap_or(0) / 60;
    for number in last + 1..=last + 100_000 {
        // As after an error of unknown outcome of the commit.
        store.write(&minute(number), &mut ids).await.unwrap();
        store.write(&minute(number), &mut ids).await.unwrap();
        println!("\nstored {number}");
    }
}

#[tokio::test]
async fn killed_process_keeps_minutes_exactly_once() {
    let mut random = penstock_testkit::seeded(0x5EED);
    let dir = tempfile::tempdir().unwrap();
    let mut checked = 0;
    for _ in 0..2 {
        let most = random.between(3, 43) as usize;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::tests::writes_until_it_is_killed", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let stored = lines.map_while(Result::ok).filter_map(|line| {
            line.strip_prefix("stored ").and_then(|number| number.parse::<i64>().ok())
        });
        let last = stored.take(most).last().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();

        let store = Store::new(dir.path(), 1 << 30);
        let newest = database::newest(&store.open().await.unwrap()).await.unwrap().unwrap() / 60;
        assert!(newest >= last, "{newest} is stored, {last} was reported");
        for number in checked + 1..=newest {
            assert_eq!(sum_of(&store, number).await, (number * 1225) as f64, "minute {number}");
        }
        checked = newest;
    }
    assert_eq!(Store::new(dir.path(), 1 << 30).health.damaged.load(Ordering::Relaxed), 0);
}

/// Runs a store with these minutes, until all are stored or lost.
async fn run(store: &Store, numbers: std::ops::Range<i64>) {
    let (give, take) = mpsc::unbounded_channel();
    numbers.for_each(|number| give.send(Arc::new(minute(number))).unwrap());
    drop(give);
    store.run(take, tokio::sync::mpsc::unbounded_channel().1).await;
}

#[tokio::test]
async fn damaged_file_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join(FILE),
        "this is no database, and long enough to see it".repeat(100),
    )
    .unwrap();
    let store = Store::new(dir.path(), 1 << 30);
    run(&store, 1..3).await;
    assert_eq!(store.health.damaged.load(Ordering::Relaxed), 1);
    assert_eq!(store.health.minutes.load(Ordering::Relaxed), 2);
    assert_eq!(store.trouble(), None);
    assert!(dir.path().join("telemetry.db.damaged").exists());
}

#[tokio::test]
async fn newer_database_format_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    run(&Store::new(dir.path(), 1 << 30), 1..2).await;
    let newer = Store::new(dir.path(), 1 << 30);
    let pool = newer.open().await.unwrap();
    sqlx::query("PRAGMA user_version = 99").execute(&pool).await.unwrap();
    pool.close().await;
    let store = Store::new(dir.path(), 1 << 30);
    run(&store, 2..3).await;
    assert!(store.trouble().unwrap().contains("newer"), "{:?}", store.trouble());
    assert_eq!(store.health.lost.load(Ordering::Relaxed), 1);
    assert!(!dir.path().join("telemetry.db.damaged").exists());
}

#[tokio::test]
async fn failed_writes_count_and_retry() {
    let dir = tempfile::tempdir().unwrap();
    // A directory in place of the file.
    std::fs::create_dir(dir.path().join(FILE)).unwrap();
    let store = Store::new(dir.path(), 1 << 30);
    let mut ids = HashMap::new();
    assert!(store.write(&minute(1), &mut ids).await.is_err());
    std::fs::remove_dir(dir.path().join(FILE)).unwrap();
    store.write(&minute(1), &mut ids).await.unwrap();
    // Another program holds the write lock: the store waits, and gives up without damage.
    let mut other = sqlx::SqliteConnection::connect_with(
        &sqlx::sqlite::SqliteConnectOptions::new().filename(dir.path().join(FILE)),
    )
    .await
    .unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let failed = store.write(&minute(2), &mut ids).await.unwrap_err();
    assert!(failed.to_string().contains("locked"), "{failed}");
    sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    store.write(&minute(2), &mut ids).await.unwrap();
    assert_eq!(sum_of(&store, 2).await, 2450.0);
}
