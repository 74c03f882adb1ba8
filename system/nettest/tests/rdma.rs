//! Tests of RDMA. Those with devices run in the virtual machine of `cargo xtask kernels --room rdma`.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use penstock_nettest::{
    ListenerLimits, NettestError, RdmaParams, RdmaVerb, Report, TestDirection, TestParams,
    TestProgress, TestTarget, run,
};
use penstock_testkit::roce::RocePair;
use penstock_testkit::{Requirement, skip};

mod common;

use common::RunningListener;

/// Four packets of the path MTU: emulated processors take a large part of the round-trip time for larger messages.
const MESSAGE_BYTES: u32 = 16 << 10;

/// A pair of devices, and a listener at the second.
struct RoceTest {
    listener: RunningListener,
    pair: RocePair,
}

impl RoceTest {
    fn new() -> Option<Self> {
        let pair = RocePair::new()?;
        let address = format!("{}:0", RocePair::SECOND_ADDRESS);
        let listener = RunningListener::at(&address, ListenerLimits::default());
        Some(Self { listener, pair })
    }

    fn test(&self, params: &TestParams) -> Result<Report, NettestError> {
        self.test_with(params, &mut |_| {})
    }

    fn test_with(
        &self,
        params: &TestParams,
        on_progress: &mut dyn FnMut(TestProgress<'_>),
    ) -> Result<Report, NettestError> {
        let target = TestTarget {
            host: self.listener.address.to_string(),
            source: RocePair::FIRST_ADDRESS.parse().ok(),
            ..TestTarget::default()
        };
        run(&target, params, &AtomicBool::new(false), on_progress)
    }
}

fn params(verb: RdmaVerb, depth: u32, streams: u32) -> TestParams {
    TestParams {
        streams,
        seconds: Some(4.0),
        block_bytes: Some(MESSAGE_BYTES),
        rdma: Some(RdmaParams { verb, depth }),
        ..TestParams::default()
    }
}

/// Runs the test and compares the rate with queue pairs times depth times size over the round-trip time, as RDMA measured
/// it: on a loaded machine the emulated one is longer than the delay.
#[track_caller]
fn assert_law(test: &RoceTest, round_trip: Duration, params: &TestParams) {
    test.pair.delay(round_trip);
    let report = test.test(params).unwrap_or_else(|error| panic!("{params:?}: {error}"));
    let rdma = report.rdma.as_ref().expect("a test of RDMA");
    let bits = f64::from(params.streams * rdma.depth) * f64::from(rdma.message_bytes) * 8.0;
    assert!(Duration::from_micros(rdma.rtt_min_us.into()) >= round_trip, "{rdma:?}");
    let law = bits / Duration::from_micros(rdma.rtt_us.into()).as_secs_f64();
    let ratio = report.bits_per_second / law;
    println!(
        "law: {} RTT {} ms, {} queue pairs x depth {} x {} KiB: {:.2} MiB/s, law {:.2}, ratio {ratio:.2}, RTT measured {} us, at least {}",
        rdma.verb,
        round_trip.as_millis(),
        rdma.queue_pairs,
        rdma.depth,
        rdma.message_bytes >> 10,
        report.bits_per_second / 8.0 / f64::from(1 << 20),
        law / 8.0 / f64::from(1 << 20),
        rdma.rtt_us,
        rdma.rtt_min_us,
    );
    assert!((0.8..=1.2).contains(&ratio), "{ratio}: {report:#?}");
    assert_eq!(
        (rdma.sender_device.as_str(), rdma.receiver_device.as_str()),
        match params.direction {
            TestDirection::Reverse => ("rxe1", "rxe0"),
            _ => ("rxe0", "rxe1"),
        }
    );
    assert_eq!((rdma.path_mtu, rdma.timeout_exponent), (4096, 17));
}

#[test]
fn writes_follow_depth_law() {
    let Some(test) = RoceTest::new() else { return };
    for (round_trip_ms, depth, streams) in [(87, 1, 1), (87, 8, 1), (87, 4, 2)] {
        let round_trip = Duration::from_millis(round_trip_ms);
        assert_law(&test, round_trip, &params(RdmaVerb::Write, depth, streams));
    }
    let reverse = TestParams { direction: TestDirection::Reverse, ..params(RdmaVerb::Write, 4, 1) };
    assert_law(&test, Duration::from_millis(87), &reverse);
}

#[test]
fn reads_follow_depth_law() {
    let Some(test) = RoceTest::new() else { return };
    for (round_trip_ms, depth, streams) in [(27, 2, 1), (87, 4, 2)] {
        let round_trip = Duration::from_millis(round_trip_ms);
        assert_law(&test, round_trip, &params(RdmaVerb::Read, depth, streams));
    }
}

#[test]
fn byte_limit_sends_exact_bytes() {
    let Some(test) = RoceTest::new() else { return };
    for verb in [RdmaVerb::Write, RdmaVerb::Read] {
        for direction in [TestDirection::Forward, TestDirection::Reverse, TestDirection::Bidir] {
            let bytes = u64::from(MESSAGE_BYTES) * 33 + 7;
            let (seconds, bytes) = (None, Some(bytes));
            let params = TestParams { seconds, bytes, direction, ..params(verb, 16, 2) };
            let report = test.test(&params).unwrap();
            for flow in &report.flows {
                assert_eq!(Some(flow.bytes), bytes, "{verb:?} {direction:?}");
            }
        }
    }
}

#[test]
fn blocked_port_names_firewall() {
    let Some(test) = RoceTest::new() else { return };
    // The neighbours resolve as long as packets pass.
    let seconds = Some(0.5);
    test.test(&TestParams { seconds, ..params(RdmaVerb::Write, 4, 1) }).unwrap();
    test.pair.cut();
    let error = test.test(&params(RdmaVerb::Write, 4, 1)).unwrap_err().to_string();
    println!("{error}");
    assert!(error.contains("UDP port 4791"), "{error}");
}

#[test]
fn dead_path_fails_test() {
    let Some(test) = RoceTest::new() else { return };
    let mut is_cut = false;
    let mut cut = |progress: TestProgress<'_>| {
        if matches!(progress, TestProgress::Interval(_)) && !std::mem::replace(&mut is_cut, true) {
            test.pair.cut();
        }
    };
    let params = TestParams { seconds: Some(60.0), ..params(RdmaVerb::Write, 4, 1) };
    let error = test.test_with(&params, &mut cut).unwrap_err().to_string();
    println!("{error}");
    // The queue pair of either end may fail first.
    assert!(error.contains("retry counter exceeded") || error.contains("Flushed"), "{error}");
}

#[test]
fn address_without_gid_is_refused() {
    let Some(_test) = RoceTest::new() else { return };
    let listener = RunningListener::with(ListenerLimits::default());
    let error = listener.test(&params(RdmaVerb::Write, 4, 1)).unwrap_err();
    println!("{error}");
    assert!(error.to_string().contains("no RoCE v2 GID for 127.0.0.1 on rxe0, rxe1"), "{error}");
}

#[test]
fn missing_device_names_remedy() {
    let devices = Path::new("/sys/class/infiniband");
    if devices.read_dir().is_ok_and(|mut devices| devices.next().is_some()) {
        return skip(Requirement::Machine, "a machine without RDMA devices");
    }
    let listener = RunningListener::with(ListenerLimits::default());
    let error = listener.test(&params(RdmaVerb::Write, 4, 1)).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, NettestError::Rdma(_)), "{text}");
    assert!(text.contains("rdma link add") || text.contains("libibverbs1"), "{text}");
}
