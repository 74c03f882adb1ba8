//! Memory budget of a test: large when it runs alone, small beside others. Pure.
//!
//! A listener is open to all clients, so the sum is limited: one test that started alone has at most
//! [`ALONE_BYTES`] of receive buffers and every other one [`CROWDED_BYTES`]. With the default limit of
//! 16 tests that is 32 MiB and 60 MiB. Send memory is shared likewise.

/// Receive buffers of a test that starts while no other runs, in bytes.
const ALONE_BYTES: usize = 32 << 20;
/// Receive buffers of a test that starts while others run, in bytes.
const CROWDED_BYTES: usize = 4 << 20;
/// Limit of one read of a stream. Long reads win although the buffer exceeds the L2 cache: on two Zen 3
/// cores a copy into 256 KiB took 2.0 us per 64 KiB and into 2 MiB up to 3.2, but the whole receiver
/// 6.9 against 5.8 us, because every return from the kernel releases the socket and tends to cause a
/// wake-up.
const RECEIVE_BYTES_MAX: usize = 2 << 20;
/// Memory regions from which the streams of a test send; more streams share them.
const MEMORIES_ALONE: usize = 16;

/// Memory budget of one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryShare {
    receive_bytes_all: usize,
    /// Number of memory regions to send from.
    pub(crate) memories: usize,
}

impl MemoryShare {
    /// Budget of the only test.
    pub(crate) const ALONE: Self =
        Self { receive_bytes_all: ALONE_BYTES, memories: MEMORIES_ALONE };
    /// Budget of a test beside others.
    pub(crate) const CROWDED: Self = Self { receive_bytes_all: CROWDED_BYTES, memories: 1 };

    /// Buffer size of each of `receivers` streams, in bytes; whole pages.
    pub(crate) fn receive_bytes(self, receivers: usize) -> usize {
        let each = self.receive_bytes_all / receivers.max(1);
        (each & !4095).clamp(4096, RECEIVE_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::STREAMS_MAX;

    #[test]
    fn buffer_sum_is_bounded_for_streams() {
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
