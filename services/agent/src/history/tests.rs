//! History of transfers: rows, bounds, damaged files and restarts.

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::time::UNIX_EPOCH;

use penstock_mover::{ListedTransfer, StartConditions, TunerSample};
use penstock_tuner::{Parallelism, QueueShares, TcpDifferences};

use super::*;

fn ended(id: u64, state: &'static str) -> EndedTransfer {
    let listed = ListedTransfer {
        id,
        caller: "owner".to_owned(),
        peer: "192.0.2.7:40000".to_owned(),
        direction: "receive",
        path: "/store/secret".to_owned(),
        state,
        started: UNIX_EPOCH + Duration::from_secs(1_800_000_000 + id),
        seconds: 2.0,
        bytes: 900,
        moved_bytes: 1000,
        resumed_bytes: 24,
        announced_bytes: 1024,
        files: 3,
        failed: 1,
        streams: 0,
        readers: 0,
        writers: 2,
        rate_bps: None,
        bits_per_second: 4000,
        bound_by: "network".to_owned(),
        engine: "io_uring".to_owned(),
        retransmits: 5,
        scitag: None,
        transport: "tcp",
        transport_reason: String::new(),
    };
    EndedTransfer {
        listed,
        protocol: "penstock",
        other_host: "192.0.2.7".to_owned(),
        streams_peak: 4,
        streams_settled: Some(3),
        rtt_us: Some(150),
        start: StartConditions { other_transfers: 2, ..StartConditions::default() },
        samples: Arc::default(),
    }
}

/// Stores transfers through the log and its task.
fn store(state: &Path, transfers: impl IntoIterator<Item = EndedTransfer>) {
    // As in a daemon: the task runs while this thread waits for it.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let writer = HistoryWriter::start(state, "dtn1".to_owned(), runtime.handle());
    let log = writer.log();
    transfers.into_iter().for_each(|one| log.record(one));
    writer.close(runtime.handle());
}

#[test]
fn rows_are_read_as_written() {
    let state = tempfile::tempdir().unwrap();
    assert_eq!(read(state.path(), 10).unwrap(), []);
    store(state.path(), [ended(1, "done"), ended(2, "failed"), ended(3, "cancelled")]);
    store(state.path(), [ended(4, "done")]);
    let rows = read(state.path(), 10).unwrap();
    let verdicts: Vec<_> = rows.iter().map(|row| row.verdict).collect();
    let (done, failed) = (TransferVerdict::Done, TransferVerdict::Failed);
    assert_eq!(verdicts, [done, failed, TransferVerdict::Cancelled, done]);
    let expected = HistoryRow { id: 4, ..HistoryRow::of_ended("dtn1", ended(4, "done")) };
    assert_eq!(rows[3], expected);
    assert_eq!((rows[0].source.as_str(), rows[0].destination.as_str()), ("192.0.2.7", "dtn1"));
    assert_eq!((rows[0].streams, rows[0].files, rows[0].bits_per_second()), (4, 4, 4000.0));
    let latest: Vec<_> = read(state.path(), 2).unwrap().iter().map(|row| row.id).collect();
    assert_eq!(latest, [3, 4]);
}

#[test]
fn files_are_private_and_without_paths() {
    let state = tempfile::tempdir().unwrap();
    store(state.path(), [ended(1, "done")]);
    for entry in std::fs::read_dir(state.path()).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{path:?}");
        let bytes = std::fs::read(&path).unwrap();
        for private in [&b"secret"[..], b"owner"] {
            assert!(!bytes.windows(private.len()).any(|part| part == private));
        }
    }
}

#[test]
fn oldest_rows_beyond_limit_go() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join(FILE);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let pool = database::open(&path).await.unwrap();
        for id in 0..30 {
            let row = HistoryRow::of_ended("dtn1", ended(id, "done"));
            database::insert(&pool, &row, 10).await.unwrap();
        }
        pool.close().await;
    });
    let ids: Vec<_> = read(state.path(), 100).unwrap().iter().map(|row| row.id).collect();
    assert_eq!(ids, (21..=30).collect::<Vec<_>>());
    // A transfer much later removes those beyond their age.
    store(state.path(), [ended(AGE_MAX_S as u64 + 28, "done")]);
    assert_eq!(read(state.path(), 100).unwrap().len(), 3);
}

#[test]
fn damaged_file_is_set_aside() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join(FILE);
    std::fs::write(&path, [7; 10_000]).unwrap();
    assert!(read(state.path(), 10).unwrap_err().to_string().contains("history.db"));
    store(state.path(), [ended(1, "done")]);
    assert_eq!(read(state.path(), 10).unwrap().len(), 1);
    assert_eq!(std::fs::read(state.path().join("history.db.damaged")).unwrap(), [7; 10_000]);
}

#[test]
fn damaged_pages_are_found_at_start() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join(FILE);
    store(state.path(), (1..200).map(|id| ended(id, "done")));
    // Pages of old rows: new ones are appended to others.
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 4 * 4096].fill(7);
    std::fs::write(&path, &bytes).unwrap();
    let refused = read(state.path(), 1000).unwrap_err().to_string();
    assert!(refused.contains("when it next starts"), "{refused}");
    store(state.path(), [ended(200, "done")]);
    assert_eq!(read(state.path(), 1000).unwrap().len(), 1);
    assert_eq!(std::fs::read(state.path().join("history.db.damaged")).unwrap(), bytes);
}

#[test]
fn newer_format_is_left_alone() {
    let state = tempfile::tempdir().unwrap();
    store(state.path(), [ended(1, "done")]);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let pool = database::open(&state.path().join(FILE)).await.unwrap();
        sqlx::raw_sql("PRAGMA user_version = 99").execute(&pool).await.unwrap();
        pool.close().await;
    });
    assert!(read(state.path(), 10).unwrap_err().to_string().contains("format 99 is newer"));
    // The row is lost, and nothing else.
    store(state.path(), [ended(2, "done")]);
    assert!(!state.path().join("history.db.damaged").exists());
}

#[test]
fn former_format_is_read_and_migrated() {
    let state = tempfile::tempdir().unwrap();
    store(state.path(), [ended(1, "done")]);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let pool = database::open(&state.path().join(FILE)).await.unwrap();
        let former = "ALTER TABLE transfer DROP COLUMN streams_settled; PRAGMA user_version = 1";
        sqlx::raw_sql(former).execute(&pool).await.unwrap();
        pool.close().await;
    });
    assert_eq!(read(state.path(), 10).unwrap()[0].streams_settled, None);
    store(state.path(), [ended(2, "done")]);
    let streams: Vec<_> =
        read(state.path(), 10).unwrap().iter().map(|row| row.streams_settled).collect();
    assert_eq!(streams, [None, Some(3)]);
}

/// Samples of half a second.
fn samples(count: usize) -> Arc<VecDeque<TunerSample>> {
    let sample = TunerSample {
        interval_us: 500_000,
        bytes: 50_000_000,
        active: Parallelism::streams(4),
        tcp: TcpDifferences::default(),
        queues: QueueShares::default(),
        sender_cpu: 0.1,
        receiver_cpu: 0.1,
    };
    Arc::new(vec![sample; count].into())
}

#[test]
fn latest_long_traces_are_kept() {
    let state = tempfile::tempdir().unwrap();
    let with_samples =
        |id: u64, count: usize| EndedTransfer { samples: samples(count), ..ended(id, "done") };
    store(state.path(), [with_samples(1, 69)]);
    assert_eq!(trace_files(state.path()).unwrap(), Vec::<PathBuf>::new());
    let more = 3;
    store(state.path(), (0..traces::TRACES_MAX as u64 + more).map(|id| with_samples(id, 70)));
    let files = trace_files(state.path()).unwrap();
    assert_eq!(files.len(), traces::TRACES_MAX);
    let text = std::fs::read_to_string(&files[0]).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let bytes: Vec<_> = lines.map(|line| line["sample"]["bytes"].clone()).collect();
    assert_eq!(bytes, vec![50_000_000; 70]);
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(name(&files[0]).ends_with(&format!("-{more:06}.jsonl")), "{}", name(&files[0]));
    let directory = state.path().join(TRACES_DIRECTORY).metadata().unwrap();
    assert_eq!(directory.permissions().mode() & 0o777, 0o700);
}

#[test]
fn killed_write_leaves_no_trace() {
    let state = tempfile::tempdir().unwrap();
    let long = |id| EndedTransfer { samples: samples(70), ..ended(id, "done") };
    store(state.path(), [long(1)]);
    // As a process leaves it that is killed before the new name.
    let unfinished = state.path().join(TRACES_DIRECTORY).join(".01800000002000-000002.jsonl.4711");
    let an_hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    let mut file = std::fs::File::create(&unfinished).unwrap();
    file.write_all(b"{\"sample\":{\"inter").unwrap();
    file.set_modified(an_hour_ago).unwrap();
    let in_progress = unfinished.with_extension("4712");
    std::fs::write(&in_progress, "{").unwrap();
    assert_eq!(trace_files(state.path()).unwrap().len(), 1);
    store(state.path(), [long(3)]);
    assert_eq!(trace_files(state.path()).unwrap().len(), 2);
    assert!(!unfinished.exists(), "the next trace removes it");
    assert!(in_progress.exists(), "a copy writes it");
}

/// A transfer that this host sent.
fn sent(id: u64, streams: u16, state: &'static str) -> EndedTransfer {
    let mut one = ended(id, state);
    (one.listed.direction, one.listed.seconds) = ("send", 30.0);
    (one.streams_settled, one.start.protection) = (Some(streams), Some(Protection::Full));
    one
}

#[test]
fn restarted_history_recommends_streams() {
    let state = tempfile::tempdir().unwrap();
    let mut limited = sent(6, 1, "done");
    limited.listed.rate_bps = Some(1_000_000);
    let uncounted = [sent(5, 1, "failed"), limited, ended(7, "done")];
    store(state.path(), (1..5).map(|id| sent(id, 12, "done")).chain(uncounted));
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let writer = HistoryWriter::start(state.path(), "dtn1".to_owned(), runtime.handle());
    let log = writer.log();
    let best = |host: &str, protection| log.best_streams(host, protection);
    assert_eq!(best("192.0.2.7", Protection::Full), None, "four are too few");
    log.record(sent(8, 14, "done"));
    let known = penstock_testkit::wait_until("the former ones are read", CLOSE_TIMEOUT, || {
        best("192.0.2.7", Protection::Full)
    });
    assert_eq!(known, KnownStreams { streams: 12, stream_bps: known.stream_bps, transfers: 5 });
    assert_eq!(best("192.0.2.7", Protection::Integrity), None);
    assert_eq!(best("192.0.2.8", Protection::Full), None);
    writer.close(runtime.handle());
}

#[test]
fn restarted_history_forecasts_rates() {
    let state = tempfile::tempdir().unwrap();
    // 30 s each, by size between 8 and 12 Gb/s.
    let large = |id: u64| {
        let mut one = sent(id, 8, "done");
        one.listed.moved_bytes = 30_000_000_000 + (id % 5) * 3_750_000_000;
        one
    };
    let mut bound = large(6);
    bound.listed.bound_by = "rate limit".to_owned();
    let mut by_gateway = large(7);
    by_gateway.protocol = "http";
    store(state.path(), (1..5).map(large).chain([bound, by_gateway, ended(8, "done")]));
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let writer = HistoryWriter::start(state.path(), "dtn1".to_owned(), runtime.handle());
    let (log, paths) = (writer.log(), writer.paths());
    let host = ["192.0.2.7".to_owned(), "dtn7".to_owned()];
    assert_eq!(paths.forecast(&host, 40_000_000_000), None, "four are too few");
    log.record(large(9));
    let forecast = penstock_testkit::wait_until("the former ones are read", CLOSE_TIMEOUT, || {
        paths.forecast(&host, 40_000_000_000)
    });
    assert_eq!(forecast.transfers, 5);
    assert!(forecast.p10_bps <= forecast.p50_bps && forecast.p50_bps <= forecast.p90_bps);
    assert!((7_000_000_000..13_000_000_000).contains(&forecast.p50_bps), "{forecast:?}");
    assert_eq!(paths.forecast(&host, 1 << 50), None, "no transfer had such a size");
    assert_eq!(paths.forecast(&host[1..], 40_000_000_000), None, "a host without transfers");
    writer.close(runtime.handle());
}

#[test]
fn unwritable_directory_drops_rows() {
    let state = tempfile::tempdir().unwrap();
    store(&state.path().join("missing"), [ended(1, "done")]);
    assert_eq!(read(&state.path().join("missing"), 10).unwrap(), []);
}
