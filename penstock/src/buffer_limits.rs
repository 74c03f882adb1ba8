//! Rate that this host's socket buffers allow one stream, and advice where a result comes near it.

use std::time::Duration;

use penstock_host::facts::Facts;
use penstock_host::facts::sysctls::Buffers;
use penstock_units::{BitRate, display_latency};

/// Share of the buffers' rate from which a result counts as bound by them.
const BUFFER_BOUND_SHARE: f64 = 0.6;

/// Rate of one stream over a path with this host's largest socket buffers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ceiling {
    pub(crate) bps: u64,
    rtt: Duration,
}

impl Ceiling {
    /// Reads the limits of this host; none if they are unknown.
    pub(crate) fn here(rtt: Duration) -> Option<Self> {
        Self::of(Facts::sysctls().buffers()?, rtt)
    }

    fn of(buffers: Buffers, rtt: Duration) -> Option<Self> {
        Some(Self { bps: buffers.ceiling_bps(rtt)?, rtt })
    }

    /// Advice for a result of this rate and number of streams, if buffers may bind it.
    pub(crate) fn advice(self, bits_per_second: f64, streams: usize) -> Option<String> {
        let each = bits_per_second / streams.max(1) as f64;
        (each >= self.bps as f64 * BUFFER_BOUND_SHARE).then(|| self.line())
    }

    /// Advice for a result that buffers of this host bind.
    pub(crate) fn line(self) -> String {
        format!(
            "buffers as this host has them carry {} at most for each stream over {}: see penstock host check --rtt {}us, \
             or use more streams",
            BitRate(self.bps),
            display_latency(self.rtt),
            self.rtt.as_micros()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_only_when_buffers_bind() {
        let buffers = Buffers { receive_bytes_max: 32 << 20, send_bytes_max: 4 << 20 };
        let ceiling = Ceiling::of(buffers, Duration::from_millis(50)).unwrap();
        let line = ceiling.advice(0.6e9, 1).unwrap();
        assert!(line.contains("617 Mb/s at most for each stream over 50.0 ms"), "{line}");
        assert!(line.contains("--rtt 50000us"), "{line}");
        assert!(ceiling.advice(2.4e9, 4).is_some());
        assert!(ceiling.advice(0.6e9, 4).is_none());
        assert!(Ceiling::of(buffers, Duration::ZERO).is_none());
    }
}
