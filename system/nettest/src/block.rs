//! Adaptive size of the blocks that a sender passes to the kernel. Pure.
//!
//! On one machine the size determines which processor does the work. A multiple of a packet's payload
//! keeps every packet full, and the sender's processor does all of TCP while the receiver's is idle
//! half of the time. 128,000 bytes make every second packet on loopback a small one, which TCP delays
//! while another small one is in flight (Minshall's variant of Nagle's algorithm): the acknowledgement
//! then sends it, on the receiver's processor. On two Zen 5 cores that gave 96 Gb/s against 73, in the
//! other direction 50 against 73: only a trial can tell. Between machines both are alike.

use std::time::Duration;

/// Candidate sizes in bytes; the large one first, since it lets TCP open its windows.
const BLOCK_SIZES: [u64; 2] = [1 << 20, 128_000];
/// Ignored start, while TCP finds its rate.
const START_IGNORED: Duration = Duration::from_millis(50);
/// Duration of one measurement.
const MEASURE_TIME: Duration = Duration::from_millis(50);
/// Time for which the better size is kept before the next measurement.
const KEEP_TIME: Duration = Duration::from_secs(4);

/// Chooses between [`BLOCK_SIZES`] by their last measured rates.
#[derive(Debug)]
pub(crate) struct BlockSize {
    now: usize,
    /// Measured rate of each size in bytes per second.
    rates: [Option<f64>; BLOCK_SIZES.len()],
    phase: ProbePhase,
    since: Duration,
    bytes_before: u64,
    until: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbePhase {
    Start,
    Measure,
    Keep,
}

impl BlockSize {
    /// Starts at `now` of the test's clock.
    pub(crate) const fn new(now: Duration) -> Self {
        let until = now.saturating_add(START_IGNORED);
        let rates = [None; BLOCK_SIZES.len()];
        Self { now: 0, rates, phase: ProbePhase::Start, since: now, bytes_before: 0, until }
    }

    /// Returns the size of the next block, after `bytes` in total were sent.
    pub(crate) fn next(&mut self, bytes: u64, now: Duration) -> u64 {
        if now >= self.until {
            if self.phase != ProbePhase::Start {
                let seconds = now.saturating_sub(self.since).as_secs_f64();
                self.rates[self.now] = Some((bytes - self.bytes_before) as f64 / seconds);
            }
            self.turn();
            let lasts = if self.phase == ProbePhase::Keep { KEEP_TIME } else { MEASURE_TIME };
            (self.since, self.bytes_before, self.until) = (now, bytes, now + lasts);
        }
        BLOCK_SIZES[self.now]
    }

    fn turn(&mut self) {
        let other = 1 - self.now;
        self.phase = match (self.phase, self.rates[self.now], self.rates[other]) {
            (ProbePhase::Start, ..) => ProbePhase::Measure,
            (ProbePhase::Measure, Some(this), Some(that)) => {
                if that > this {
                    self.now = other;
                }
                ProbePhase::Keep
            }
            _ => {
                self.now = other;
                ProbePhase::Measure
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_SIZES, BlockSize};
    use std::time::Duration;

    /// Simulates `seconds` with these rates; returns the bytes sent with each size.
    fn send(rates: [f64; 2], seconds: u64) -> [u64; 2] {
        let mut block = BlockSize::new(Duration::ZERO);
        let (mut now, mut bytes, mut by) = (Duration::ZERO, 0, [0; 2]);
        while now < Duration::from_secs(seconds) {
            let size = block.next(bytes, now);
            let which = usize::from(size != BLOCK_SIZES[0]);
            now += Duration::from_secs_f64(size as f64 / rates[which]);
            bytes += size;
            by[which] += size;
        }
        by
    }

    #[test]
    fn faster_size_carries_most_bytes() {
        let [large, small] = send([9e9, 12e9], 10);
        assert!(large < (large + small) / 20, "{large} {small}");
        let [large, small] = send([9e9, 6e9], 10);
        assert!(small < (large + small) / 20, "{large} {small}");
    }

    #[test]
    fn slow_path_makes_progress() {
        let [large, small] = send([1e6, 1e6], 10);
        assert!(large + small >= 9_000_000, "{large} {small}");
    }
}
