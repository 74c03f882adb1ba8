//! A second at its limits from samples to storage, in virtual time: ten thousand keys for an hour,
//! and a full store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use penstock_flows::aggregate::{AggregateLimits, Aggregates, Aggregator, PackedGroup};
use penstock_flows::intake::Intake;
use penstock_flows::observe::Observation;
use penstock_flows::prefixes::Prefixes;
use penstock_flows::rates::Amount;
use penstock_flows::scitag::{ScitagVerdict, Trust};
use penstock_flows::sflow::SflowInterface;
use penstock_scitags::Registry;

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
    let shared = Shared::new(Config::default(), registry, intake, (Vec::new(), Vec::new()), stores);
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
