//! Parameters of a connection from the path: depth, timer, path MTU, signalling. Pure.

use std::time::Duration;

/// Retransmissions before a queue pair fails. Software RoCE takes 7 for no limit.
pub const RETRIES_MAX: u8 = 6;
/// Unit of the retransmission timer: the timer is this times 2 to the power of the exponent (InfiniBand 9.7.6.1.3).
const TIMER_UNIT: Duration = Duration::from_nanos(4096);
/// Least exponent, 0.54 s: a shorter timer resends on long paths although nothing was lost.
pub const TIMEOUT_EXPONENT_MIN: u8 = 17;
/// Largest exponent of the field.
const TIMEOUT_EXPONENT_MAX: u8 = 31;
/// Round-trip times that the timer lasts at least: the device takes up to four times as long, never less.
const TIMER_ROUND_TRIPS: u32 = 5;
/// Path MTUs of RoCE, in bytes.
const PATH_MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];
/// Bytes of headers in a packet of the IP MTU beside its payload: IPv6, UDP, BTH, RETH, immediate value, ICRC.
const HEADER_BYTES: u32 = 40 + 8 + 12 + 16 + 4 + 4;
/// Most requests for one completion.
const SIGNAL_INTERVAL_MAX: u32 = 64;
/// Entries of a completion queue beside one for each request: flushed requests must not overflow it.
const COMPLETIONS_SPARE: u32 = 16;

/// Messages in flight that fill a path: bandwidth times round-trip time over the message size, rounded up, and one that
/// is being posted.
#[must_use]
pub fn depth_for(rate_bps: u64, round_trip: Duration, message_bytes: u32) -> u32 {
    let in_flight_bytes = rate_bps as f64 / 8.0 * round_trip.as_secs_f64();
    let messages = (in_flight_bytes / f64::from(message_bytes.max(1))).ceil();
    (messages as u32).saturating_add(1)
}

/// Rate limit of `depth` messages of a size in flight, in bits per second: depth times size over round-trip time.
#[must_use]
pub fn rate_limit_bps(depth: u32, message_bytes: u32, round_trip: Duration) -> f64 {
    f64::from(depth) * f64::from(message_bytes) * 8.0 / round_trip.as_secs_f64().max(1e-9)
}

/// Least exponent of the retransmission timer that lasts five round-trip times, and at least 17 (0.54 s).
#[must_use]
pub fn timeout_exponent(round_trip: Duration) -> u8 {
    (TIMEOUT_EXPONENT_MIN..TIMEOUT_EXPONENT_MAX)
        .find(|exponent| timer(*exponent) >= round_trip.saturating_mul(TIMER_ROUND_TRIPS))
        .unwrap_or(TIMEOUT_EXPONENT_MAX)
}

/// Time until a queue pair without an answer fails: at least this, up to four times as long on hardware.
#[must_use]
pub fn failure_time(timeout_exponent: u8, retries: u8) -> Duration {
    timer(timeout_exponent).saturating_mul(u32::from(retries) + 1)
}

/// Time in which a working queue pair completes a request, or fails: the longest time to failure on hardware, and some.
#[must_use]
pub fn answer_timeout(timeout_exponent: u8, retries: u8) -> Duration {
    failure_time(timeout_exponent, retries).saturating_mul(4) + Duration::from_secs(1)
}

fn timer(exponent: u8) -> Duration {
    TIMER_UNIT.saturating_mul(1 << exponent.min(TIMEOUT_EXPONENT_MAX))
}

/// Path MTU: the least of both ends' and the largest that fits the IP MTU of the path, if that is known. RoCE discovers
/// none, and a hop with less drops every full packet.
#[must_use]
pub fn path_mtu(own: u32, peer: u32, ip_mtu: Option<u32>) -> u32 {
    let payload = ip_mtu.map_or(u32::MAX, |mtu| mtu.saturating_sub(HEADER_BYTES));
    let limit = own.min(peer).min(payload);
    PATH_MTUS.into_iter().rev().find(|mtu| *mtu <= limit).unwrap_or(PATH_MTUS[0])
}

/// Requests for one completion: a quarter of the depth at most, so that the queue never runs empty.
#[must_use]
pub fn signal_interval(depth: u32) -> u32 {
    (depth / 4).clamp(1, SIGNAL_INTERVAL_MAX)
}

/// Entries of a completion queue for queues of these lengths.
#[must_use]
pub const fn completion_entries(sends: u32, receives: u32) -> u32 {
    sends.saturating_add(receives).saturating_add(COMPLETIONS_SPARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB_BYTES: u32 = 1 << 20;

    fn millis(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn depth_covers_bandwidth_delay_product() {
        // 200 Gb/s at 108 ms: 2575 messages of 1 MiB.
        assert_eq!(depth_for(200_000_000_000, millis(108), MIB_BYTES), 2576);
        assert_eq!(depth_for(100_000_000_000, millis(27), MIB_BYTES), 323);
        assert_eq!(depth_for(1, Duration::ZERO, MIB_BYTES), 1);
        assert_eq!(depth_for(u64::MAX, millis(1000), 1), u32::MAX);
    }

    #[test]
    fn rate_limit_follows_depth() {
        let limit = rate_limit_bps(8, 64 << 10, millis(87));
        assert!((limit / 8.0 / f64::from(MIB_BYTES) - 5.747).abs() < 0.001, "{limit}");
        let depth = depth_for(10_000_000_000, millis(87), MIB_BYTES);
        assert!(rate_limit_bps(depth, MIB_BYTES, millis(87)) >= 10_000_000_000.0);
    }

    #[test]
    fn timer_lasts_five_round_trips() {
        for (ms, exponent) in
            [(0, 17), (27, 17), (87, 17), (100, 17), (108, 18), (200, 18), (300, 19)]
        {
            assert_eq!(timeout_exponent(millis(ms)), exponent, "{ms} ms");
        }
        assert_eq!(timeout_exponent(Duration::MAX), 31);
        let failure = failure_time(17, RETRIES_MAX);
        assert!((3.7..3.8).contains(&failure.as_secs_f64()), "{failure:?}");
    }

    #[test]
    fn path_mtu_fits_both_ends() {
        assert_eq!(path_mtu(4096, 4096, Some(9000)), 4096);
        assert_eq!(path_mtu(4096, 1024, Some(9000)), 1024);
        assert_eq!(path_mtu(4096, 4096, Some(1500)), 1024);
        assert_eq!(path_mtu(4096, 4096, None), 4096);
        assert_eq!(path_mtu(4096, 4096, Some(0)), 256);
    }

    #[test]
    fn signals_leave_queue_filled() {
        assert_eq!([1, 4, 8, 128, 4096].map(signal_interval), [1, 1, 2, 32, 64]);
        assert_eq!(completion_entries(128, 64), 208);
        assert_eq!(completion_entries(u32::MAX, 1), u32::MAX);
    }
}
