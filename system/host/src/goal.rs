//! Tuning goal: a rate over a round-trip time, and the TCP buffers that it needs.
//!
//! Pure arithmetic; the factors are those of docs/host.md, "Buffers".

use std::time::Duration;

use crate::facts::Facts;
use crate::facts::sysctls::WINDOW_BYTES_MAX;

/// Purpose of the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HostRole {
    /// Moves data for users.
    #[default]
    Dtn,
    /// Network measurement only.
    Test,
}

/// Performance goal of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goal {
    /// Total rate of all streams.
    pub rate_bps: u64,
    /// Round-trip time of the longest path.
    pub rtt: Duration,
    /// TCP connections that carry the rate.
    pub streams: u32,
    /// Purpose of the host.
    pub role: HostRole,
}

/// A buffer is an int in the kernel.
const BUFFER_BYTES_MAX: u64 = (1 << 31) - 1;
/// Minimum recommendation: enough for short paths, and free until used.
const BUFFER_BYTES_MIN: u64 = 64 << 20;
/// Buffers are rounded up to whole MiB for readability.
const STEP_BYTES: u64 = 1 << 20;

/// Assumed rate where no device reports one.
const RATE_BPS_DEFAULT: u64 = 10_000_000_000;

impl Goal {
    /// Creates a goal with the fewest streams that TCP's largest window allows.
    #[must_use]
    pub fn new(rate_bps: u64, rtt: Duration) -> Self {
        let path = Self { rate_bps, rtt, streams: 1, role: HostRole::Dtn };
        let streams = path.flow_bytes().div_ceil(WINDOW_BYTES_MAX).max(1);
        Self { streams: u32::try_from(streams).unwrap_or(u32::MAX), ..path }
    }

    /// Rate of the machine's fastest device; 10 Gb/s where none reports one.
    #[must_use]
    pub fn rate_of(facts: &Facts) -> u64 {
        let fastest = facts.nics.iter().filter_map(|nic| nic.speed_mbps).max();
        fastest.map_or(RATE_BPS_DEFAULT, |mbps| u64::from(mbps) * 1_000_000)
    }

    /// Bandwidth-delay product of one stream in bytes.
    #[must_use]
    pub fn flow_bytes(&self) -> u64 {
        let bits = self.rate_bps as f64 * self.rtt.as_secs_f64();
        (bits / 8.0 / f64::from(self.streams.max(1))) as u64
    }

    /// Maximum for `tcp_wmem`: 1.6 bandwidth-delay products.
    #[must_use]
    pub fn send_bytes(&self) -> u64 {
        self.buffer(1.6)
    }

    /// Maximum for `tcp_rmem`: 2 bandwidth-delay products, since NICs fill their buffers less densely than software.
    #[must_use]
    pub fn receive_bytes(&self) -> u64 {
        self.buffer(2.0)
    }

    fn buffer(&self, factor: f64) -> u64 {
        let bytes = (self.flow_bytes() as f64 * factor) as u64;
        bytes
            .min(BUFFER_BYTES_MAX)
            .next_multiple_of(STEP_BYTES)
            .clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX)
    }

    /// Value for `rmem_max` or `wmem_max`: twice as much, for programs that set their own buffers.
    #[must_use]
    pub fn socket_bytes(of: u64) -> u64 {
        of.saturating_mul(2).min(BUFFER_BYTES_MAX)
    }

    /// Buffers of all streams together, in bytes.
    #[must_use]
    pub fn all_bytes(&self) -> u64 {
        (self.send_bytes() + self.receive_bytes()).saturating_mul(u64::from(self.streams))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_the_fewest_possible() {
        let of = |gbps: u64, ms| Goal::new(gbps * 1_000_000_000, Duration::from_millis(ms));
        assert_eq!(of(20, 50).streams, 1);
        assert_eq!(of(400, 65).streams, 4);
        assert_eq!(of(400, 100).streams, 5, "a bandwidth-delay product of 5 GB");
        assert_eq!(of(0, 100).streams, 1);
        assert_eq!(Goal::new(u64::MAX, Duration::MAX).receive_bytes(), BUFFER_BYTES_MAX);
    }

    #[test]
    fn buffers_follow_the_path() {
        let goal = Goal::new(20_000_000_000, Duration::from_millis(50));
        assert_eq!((goal.send_bytes() >> 20, goal.receive_bytes() >> 20), (191, 239));
        let lan = Goal::new(10_000_000_000, Duration::from_millis(1));
        assert_eq!((lan.send_bytes(), lan.receive_bytes()), (64 << 20, 64 << 20));
        // The reference's published tables give half for 10G at 100 ms: they do not include the kernel's overhead.
        let wan = Goal::new(10_000_000_000, Duration::from_millis(100));
        assert_eq!(wan.receive_bytes() >> 20, 239);
    }
}
