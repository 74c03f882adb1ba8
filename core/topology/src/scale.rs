//! The same network with smaller rates, for machines that cannot carry the real ones.

use std::str::FromStr;

use penstock_units::{BitRate, ByteCount};

use crate::Topology;

/// A factor of at most 1, as `1/1000` or `0.001`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale(f64);

/// A text that is no scale.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a scale: write a factor above 0 and up to 1, like 1/1000 or 0.001")]
pub struct ScaleError(String);

impl Scale {
    /// As it is.
    pub const FULL: Self = Self(1.0);

    /// The factor.
    #[must_use]
    pub const fn factor(self) -> f64 {
        self.0
    }

    /// A rate on this scale, at least one bit per second.
    #[must_use]
    pub fn rate(self, rate: BitRate) -> BitRate {
        BitRate(((rate.0 as f64 * self.0).round() as u64).max(1))
    }

    fn bytes(self, bytes: ByteCount) -> ByteCount {
        ByteCount(((bytes.0 as f64 * self.0).round() as u64).max(1))
    }
}

impl FromStr for Scale {
    type Err = ScaleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.trim().parse::<f64>().ok();
        let factor = match text.split_once('/') {
            Some((part, whole)) => {
                number(part).zip(number(whole)).map(|(part, whole)| part / whole)
            }
            None => number(text),
        };
        match factor {
            Some(factor) if factor > 0.0 && factor <= 1.0 => Ok(Self(factor)),
            _ => Err(ScaleError(text.to_owned())),
        }
    }
}

impl Topology {
    /// Rates, queues, marks and buffers times the factor; delays, jitter, losses and packets stay, so that what is
    /// measured in round trips stays too.
    #[must_use]
    pub fn scaled(&self, scale: Scale) -> Self {
        let mut smaller = self.clone();
        for node in &mut smaller.nodes {
            node.buffer = node.buffer.map(|buffer| scale.bytes(buffer));
            for interface in &mut node.interfaces {
                interface.rate = interface.rate.map(|rate| scale.rate(rate));
            }
        }
        for link in &mut smaller.links {
            link.rate = scale.rate(link.rate);
            link.queue = link.queue.map(|queue| scale.bytes(queue));
            link.mark = link.mark.map(|mark| scale.bytes(mark));
        }
        smaller
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_read_and_others_refused() {
        assert_eq!("1/1000".parse(), Ok(Scale(0.001)));
        assert_eq!("0.5".parse(), Ok(Scale(0.5)));
        assert_eq!("1".parse(), Ok(Scale::FULL));
        for bad in ["0", "2", "1/0", "-1", "nan", "x", "", "1/2/3", "0/5"] {
            assert!(bad.parse::<Scale>().is_err(), "{bad}");
        }
        assert_eq!(Scale(0.001).rate(BitRate(400_000_000_000)), BitRate(400_000_000));
        assert_eq!(Scale(0.001).rate(BitRate(1)), BitRate(1));
    }

    #[test]
    fn what_is_counted_in_bytes_scales_and_what_is_counted_in_time_or_packets_stays() {
        let text = r#"
            name = "x"
            switch = [{ name = "a", buffer = "64MB" }, { name = "b" }]
            link = [{ ends = ["a", "b"], rate = "100G", delay = "10ms", jitter = "1ms", loss = 0.01, loss_burst = 3, queue = "32MB", mark = "4MB" }]
        "#;
        let full = Topology::read(text).expect("it is good");
        let small = full.scaled(Scale(0.001));
        let (full, small) = (&full.links[0], (&small.links[0], small.nodes[0].buffer));
        assert_eq!(small.1, Some(ByteCount(64_000)));
        let small = small.0;
        assert_eq!((small.rate, small.queue), (BitRate(100_000_000), Some(ByteCount(32_000))));
        assert_eq!(small.mark, Some(ByteCount(4_000)));
        assert_eq!((small.delay, small.jitter), (full.delay, full.jitter));
        assert!(small.loss == full.loss && small.loss_burst == 3.0);
    }
}
