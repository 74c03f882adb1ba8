//! A second at its limits from samples to storage, in virtual time: ten thousand keys for an hour,
//! and a full store. Datagrams from sockets of several threads to a second.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use penstock_flows::aggregate::{AggregateLimits, Aggregates, Aggregator, PackedGroup};
use penstock_flows::exporter::ExporterKey;
use penstock_flows::intake::{Intake, IntakeCounts};
use penstock_flows::observe::Observation;
use penstock_flows::prefixes::Prefixes;
use penstock_flows::rates::Amount;
use penstock_flows::scitag::{ScitagVerdict, Trust};
use penstock_flows::sflow::encode::FlowHead;
use penstock_flows::sflow::{Encoder, SflowInterface, Source};
use penstock_http::ServiceRole;
use penstock_scitags::Registry;

use crate::collector::CollectorRole;
use crate::config::Config;
use crate::directory::NameDirectory;
use crate::live::{LIVE_SECONDS, LiveSeconds, Namer, ROWS_MAX};
use crate::minute::MinuteBuilder;
use crate::query::{By, Query};
use crate::query_executor::{TimeBuckets, execute};
use crate::row::RowKind;
use crate::second::Second;
use crate::shared::{Shared, Stores};
use crate::store::{Store, Tier};

const KEY_COUNT: u32 = 10_000;

/// Sums of a second with this many groups.
fn sums(keys: u32) -> Aggregates {
    let mut aggregator = Aggregator::new(AggregateLimits::default(), Prefixes::default(), 1);
    for key in 0..keys {
        let seen =
            Observation::nothing(1000, SflowInterface::Index(key + 1), SflowInterface::Unknown);
        aggregator.add(1, &seen, &Amount::new(1000, 1, 1500), ScitagVerdict::Unlabelled);
    }
    aggregator.take()
}

#[tokio::test]
async fn ten_thousand_keys_have_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path(), 1 << 30);
    let (give, take) = tokio::sync::mpsc::unbounded_channel();
    let (directory, sites): (_, crate::live::Sites) = (NameDirectory::default(), Arc::default());
    let namer = Namer::new(&directory, &sites);
    let sums = sums(KEY_COUNT);
    let (mut live, mut gathering) = (LiveSeconds::default(), MinuteBuilder::default());
    let (mut most, mut minutes) = (0, 0);
    for number in 0..3_600_u64 {
        let span = crate::timeline::TimelineSecond {
            number,
            at_s: number as i64,
            start: std::time::Duration::ZERO,
            end: std::time::Duration::from_secs(1),
        };
        let second = Arc::new(Second::new(span, 1.0, &sums));
        assert_eq!(second.rows(), KEY_COUNT as usize);
        live.push(Arc::clone(&second), crate::second::strata(&sums));
        if gathering.is_over(&second) {
            let minute = gathering.finish(minutes, &namer, live.take_minutes()).unwrap();
            minutes += 1;
            give.send(Arc::new(minute)).unwrap();
        }
        gathering.add(&second);
        most = most.max(live.rows());
    }
    drop(give);
    store.run(take, tokio::sync::mpsc::unbounded_channel().1).await;
    // Ten minutes of them fill the memory limit.
    assert_eq!((live.seconds().count(), most), (LIVE_SECONDS, ROWS_MAX));
    let bytes = most * size_of::<(PackedGroup, crate::second::CompactSum)>();
    assert!(bytes <= 300_000_000, "{bytes} bytes");
    assert_eq!(store.health.minutes.load(Ordering::Relaxed), 59);
    assert_eq!(store.health.lost.load(Ordering::Relaxed), 0);
    // A minute has its thousand largest rows and the others as one: 59 of 16 KiB, and their keys.
    assert!(store.bytes() < 8 << 20, "{} bytes", store.bytes());
}

/// Run by hand: `cargo test --release -p penstock-collector --lib -- --ignored --nocapture full`. A
/// week of minutes and a year of hours with a thousand groups each; prints the time of each query
/// of the dashboard.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes half a gigabyte and prints figures"]
async fn full_store_answers_quickly() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path(), 4 << 30);
    store.fill(1_000, 7 * 1_440, 366 * 24).await;
    println!("{} MiB", store.bytes() >> 20);
    let registry = Registry::builtin().clone();
    let none = Prefixes::default;
    let trust = Trust::new(registry.clone(), none(), none(), 1);
    let aggregator = Aggregator::new(AggregateLimits::default(), Prefixes::default(), 1);
    let intake = Intake::new(trust, aggregator, 1);
    let stores = Stores { store: Some(store), clickhouse: None, archive: None };
    let shared =
        Shared::new(Config::default(), registry, vec![intake], (Vec::new(), Vec::new()), stores);
    let store = shared.store.as_ref().unwrap();
    for (what, tier, length_s, step_s) in [
        ("7 days by minute, 600 points", Tier::Minute, 7 * 86_400, 1_020),
        ("7 days by minute, 1440 points", Tier::Minute, 7 * 86_400, 420),
        ("7 days by hour", Tier::Hour, 7 * 86_400, 3_600),
        ("a year by hour, 586 points", Tier::Hour, 366 * 86_400, 54_000),
        ("a year by hour, 1464 points", Tier::Hour, 366 * 86_400, 21_600),
    ] {
        for by in [By::Owner, By::Vlan, By::Interface] {
            let query = Query::of(by);
            let end_s = 366 * 86_400;
            let buckets = (length_s / step_s) as usize;
            let span = TimeBuckets { start_s: end_s - length_s, step_s, buckets };
            let begun = Instant::now();
            let past = crate::api::past(store, &query, span, tier).await.unwrap();
            let read = begun.elapsed();
            let answer = execute(&shared, &query, span, &past, std::iter::empty(), &[]);
            println!("{what}, {by:?}: {:?} read, {:?} in all", read, begun.elapsed());
            assert_eq!(query.kind(), RowKind::Group);
            assert!(answer.total.iter().all(|sum| sum.bytes > 0.0));
        }
    }
}

/// Datagram of an agent with one sample.
fn sampled(agent: u8) -> Vec<u8> {
    let mut encoder = Encoder::new([192, 0, 2, agent].into(), 0, 1400);
    let head = FlowHead {
        sequence: 1,
        source: Source::interface(1),
        sampling_rate: 1_000,
        sample_pool: 1_000,
        drops: 0,
        input: SflowInterface::Index(1),
        output: SflowInterface::Index(2),
    };
    let complete = encoder.flow(1, &head, &[]).unwrap();
    complete.or_else(|| encoder.take(1)).unwrap()
}

/// A collector with sockets of all formats on loopback.
fn start(threads: usize, state: &Path) -> CollectorRole {
    let config = Config {
        sflow: vec![([127, 0, 0, 1], 0).into()],
        ipfix: vec![([127, 0, 0, 1], 0).into()],
        fireflies: vec![([127, 0, 0, 1], 0).into()],
        threads,
        receive_buffer_bytes: 1 << 20,
        required: true,
        ..Config::default()
    };
    let runtime = tokio::runtime::Handle::current();
    CollectorRole::start(config, Registry::builtin().clone(), state, &runtime).unwrap()
}

/// Datagrams of a capture of real exporters, each behind its length in two bytes.
fn captured(name: &str) -> Vec<Vec<u8>> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../core/flows/tests/data");
    let bytes = std::fs::read(data.join(name)).unwrap();
    let (mut rest, mut datagrams) = (&bytes[..], Vec::new());
    while let Some((length, behind)) = rest.split_first_chunk() {
        let (datagram, behind) = behind.split_at(u16::from_be_bytes(*length).into());
        datagrams.push(datagram.to_vec());
        rest = behind;
    }
    datagrams
}

/// Counts, samples of closed seconds and exporters after captures from eight addresses.
async fn replay(threads: usize) -> (IntakeCounts, u64, Vec<(ExporterKey, u64)>) {
    let dir = tempfile::tempdir().unwrap();
    let role = start(threads, dir.path());
    let mut feed = role.shared().subscribe().unwrap();
    let mut sent = 0;
    for (input, names) in [
        (0, &["switches.sflow"][..]),
        (1, &["netflow5.export", "netflow9.export", "netflow9-sampled.export", "ipfix.export"]),
    ] {
        let to = role.inputs()[input].address;
        for (address, name) in (1..9_u8).flat_map(|at| names.iter().map(move |name| (at, name))) {
            let socket = UdpSocket::bind(SocketAddr::from(([127, 0, 0, address], 0))).unwrap();
            for datagram in captured(name) {
                socket.send_to(&datagram, to).unwrap();
                sent += 1;
            }
        }
    }
    let mut samples = 0;
    let counts = loop {
        samples += feed.recv().await.unwrap().samples;
        let mut counts = IntakeCounts::default();
        for state in role.shared().shard_states() {
            counts.merge(&state.intake.counts());
        }
        // The intake counts a sample before the second of its datagram is closed.
        if counts.datagrams + counts.refused == sent && samples >= counts.observations {
            break counts;
        }
    };
    let mut exporters = Vec::new();
    for state in role.shared().shard_states() {
        let of_shard = state.intake.exporters().iter();
        exporters.extend(of_shard.map(|exporter| (exporter.key, exporter.sequence.received)));
    }
    // Each socket has a port of its own.
    exporters.iter_mut().for_each(|(key, _)| key.port = 0);
    exporters.sort_unstable();
    role.stop();
    (counts, samples, exporters)
}

#[tokio::test(flavor = "multi_thread")]
async fn captures_are_same_with_threads() {
    let limit = std::time::Duration::from_secs(120);
    let one = tokio::time::timeout(limit, replay(1)).await.unwrap();
    let two = tokio::time::timeout(limit, replay(2)).await.unwrap();
    assert!(one.0.observations > 100 && one.2.len() > 8 * 4, "{one:?}");
    assert_eq!(one, two);
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_share_exporters_of_address() {
    const AGENT_COUNT: u8 = 8;
    let dir = tempfile::tempdir().unwrap();
    let role = start(2, dir.path());
    let mut feed = role.shared().subscribe().unwrap();
    let input = &role.inputs()[0];
    for agent in 0..AGENT_COUNT {
        // A port of its own for each datagram.
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&sampled(agent), input.address).unwrap();
    }
    let received = async {
        let (mut samples, mut exporters) = (0, Vec::new());
        while samples < u64::from(AGENT_COUNT) {
            let second = feed.recv().await.unwrap();
            samples += second.samples;
            exporters.extend(second.groups.rows.iter().map(|(key, _)| {
                let (exporter, ..) = crate::second::stratum_of(key).unwrap();
                exporter
            }));
        }
        exporters.sort_unstable();
        exporters
    };
    let limit = std::time::Duration::from_secs(120);
    let exporters = tokio::time::timeout(limit, received).await.unwrap();
    assert_eq!(exporters, (0..u32::from(AGENT_COUNT)).collect::<Vec<_>>());
    let by_thread = input.sockets.iter().map(|one| one.datagrams.load(Ordering::Relaxed));
    assert_eq!(by_thread.collect::<Vec<_>>(), [4, 4]);
    let handed_over = |shard: &crate::shard::Shard| shard.handed_over.load(Ordering::Relaxed);
    assert_eq!(role.shared().shards.iter().map(handed_over).sum::<u64>(), 0);
    role.stop();
}
