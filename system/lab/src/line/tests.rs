//! Rates, losses and bursts compared with their formulas; packet order and rate limit for arbitrary traffic.

use proptest::prelude::*;

use super::*;

const MTU_BYTES: u32 = 1500;

fn packet(wire_bytes: u64) -> EmulatedPacket {
    EmulatedPacket { wire_bytes, markable: true }
}

fn arrival(fate: PacketOutcome) -> Duration {
    match fate {
        PacketOutcome::Arrives { at, .. } => at,
        other => panic!("{other:?}"),
    }
}

#[test]
fn packet_takes_serialisation_and_delay() {
    let rate = Some(BitRate(10_000_000));
    let delay = Duration::from_millis(25);
    let mut line = Line::new(Impairment { rate, delay, ..Impairment::default() }, 1, "a");
    // 1250 bytes at 10 Mb/s are a millisecond.
    let first = arrival(line.offer(Duration::from_secs(1), packet(1250)));
    assert_eq!(first, Duration::from_millis(1026));
    let second = arrival(line.offer(Duration::from_secs(1), packet(1250)));
    assert_eq!(second, Duration::from_millis(1027));
}

#[test]
fn full_queue_drops_and_drains() {
    let rate = Some(BitRate(8_000_000));
    let queue = Some(ByteCount(10_000));
    let mark = Some(ByteCount(5_000));
    let mut line = Line::new(Impairment { rate, queue, mark, ..Impairment::default() }, 1, "a");
    let fates: Vec<PacketOutcome> =
        (0..12).map(|_| line.offer(Duration::ZERO, packet(1000))).collect();
    assert_eq!(fates.iter().filter(|fate| **fate == PacketOutcome::Overflow).count(), 2);
    let marked =
        fates.iter().filter(|fate| matches!(fate, PacketOutcome::Arrives { marked: true, .. }));
    assert_eq!(marked.count(), 5);
    assert!(matches!(
        line.offer(Duration::from_millis(1), packet(1000)),
        PacketOutcome::Arrives { .. }
    ));
    // An empty queue accepts a packet of any length.
    let big = line.offer(Duration::from_secs(1), packet(50_000));
    assert!(matches!(big, PacketOutcome::Arrives { marked: false, .. }), "{big:?}");
}

#[test]
fn losses_match_ratio_and_burst() {
    for (loss, loss_burst) in [(0.001, 1.0), (0.02, 1.0), (0.01, 5.0), (0.3, 3.0)] {
        let mut line = Line::new(Impairment { loss, loss_burst, ..Impairment::default() }, 3, "a");
        let count = 1_000_000;
        let lost: Vec<bool> = (0..count)
            .map(|_| line.offer(Duration::ZERO, packet(100)) == PacketOutcome::Lost)
            .collect();
        let all = lost.iter().filter(|lost| **lost).count() as f64;
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        // Bursts multiply the variance by about twice their length; the bound is four standard deviations.
        let expected = loss * f64::from(count);
        let deviation = (expected * (1.0 - loss) * (2.0 * loss_burst - 1.0)).sqrt();
        assert!((all - expected).abs() < 4.0 * deviation, "{loss} {loss_burst}: {all}");
        if loss_burst > 1.0 {
            assert!((all / bursts - loss_burst).abs() < 0.2, "{loss_burst}: {}", all / bursts);
        }
    }
}

#[test]
fn same_seed_loses_same_packets() {
    let impairment = Impairment { loss: 0.1, ..Impairment::default() };
    let lost = |seed, name| -> Vec<bool> {
        let mut line = Line::new(impairment, seed, name);
        (0..1000).map(|_| line.offer(Duration::ZERO, packet(100)) == PacketOutcome::Lost).collect()
    };
    assert_eq!(lost(1, "wan>"), lost(1, "wan>"));
    assert_ne!(lost(1, "wan>"), lost(2, "wan>"));
    assert_ne!(lost(1, "wan>"), lost(1, "wan<"));
}

#[test]
fn cut_link_delivers_nothing() {
    let mut line = Line::new(Impairment { cut: true, ..Impairment::default() }, 1, "a");
    assert_eq!(line.offer(Duration::ZERO, packet(1)), PacketOutcome::Cut);
    line.set(Impairment::default());
    assert_eq!(arrival(line.offer(Duration::ZERO, packet(1))), Duration::ZERO);
}

#[test]
fn super_packet_counts_as_its_segments() {
    // IPv4 20 bytes, TCP 32 bytes; ten segments of 1448 bytes.
    let mut head = vec![0; 64];
    head[0] = 0x45;
    head[1] = 0x02;
    head[9] = 6;
    head[20 + 12] = 8 << 4;
    let whole = EmulatedPacket::of(&head, 52 + 14_480, MTU_BYTES, ETHERNET_BYTES);
    assert_eq!(whole.wire_bytes, 10 * (1500 + ETHERNET_BYTES));
    assert!(whole.markable);
    let single = EmulatedPacket::of(&head, 1500, MTU_BYTES, ETHERNET_BYTES);
    assert_eq!(single.wire_bytes * 10, whole.wire_bytes);
    // IPv6 with the kernel's jumbo option.
    let mut head = vec![0; 96];
    head[0] = 0x60;
    head[40] = 6;
    head[48 + 12] = 8 << 4;
    assert_eq!(header_bytes(&head), Some(80));
    assert!(!EmulatedPacket::of(&head, 100, MTU_BYTES, ETHERNET_BYTES).markable);
}

proptest! {
    #![proptest_config(penstock_testkit::properties())]

    /// For arbitrary packets and times: packets keep their order, arrive no earlier than the propagation delay, and do not
    /// exceed the rate.
    #[test]
    fn order_and_rate_are_kept(
        seed: u64,
        rate in 1_000_000_u64..100_000_000_000,
        delay_us in 0_u64..200_000,
        jitter_us in 0_u64..5_000,
        offers in prop::collection::vec((0_u64..1_000_000, 64_u64..200_000), 1..200),
    ) {
        let jitter = Duration::from_micros(jitter_us.min(delay_us / 10));
        let impairment = Impairment {
            rate: Some(BitRate(rate)),
            delay: Duration::from_micros(delay_us),
            jitter,
            ..Impairment::default()
        };
        let mut line = Line::new(impairment, seed, "p");
        let (mut now, mut last, mut bytes) = (Duration::from_secs(1), Duration::ZERO, 0);
        for (wait_ns, wire_bytes) in offers {
            now += Duration::from_nanos(wait_ns);
            if let PacketOutcome::Arrives { at, .. } = line.offer(now, packet(wire_bytes)) {
                prop_assert!(at >= last);
                if jitter.is_zero() {
                    prop_assert!(at >= now + impairment.delay);
                    bytes += wire_bytes;
                    let since = at - Duration::from_secs(1) - impairment.delay;
                    let carried = bytes as f64 * 8.0;
                    prop_assert!(carried <= since.as_secs_f64() * rate as f64 * 1.000_1 + 800.0);
                }
                last = at;
            }
        }
    }

    #[test]
    fn no_head_panics(head in prop::collection::vec(any::<u8>(), 0..100), bytes: u32, mtu in 68_u32..70_000) {
        let _ = EmulatedPacket::of(&head, bytes, mtu, ETHERNET_BYTES);
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    let good = Impairment { delay: Duration::from_millis(5), ..Impairment::default() };
    assert_eq!(good.check(), Ok(()));
    for (bad, why) in [
        (Impairment { loss: 0.9, loss_burst: 3.0, ..good }, "at most 75.0 %"),
        (Impairment { jitter: Duration::from_millis(6), ..good }, "which is 5.00 ms"),
        (Impairment { queue: Some(ByteCount(0)), ..good }, "room for a packet"),
        (Impairment { mark: Some(ByteCount(0)), ..good }, "at least 1 byte"),
        (
            Impairment { mark: Some(ByteCount(9000)), queue: Some(ByteCount(8000)), ..good },
            "at most the queue",
        ),
    ] {
        let error = bad.check().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
