//! Properties of the controllers for any samples: bounds, repeatability, no growth against a falling rate, no flapping.

use penstock_tuner::peers::{
    AimdController, FalconLikeController, FixedController, FtsLikeController,
};
use penstock_tuner::{
    ChangeReason, KneeController, Parallelism, PipelineStage, QueueShares, TcpDifferences,
    TransferController, TunerSample, TuningLimits,
};
use proptest::prelude::*;

const INTERVAL_US: u64 = 500_000;

fn limits() -> TuningLimits {
    TuningLimits {
        min: Parallelism { readers: 1, streams: 2, writers: 1 },
        max: Parallelism { readers: 8, streams: 24, writers: 6 },
    }
}

fn start() -> Parallelism {
    Parallelism { readers: 2, streams: 4, writers: 2 }
}

fn controllers() -> Vec<Box<dyn TransferController>> {
    vec![
        Box::new(KneeController::new(start(), limits())),
        Box::new(FixedController::new(start())),
        Box::new(FalconLikeController::new(limits())),
        Box::new(FtsLikeController::new(start(), limits())),
        Box::new(AimdController::new(start(), limits())),
    ]
}

fn quiet(bytes: u64, active: Parallelism) -> TunerSample {
    TunerSample {
        interval_us: INTERVAL_US,
        bytes,
        active,
        tcp: TcpDifferences::default(),
        queues: QueueShares::default(),
        sender_cpu: 0.1,
        receiver_cpu: 0.1,
    }
}

prop_compose! {
    fn any_sample()(
        interval_us in 0_u64..10_000_000,
        bytes in prop_oneof![Just(0), Just(u64::MAX), 0_u64..100_000_000_000],
        workers in (0_u16..200, 0_u16..200, 0_u16..200),
        counters in (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()),
        rtts in (proptest::option::of(any::<u32>()), proptest::option::of(any::<u32>())),
        shares in (0.0_f64..1.0, 0.0_f64..1.0, 0.0_f64..1.0),
        cpus in (0.0_f64..1.0, 0.0_f64..1.0),
    ) -> TunerSample {
        TunerSample {
            interval_us,
            bytes,
            active: Parallelism { readers: workers.0, streams: workers.1, writers: workers.2 },
            tcp: TcpDifferences {
                busy_us: Some(counters.0),
                rwnd_limited_us: counters.1,
                sndbuf_limited_us: counters.2 / 8,
                sent_segments: Some(counters.3),
                retransmitted_segments: counters.0 / 1000,
                rtt_us: rtts.0,
                rtt_min_us: rtts.1,
                ..TcpDifferences::default()
            },
            queues: QueueShares {
                source_empty: shares.0,
                destination_full: shares.1,
                rate_limit: shares.2,
            },
            sender_cpu: cpus.0,
            receiver_cpu: cpus.1,
        }
    }
}

fn is_within(target: Parallelism) -> bool {
    PipelineStage::ALL
        .into_iter()
        .all(|stage| (limits().min.at(stage)..=limits().max.at(stage)).contains(&target.at(stage)))
}

proptest! {
    #![proptest_config(penstock_testkit::properties())]

    #[test]
    fn targets_stay_within_limits(samples in proptest::collection::vec(any_sample(), 1..200)) {
        for mut controller in controllers() {
            for sample in &samples {
                let decision = controller.observe(sample);
                prop_assert!(is_within(decision.target), "{}: {decision:?}", controller.name());
                prop_assert!(!decision.reason.to_string().is_empty());
            }
        }
    }

    /// Samples whose streams follow the target reach every state.
    #[test]
    fn obeyed_targets_stay_within_limits(
        rates in proptest::collection::vec(1_u64..1_000_000_000, 1..300),
        sample in any_sample(),
    ) {
        let mut controller = KneeController::new(start(), limits());
        let mut active = start();
        for bytes in rates {
            let decision =
                controller.observe(&TunerSample { bytes, active, interval_us: INTERVAL_US, ..sample });
            prop_assert!(is_within(decision.target));
            active = decision.target;
        }
    }

    #[test]
    fn equal_samples_decide_equally(samples in proptest::collection::vec(any_sample(), 1..100)) {
        for (mut one, mut other) in controllers().into_iter().zip(controllers()) {
            for sample in &samples {
                prop_assert_eq!(one.observe(sample), other.observe(sample));
            }
        }
    }

    #[test]
    fn falling_rate_allows_no_growth(first in 1e6_f64..1e12, kept in 0.5_f64..0.85) {
        let mut controller = KneeController::new(start(), limits());
        let mut rate = first;
        while rate > 1e3 {
            let decision = controller.observe(&quiet(rate as u64, controller.target()));
            prop_assert!(decision.target.streams <= start().streams, "{decision:?}");
            rate *= kept;
        }
    }

    /// A stall delays the search, and changes nothing of its result.
    #[test]
    fn stall_is_no_answer(begin in 0_u32..60, intervals in 1_u32..20, partial in 0.01_f64..1.0) {
        let search = |stall: std::ops::Range<u32>| {
            let mut controller = KneeController::new(start(), limits());
            for interval in 0..140 {
                let before = controller.target();
                let whole = f64::from(before.streams.min(16)) * 8e6;
                let bytes = match () {
                    () if stall.contains(&interval) => 0,
                    () if interval + 1 == stall.start || interval == stall.end => (whole * partial) as u64,
                    () => whole as u64,
                };
                let target = controller.observe(&quiet(bytes, before)).target;
                assert!(bytes > 0 || target.streams <= before.streams, "grows while stalled");
            }
            controller.target().streams
        };
        prop_assert!(search(200..200) >= 16);
        prop_assert!(search(begin..begin + intervals) >= 16);
    }

    /// A rate that no setting moves is left alone but for probes, which return.
    #[test]
    fn flat_rate_is_held(bytes in 1_000_u64..1_000_000_000) {
        let mut controller = KneeController::new(start(), limits());
        let mut probes = 0;
        for interval in 0..400 {
            let sample = quiet(bytes, controller.target());
            let decision = controller.observe(&sample);
            if interval > 30 {
                let streams = decision.target.streams;
                prop_assert!(streams <= start().streams * 2, "{decision:?}");
                probes += u32::from(matches!(decision.reason, ChangeReason::Probing { .. }));
            }
        }
        prop_assert!(probes <= 40, "{probes} probes");
    }
}

#[test]
fn new_limits_bind_at_once() {
    let mut controller = KneeController::new(start(), limits());
    controller.set_limits(TuningLimits { max: Parallelism::streams(2), ..limits() });
    assert_eq!(controller.target().streams, 2);
    let decision = controller.observe(&quiet(1_000_000, controller.target()));
    assert_eq!(decision.target.streams, 2);
}

#[test]
fn bound_processors_stop_growth() {
    let mut controller = KneeController::new(start(), limits());
    for _ in 0..100 {
        let sample = TunerSample { sender_cpu: 0.97, ..quiet(50_000_000, controller.target()) };
        let decision = controller.observe(&sample);
        assert!(decision.target.streams <= start().streams, "{decision:?}");
    }
}

/// Bytes of the next interval, where a path delivers whole parts of a block.
fn next_parts(waiting: &mut u64, arriving: u64) -> u64 {
    const PART_BYTES: u64 = 64 << 10;
    *waiting += arriving;
    let bytes = *waiting / PART_BYTES * PART_BYTES;
    *waiting -= bytes;
    bytes
}

/// Sixteen connections of 100 kb/s each: one part takes longer than an interval at first.
#[test]
fn slow_connections_let_streams_grow() {
    let mut controller = KneeController::new(start(), limits());
    let mut waiting = 0;
    for interval in 0..400 {
        let active = controller.target();
        let bytes = next_parts(&mut waiting, u64::from(active.streams.min(16)) * 6_250);
        let decision = controller.observe(&quiet(bytes, active));
        assert!(
            interval < 8 || !matches!(decision.reason, ChangeReason::Stalled { .. }),
            "{interval}: {decision:?}"
        );
    }
    let streams = controller.target().streams;
    assert!((14..=20).contains(&streams), "{streams}");
}

/// At 100 kb/s a part takes five seconds.
#[test]
fn low_rate_limit_is_no_stall() {
    let mut controller = KneeController::new(start(), limits());
    let mut waiting = 0;
    for interval in 0..400 {
        let bytes = next_parts(&mut waiting, 6_250);
        let rate_limit = if bytes == 0 { 0.95 } else { 0.6 };
        let queues = QueueShares { rate_limit, ..QueueShares::default() };
        let sample = TunerSample { queues, ..quiet(bytes, controller.target()) };
        let decision = controller.observe(&sample);
        assert!(decision.target.streams <= start().streams, "{interval}: {decision:?}");
        assert!(!matches!(decision.reason, ChangeReason::Stalled { .. }), "{interval}");
    }
}

/// Blocks and intervals may beat: every other interval then carries some blocks fewer.
#[test]
fn alternating_rate_lets_streams_grow() {
    for phase in 0..2 {
        let mut controller = KneeController::new(start(), limits());
        for interval in 0..40 {
            let active = controller.target();
            let share = if interval % 2 == phase { 9_460_000 } else { 11_350_000 };
            controller.observe(&quiet(u64::from(active.streams) * share, active));
        }
        assert_eq!(controller.target().streams, limits().max.streams, "phase {phase}");
    }
}

/// Retransmissions for each interval, and whether they are many enough to pace streams.
#[test]
fn few_lost_segments_are_no_reason() {
    for (bytes, lost, is_reason) in
        [(200_000, 4, false), (2_000_000, 8, false), (2_000_000, 60, true)]
    {
        let limits = TuningLimits::streams_up_to(4, start());
        let mut controller = KneeController::new(start(), limits);
        let mut is_paced = false;
        for _ in 0..60 {
            let mut sample = quiet(bytes, controller.target());
            sample.tcp.retransmitted_segments = lost;
            is_paced |= controller.observe(&sample).stream_pacing_bps.is_some();
        }
        assert_eq!(is_paced, is_reason, "{lost} of {bytes} bytes");
    }
}
