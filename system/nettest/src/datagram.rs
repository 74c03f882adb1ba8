//! Test datagrams: header, and the receiver's account of loss, order and jitter. Pure.
//!
//! The header is iperf3's: seconds and microseconds of the sender's clock (32 bits each), then a counter
//! from 1 in 32 or 64 bits, big endian (`iperf_udp.c`).

use std::time::Duration;

/// Size of a header with a 64-bit counter, the larger one.
pub const DATAGRAM_HEADER_BYTES_MAX: usize = 16;

/// Width of the counter in a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CounterWidth {
    /// 32 bits.
    #[default]
    Bits32,
    /// 64 bits.
    Bits64,
}

/// Header of a test datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// Time of sending, by the sender's clock.
    pub sent: Duration,
    /// Number of the datagram in its stream, from 1.
    pub counter: u64,
}

impl DatagramHeader {
    /// Writes the header to the start of `datagram`, which is at least
    /// [`DATAGRAM_HEADER_BYTES_MAX`] long.
    pub fn encode(self, width: CounterWidth, datagram: &mut [u8]) {
        datagram[..4].copy_from_slice(&(self.sent.as_secs() as u32).to_be_bytes());
        datagram[4..8].copy_from_slice(&self.sent.subsec_micros().to_be_bytes());
        match width {
            CounterWidth::Bits32 => {
                datagram[8..12].copy_from_slice(&(self.counter as u32).to_be_bytes());
            }
            CounterWidth::Bits64 => {
                datagram[8..16].copy_from_slice(&self.counter.to_be_bytes());
            }
        }
    }

    /// Reads the header of a datagram; `None` if it is too short.
    #[must_use]
    pub fn decode(width: CounterWidth, datagram: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let bytes = datagram.get(at..at + 4)?;
            Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        let (seconds, micros) = (word(0)?, word(4)?);
        let counter = match width {
            CounterWidth::Bits32 => u64::from(word(8)?),
            CounterWidth::Bits64 => u64::from(word(8)?) << 32 | u64::from(word(12)?),
        };
        let sent = Duration::from_secs(seconds.into()) + Duration::from_micros(micros.into());
        Some(Self { sent, counter })
    }
}

/// Receiver's account of one stream, by the rules of iperf3 (`iperf_udp_recv`), which takes a duplicate for
/// a late datagram, though: it is counted apart here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DatagramAccount {
    /// Highest counter so far.
    pub packets: u64,
    /// Counters that are missing; a late datagram takes one away.
    pub lost: u64,
    /// Datagrams that arrived after a later one.
    pub out_of_order: u64,
    /// Datagrams that arrived once more.
    pub duplicates: u64,
    /// Interarrival jitter in seconds (RFC 1889, appendix A.8).
    pub jitter_seconds: f64,
    /// Difference of arrival and sending time of the last datagram, of two clocks.
    transit_seconds: Option<f64>,
    window: SeenWindow,
}

/// Counters among the last [`SEEN_WINDOW`] that have arrived, as a ring of bits (RFC 6479).
#[derive(Clone, Debug, PartialEq)]
struct SeenWindow(Box<[u64]>);

/// Size of the window in datagrams: a later one counts as lost. 40 ms at 20 Gb/s and 1,500 bytes.
const SEEN_WINDOW: u64 = 1 << 16;

impl Default for SeenWindow {
    fn default() -> Self {
        Self(vec![0; SEEN_WINDOW as usize / 64].into())
    }
}

impl SeenWindow {
    /// Moves the window from the highest counter `from` to `to`, which has arrived.
    fn advance(&mut self, from: u64, to: u64) {
        if to - from >= SEEN_WINDOW {
            self.0.fill(0);
        } else {
            (from + 1..to).for_each(|counter| self.set(counter, false));
        }
        self.set(to, true);
    }

    fn set(&mut self, counter: u64, seen: bool) {
        let bit = counter % SEEN_WINDOW;
        let word = &mut self.0[(bit / 64) as usize];
        *word = *word & !(1 << (bit % 64)) | u64::from(seen) << (bit % 64);
    }

    fn has(&self, counter: u64) -> bool {
        let bit = counter % SEEN_WINDOW;
        self.0[(bit / 64) as usize] >> (bit % 64) & 1 == 1
    }
}

impl DatagramAccount {
    /// Largest jump of the counter that is counted as loss. A larger one is of a corrupt or foreign
    /// datagram.
    const JUMP_MAX: u64 = 1 << 32;

    /// Counts a datagram; false if it is a duplicate, too late, or not of this stream.
    pub fn add(&mut self, header: DatagramHeader, arrived: Duration) -> bool {
        if header.counter == 0 || header.counter.saturating_sub(self.packets) > Self::JUMP_MAX {
            return false;
        }
        if header.counter > self.packets {
            self.lost += header.counter - 1 - self.packets;
            self.window.advance(self.packets, header.counter);
            self.packets = header.counter;
        } else if self.packets - header.counter >= SEEN_WINDOW {
            return false;
        } else if self.window.has(header.counter) {
            self.duplicates += 1;
            return false;
        } else {
            self.window.set(header.counter, true);
            self.out_of_order += 1;
            self.lost -= 1;
        }
        let transit = arrived.as_secs_f64() - header.sent.as_secs_f64();
        // The first datagram initialises the estimate.
        let change = (transit - self.transit_seconds.unwrap_or(transit)).abs();
        self.transit_seconds = Some(transit);
        self.jitter_seconds += (change - self.jitter_seconds) / 16.0;
        true
    }
}

/// Size of a [`StreamHello`].
pub const STREAM_HELLO_BYTES: usize = 28;
const STREAM_HELLO_MAGIC: [u8; 8] = *b"PENSTUDP";

/// First datagram of a stream between two Penstock ends, repeated until the control connection starts the
/// test. It gets no answer, so a forged source address gets none either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHello {
    /// Identifier of the test, which the listener has sent.
    pub test_id: [u8; 16],
    /// Number of the stream, from 0.
    pub index: u32,
}

impl StreamHello {
    /// Encodes the hello: magic, test id, stream (big endian).
    #[must_use]
    pub fn encode(self) -> [u8; STREAM_HELLO_BYTES] {
        let mut bytes = [0; STREAM_HELLO_BYTES];
        bytes[..8].copy_from_slice(&STREAM_HELLO_MAGIC);
        bytes[8..24].copy_from_slice(&self.test_id);
        bytes[24..].copy_from_slice(&self.index.to_be_bytes());
        bytes
    }

    /// Decodes a datagram; `None` if it is no hello.
    #[must_use]
    pub fn decode(datagram: &[u8]) -> Option<Self> {
        let bytes: &[u8; STREAM_HELLO_BYTES] = datagram.try_into().ok()?;
        let (magic, rest) = bytes.split_first_chunk()?;
        let (test_id, index) = rest.split_first_chunk()?;
        let index = u32::from_be_bytes(index.try_into().ok()?);
        (*magic == STREAM_HELLO_MAGIC).then_some(Self { test_id: *test_id, index })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn count(counters: &[u64]) -> DatagramAccount {
        let mut account = DatagramAccount::default();
        for &counter in counters {
            account.add(DatagramHeader { sent: Duration::ZERO, counter }, Duration::ZERO);
        }
        account
    }

    #[test]
    fn captured_header_is_decoded() {
        let bytes = [0, 0, 0x0c, 0x36, 0, 7, 0xf3, 0x3b, 0, 0, 0, 1];
        let header = DatagramHeader::decode(CounterWidth::Bits32, &bytes).unwrap();
        assert_eq!(header.counter, 1);
        assert_eq!(header.sent, Duration::new(3126, 521_019_000));
        assert_eq!(DatagramHeader::decode(CounterWidth::Bits64, &bytes), None);
    }

    #[test]
    fn late_datagram_takes_loss_back() {
        let account = count(&[1, 2, 5, 3, 6]);
        assert_eq!((account.packets, account.lost, account.out_of_order), (6, 1, 1));
    }

    #[test]
    fn duplicates_do_not_hide_loss() {
        let account = count(&[1, 1, 1, 3, 3, 3]);
        assert_eq!((account.packets, account.lost, account.out_of_order), (3, 1, 0));
        assert_eq!(account.duplicates, 4);
        // A late datagram beyond the window stays lost.
        let account = count(&[1, SEEN_WINDOW + 3, 2, 3, 4]);
        assert_eq!((account.lost, account.out_of_order), (SEEN_WINDOW, 1));
    }

    #[test]
    fn absurd_counters_are_not_loss() {
        let account = count(&[1, u64::MAX, 0, 2]);
        assert_eq!((account.packets, account.lost, account.out_of_order), (2, 0, 0));
    }

    /// Arrivals that alternate between 0 and 1 ms late have a mean deviation of 1 ms.
    #[test]
    fn jitter_approaches_mean_deviation() {
        let mut account = DatagramAccount::default();
        for n in 1..=200 {
            let sent = Duration::from_millis(10 * n);
            let arrived = sent + Duration::from_millis(n % 2);
            account.add(DatagramHeader { sent, counter: n }, arrived);
        }
        assert!((account.jitter_seconds - 0.001).abs() < 1e-5, "{account:?}");
    }

    #[test]
    fn hello_needs_magic_and_size() {
        let hello = StreamHello { test_id: [7; 16], index: 9 };
        let bytes = hello.encode();
        assert_eq!(StreamHello::decode(&bytes), Some(hello));
        assert_eq!(StreamHello::decode(&bytes[..27]), None);
        assert_eq!(StreamHello::decode(&[&bytes[..], &[0]].concat()), None);
        assert_eq!(StreamHello::decode(&[b'x'; STREAM_HELLO_BYTES]), None);
    }

    proptest! {
        #[test]
        fn headers_round_trip(seconds: u32, micros in 0..1_000_000_u32, counter: u64, wide: bool) {
            let width = if wide { CounterWidth::Bits64 } else { CounterWidth::Bits32 };
            let counter = if wide { counter } else { counter & 0xffff_ffff };
            let header =
                DatagramHeader { sent: Duration::new(seconds.into(), micros * 1000), counter };
            let mut bytes = [0; DATAGRAM_HEADER_BYTES_MAX];
            header.encode(width, &mut bytes);
            prop_assert_eq!(DatagramHeader::decode(width, &bytes), Some(header));
        }

        /// Each counter is either received or lost, and each surplus arrival is a duplicate.
        #[test]
        fn account_matches_set_of_counters(counters in proptest::collection::vec(1..1000_u64, 0..200)) {
            let account = count(&counters);
            let seen: std::collections::BTreeSet<u64> = counters.iter().copied().collect();
            prop_assert_eq!(account.packets, counters.iter().copied().max().unwrap_or(0));
            prop_assert_eq!(account.packets - account.lost, seen.len() as u64);
            prop_assert_eq!(account.duplicates, (counters.len() - seen.len()) as u64);
        }
    }
}
