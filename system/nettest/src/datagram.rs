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

/// Receiver's account of one stream, by the rules of iperf3 (`iperf_udp_recv`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DatagramAccount {
    /// Highest counter so far.
    pub packets: u64,
    /// Counters that are missing; a late datagram takes one away.
    pub lost: u64,
    /// Datagrams with a counter that is not above the highest.
    pub out_of_order: u64,
    /// Interarrival jitter in seconds (RFC 1889, appendix A.8).
    pub jitter_seconds: f64,
    /// Difference of arrival and sending time of the last datagram, of two clocks.
    transit_seconds: Option<f64>,
}

impl DatagramAccount {
    /// Largest jump of the counter that is counted as loss. A larger one is of a corrupt or foreign
    /// datagram.
    const JUMP_MAX: u64 = 1 << 32;

    /// Counts a datagram; false if its counter is not one of this stream.
    pub fn add(&mut self, header: DatagramHeader, arrived: Duration) -> bool {
        if header.counter == 0 || header.counter.saturating_sub(self.packets) > Self::JUMP_MAX {
            return false;
        }
        if header.counter > self.packets {
            self.lost += header.counter - 1 - self.packets;
            self.packets = header.counter;
        } else {
            self.out_of_order += 1;
            self.lost = self.lost.saturating_sub(1);
        }
        let transit = arrived.as_secs_f64() - header.sent.as_secs_f64();
        // The first datagram initialises the estimate.
        let change = (transit - self.transit_seconds.unwrap_or(transit)).abs();
        self.transit_seconds = Some(transit);
        self.jitter_seconds += (change - self.jitter_seconds) / 16.0;
        true
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
        let account = count(&[1, 1, 1]);
        assert_eq!((account.packets, account.lost, account.out_of_order), (1, 0, 2));
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

        /// A permutation without gaps leaves no loss if each number is seen once.
        #[test]
        fn account_never_exceeds_counters(counters in proptest::collection::vec(1..1000_u64, 0..200)) {
            let account = count(&counters);
            prop_assert!(account.lost <= account.packets);
            prop_assert_eq!(account.packets, counters.iter().copied().max().unwrap_or(0));
        }
    }
}
