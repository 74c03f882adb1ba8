//! Scales a topology down, for machines that cannot carry the real rates.

use std::str::FromStr;

use penstock_units::{BitRate, ByteCount};

use crate::Topology;

/// A factor above 0 and up to 1, as `1/1000` or `0.001`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale(f64);

/// A text that does not parse as a scale.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a scale: write a factor above 0 and up to 1, like 1/1000 or 0.001")]
pub struct ScaleError(String);

/// A scale at which a link would be slower than 1 kb/s.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this scale makes link '{link}' ({rate}) slower than {RATE_MIN}: {remedy}")]
pub struct TooSmall {
    link: String,
    rate: BitRate,
    remedy: String,
}

/// A slower link needs more than ten seconds for a packet.
const RATE_MIN: BitRate = BitRate(1000);

impl Scale {
    /// The scale that changes nothing.
    pub const FULL: Self = Self(1.0);

    /// The factor, above 0 and up to 1.
    #[must_use]
    pub const fn factor(self) -> f64 {
        self.0
    }

    /// Scales a rate, to at least one bit per second.
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
    /// Checks that each scaled link keeps at least 1 kb/s. The identity scale always passes.
    ///
    /// # Errors
    /// The slowest link, with the least scale that passes.
    pub fn check_scale(&self, scale: Scale) -> Result<(), TooSmall> {
        let slowest = self.links.iter().min_by_key(|link| link.rate);
        match slowest.filter(|link| scale != Scale::FULL && scale.rate(link.rate) < RATE_MIN) {
            Some(link) => {
                let remedy = match link.rate.0 / RATE_MIN.0 {
                    0 | 1 => "leave it out".to_owned(),
                    times => format!("write 1/{times} or more"),
                };
                Err(TooSmall { link: link.name.clone(), rate: link.rate, remedy })
            }
            None => Ok(()),
        }
    }

    /// Multiplies rates, queues, marks and buffers by the factor. Delays, jitter, losses and packet sizes
    /// stay, so that results in round-trip times stay comparable. Call [`Self::check_scale`] first.
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
    fn only_factors_up_to_one_parse() {
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
    fn too_small_scale_is_refused() {
        let read =
            |rest| Topology::read(&format!("name = \"x\"\n{rest}")).expect("the topology is valid");
        let pair = read(
            r#"
            switch = [{ name = "a" }, { name = "b" }]
            link = [{ ends = ["a", "b"], rate = "100G" }, { name = "slow", ends = ["a", "b"], rate = "10M" }]
        "#,
        );
        let check = |scale: &str| pair.check_scale(scale.parse().expect("a scale"));
        assert_eq!(check("1/10000"), Ok(()));
        let error = check("1e-30").expect_err("nothing crosses it").to_string();
        assert_eq!(
            error,
            "this scale makes link 'slow' (10.0 Mb/s) slower than 1.00 kb/s: write 1/10000 or more"
        );
        assert!(check("1/20000").is_err());
        // The identity scale takes any rate.
        let slow = read(
            "switch = [{ name = \"a\" }, { name = \"b\" }]\nlink = [{ ends = [\"a\", \"b\"], rate = 300 }]",
        );
        assert_eq!(slow.check_scale(Scale::FULL), Ok(()));
        assert!(
            slow.check_scale(Scale(0.5))
                .expect_err("slower yet")
                .to_string()
                .ends_with("leave it out")
        );
    }

    #[test]
    fn rates_and_bytes_scale_times_stay() {
        let text = r#"
            name = "x"
            switch = [{ name = "a", buffer = "64MB" }, { name = "b" }]
            link = [{ ends = ["a", "b"], rate = "100G", delay = "10ms", jitter = "1ms", loss = 0.01, loss_burst = 3, queue = "32MB", mark = "4MB" }]
        "#;
        let full = Topology::read(text).expect("the topology is valid");
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
