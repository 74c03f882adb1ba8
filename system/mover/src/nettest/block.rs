//! How much a sender hands to the kernel at once, found by trying while it sends. Pure.
//!
//! On one machine the size decides who does the work. A multiple of what a packet carries keeps every
//! packet full, and the sender's processor does all of TCP while the receiver's waits half of the time.
//! 128,000 bytes make every second packet of loopback a small one, which TCP holds back while another
//! small one is under way (Minshall's form of Nagle's rule): then the acknowledgement sends it, on the
//! receiver's processor. On two Zen 5 cores that was 96 Gb/s against 73, in the other direction 50
//! against 73: nothing short of trying tells. Between machines both are alike.

use std::time::Duration;

/// What is tried, the first one first: the large one lets TCP open its windows.
const SIZES: [u64; 2] = [1 << 20, 128_000];
/// The start, when TCP finds its rate, tells nothing.
const IGNORED: Duration = Duration::from_millis(50);
/// How long one size is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long the better one stays before the other is looked at again.
const KEPT: Duration = Duration::from_secs(4);

/// Chooses between [`SIZES`] by the rate that each gave when it was last looked at.
#[derive(Debug)]
pub(super) struct BlockSize {
    now: usize,
    /// Bytes per second of each.
    rates: [Option<f64>; SIZES.len()],
    phase: Phase,
    since: Duration,
    bytes_before: u64,
    until: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Start,
    Look,
    Keep,
}

impl BlockSize {
    /// Begins at `now` of the test's clock.
    pub(super) const fn new(now: Duration) -> Self {
        let until = now.saturating_add(IGNORED);
        let rates = [None; SIZES.len()];
        Self { now: 0, rates, phase: Phase::Start, since: now, bytes_before: 0, until }
    }

    /// The size of the next block, after `bytes` in all were sent.
    pub(super) fn next(&mut self, bytes: u64, now: Duration) -> u64 {
        if now >= self.until {
            if self.phase != Phase::Start {
                let seconds = now.saturating_sub(self.since).as_secs_f64();
                self.rates[self.now] = Some((bytes - self.bytes_before) as f64 / seconds);
            }
            self.turn();
            let lasts = if self.phase == Phase::Keep { KEPT } else { LOOK };
            (self.since, self.bytes_before, self.until) = (now, bytes, now + lasts);
        }
        SIZES[self.now]
    }

    fn turn(&mut self) {
        let other = 1 - self.now;
        self.phase = match (self.phase, self.rates[self.now], self.rates[other]) {
            (Phase::Start, ..) => Phase::Look,
            (Phase::Look, Some(this), Some(that)) => {
                if that > this {
                    self.now = other;
                }
                Phase::Keep
            }
            _ => {
                self.now = other;
                Phase::Look
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockSize, SIZES};
    use std::time::Duration;

    /// Sends for `seconds` where the sizes carry these rates; says how many bytes went by each.
    fn send(rates: [f64; 2], seconds: u64) -> [u64; 2] {
        let mut block = BlockSize::new(Duration::ZERO);
        let (mut now, mut bytes, mut by) = (Duration::ZERO, 0, [0; 2]);
        while now < Duration::from_secs(seconds) {
            let size = block.next(bytes, now);
            let which = usize::from(size != SIZES[0]);
            now += Duration::from_secs_f64(size as f64 / rates[which]);
            bytes += size;
            by[which] += size;
        }
        by
    }

    #[test]
    fn nearly_all_goes_by_the_faster_size() {
        let [large, small] = send([9e9, 12e9], 10);
        assert!(large < (large + small) / 20, "{large} {small}");
        let [large, small] = send([9e9, 6e9], 10);
        assert!(small < (large + small) / 20, "{large} {small}");
    }

    #[test]
    fn a_slow_path_gets_along() {
        let [large, small] = send([1e6, 1e6], 10);
        assert!(large + small >= 9_000_000, "{large} {small}");
    }
}
