//! How much memory a test may use: plenty when it is alone, little when others run. Pure.
//!
//! A listener is open to anybody, so the sum has a limit: one test that found itself alone has at
//! most [`ALONE_BYTES`] of receive buffers and every other one [`CROWDED_BYTES`]. With the default
//! limit of 16 tests that is 32 MiB and 60 MiB. What is sent is shared likewise.

/// Receive buffers of a test that begins while no other runs.
const ALONE_BYTES: usize = 32 << 20;
/// Receive buffers of a test that begins while others run.
const CROWDED_BYTES: usize = 4 << 20;
/// The most one stream reads at once. Long reads win although the buffer does not fit the second
/// cache: on two Zen 3 cores a copy into 256 KiB took 2.0 us per 64 KiB and into 2 MiB up to 3.2,
/// but the whole receiver 6.9 against 5.8 us, because every return from the kernel hands the socket
/// over and tends to end in a wake-up.
const RECEIVE_BYTES_MAX: usize = 2 << 20;
/// Pieces of memory the streams of a test send from; more streams share them.
const MEMORIES_ALONE: usize = 16;

/// One test's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryShare {
    receive_bytes_all: usize,
    /// Pieces of memory to send from.
    pub(super) memories: usize,
}

impl MemoryShare {
    /// The part of the only test.
    pub(super) const ALONE: Self =
        Self { receive_bytes_all: ALONE_BYTES, memories: MEMORIES_ALONE };
    /// The part of a test beside others.
    pub(super) const CROWDED: Self = Self { receive_bytes_all: CROWDED_BYTES, memories: 1 };

    /// The buffer of each of `receivers` streams, in bytes; whole pages.
    pub(super) fn receive_bytes(self, receivers: usize) -> usize {
        let each = self.receive_bytes_all / receivers.max(1);
        (each & !4095).clamp(4096, RECEIVE_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::params::STREAMS_MAX;
    use super::*;

    #[test]
    fn buffers_shrink_with_the_number_of_streams_and_their_sum_is_bounded() {
        assert_eq!(MemoryShare::ALONE.receive_bytes(1), RECEIVE_BYTES_MAX);
        assert_eq!(MemoryShare::ALONE.receive_bytes(0), RECEIVE_BYTES_MAX);
        for (share, all) in
            [(MemoryShare::ALONE, ALONE_BYTES), (MemoryShare::CROWDED, CROWDED_BYTES)]
        {
            for receivers in 1..=STREAMS_MAX as usize {
                let each = share.receive_bytes(receivers);
                assert!(each * receivers <= all && each >= 16 << 10, "{receivers}: {each}");
                assert_eq!(each % 4096, 0);
            }
        }
    }
}
