//! Limits and defaults of a session.

use penstock_protocol::digest::Algorithm;

/// Default number of data streams.
pub(crate) const STREAMS_DEFAULT: u16 = 4;

/// Default number of reader threads for each device of the source.
pub(crate) const READERS_DEFAULT: u16 = 2;

/// Default number of writer threads for each device of the destination, which the sending end knows, too.
pub(crate) const WRITERS_DEFAULT: u16 = 8;

/// Smallest pool, in blocks, with which a session makes progress.
pub(crate) const BLOCKS_MIN: u64 = 4;

/// Limit of data streams of one session.
pub const STREAMS_MAX: u16 = 256;

/// Limit of reader or writer threads of one session per device.
pub const THREADS_PER_DEVICE_MAX: u16 = 64;

/// Default memory for blocks of one end: 16 blocks of 4 MiB.
pub(crate) const MEMORY_BYTES: u64 = 64 << 20;

/// Streams that a transfer begins with where no number is named: as many as the host has processors, two to eight; one
/// where the digest needs file order.
#[must_use]
pub fn default_streams(algorithm: Algorithm) -> u16 {
    if !algorithm.combines() {
        return 1;
    }
    u16::try_from(penstock_sys::machine::cores()).unwrap_or(8).clamp(2, 8)
}
