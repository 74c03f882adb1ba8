//! Flow size distributions: points of a cumulative distribution function with linear interpolation.
//!
//! The built-in distributions are those of the HPCC paper's generator (`traffic_gen/`): web search (DCTCP, SIGCOMM
//! 2010), Hadoop (Facebook, SIGCOMM 2015), storage (Alibaba 2019) and remote procedure calls (Google 2008). Other
//! distributions are read from text of the same form.

use penstock_random::Random;

/// Syntax error in a distribution file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct SizeError {
    /// Line of the file, from 1.
    pub line: usize,
    /// Fault of the line.
    pub fault: SizeFault,
}

/// Fault of a line of a distribution file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SizeFault {
    /// Another number of words, or a word that is no number.
    #[error("write bytes and percent, such as '10000 15'")]
    Form,
    /// A number out of range.
    #[error("bytes are 0 to 10^12, percent 0 to 100")]
    Range,
    /// A number below that of the line before.
    #[error("bytes and percent rise from line to line")]
    Order,
    /// A last line with less than 100 percent, or no line.
    #[error("the last line has 100 percent")]
    Incomplete,
}

/// Cumulative distribution of flow sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct SizeDistribution {
    /// Size in bytes and share of flows up to this size, both increasing; the last share is 1.
    points: Vec<(f64, f64)>,
}

const WEB_SEARCH: &str = "0 0\n10000 15\n20000 20\n30000 30\n50000 40\n80000 53\n200000 60\n1000000 70\n2000000 80\n\
    5000000 90\n10000000 97\n30000000 100";
const HADOOP: &str = "0 0\n100 1\n200 2\n300 5\n350 15\n400 20\n500 30\n600 40\n700 50\n1000 60\n2000 67\n7000 70\n\
    30000 72\n50000 82\n80000 87\n120000 90\n300000 95\n1000000 97.5\n2000000 99\n10000000 100";
const STORAGE: &str = "0 0\n4000 22.93\n8000 69.21\n16000 80.61\n32000 90.47\n64000 93.53\n128000 96.77\n\
    256000 97.53\n2000000 100";
/// Thinned: omits points that interpolation reproduces within three percent of the share of larger flows.
const GOOGLE_RPC: &str = "0 0\n3 6.48826\n64 15.5271\n96 28.6139\n158 40.6446\n256 49.7901\n331 62.8365\n402 70.6643\n\
    512 78.4921\n573 80.1695\n843 84.6426\n1229 87.842\n1940 90.6325\n2979 92.517\n5183 94.7265\n\
    6194 95.484\n8957 96.7789\n10835 97.4253\n12674 97.8728\n16384 98.4694\n24121 98.8356\n\
    33250 99.0485\n48106 99.2222\n65536 99.3256\n88695 99.5278\n110247 99.6397\n131072 99.7129\n\
    161109 99.7623\n224152 99.8229\n337042 99.8918\n409266 99.9205\n480336 99.9403\n524288 99.9498\n\
    562492 99.9534\n687784 99.9622\n817919 99.9685\n1079314 99.9766\n1315863 99.9811\n\
    1563315 99.9844\n2073128 99.9887\n2834317 99.9922\n3710020 99.9945\n4300563 99.9955\n\
    5114695 99.9965\n6309051 99.9975\n7143054 99.998\n8231141 99.9985\n9710291 99.999\n\
    11837511 99.9995\n15158197 100";

impl SizeDistribution {
    /// Names of the built-in distributions.
    pub const NAMES: [&'static str; 4] = ["web-search", "hadoop", "storage", "google-rpc"];

    /// Returns a built-in distribution by its name; none if it is unknown.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let text = match name {
            "web-search" => WEB_SEARCH,
            "hadoop" => HADOOP,
            "storage" => STORAGE,
            "google-rpc" => GOOGLE_RPC,
            _ => return None,
        };
        Self::read(text).ok()
    }

    /// Parses lines of size in bytes and cumulative percent.
    ///
    /// # Errors
    /// Reports the first line that is not two increasing numbers, or the last line if it is not 100 percent.
    pub fn read(text: &str) -> Result<Self, SizeError> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let mut last = 1;
        for (number, line) in text.lines().enumerate() {
            let fault = |fault| SizeError { line: number + 1, fault };
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            last = number + 1;
            let numbers: Option<Vec<f64>> =
                line.split_whitespace().map(|word| word.parse().ok()).collect();
            let Some([bytes, percent]) = numbers.as_deref() else {
                return Err(fault(SizeFault::Form));
            };
            if !(0.0..=1e12).contains(bytes) || !(0.0..=100.0).contains(percent) {
                return Err(fault(SizeFault::Range));
            }
            let share = percent / 100.0;
            if points.last().is_some_and(|before| *bytes <= before.0 || share < before.1) {
                return Err(fault(SizeFault::Order));
            }
            points.push((*bytes, share));
        }
        match points.last() {
            Some((_, 1.0)) => {}
            _ => return Err(SizeError { line: last, fault: SizeFault::Incomplete }),
        }
        if points[0].1 > 0.0 {
            // Flows below the first point have its size.
            points.insert(0, (points[0].0, 0.0));
        }
        Ok(Self { points })
    }

    /// Mean size in bytes.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let middle =
            |pair: &[(f64, f64)]| f64::midpoint(pair[0].0, pair[1].0) * (pair[1].1 - pair[0].1);
        self.points.windows(2).map(middle).sum()
    }

    /// Draws a size in bytes, at least 1.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let share = random.unit();
        let at =
            self.points.partition_point(|point| point.1 <= share).clamp(1, self.points.len() - 1);
        let ((low, from), (high, to)) = (self.points[at - 1], self.points[at]);
        let within = if to > from { (share - from) / (to - from) } else { 1.0 };
        ((low + (high - low) * within) as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_match_published_distributions() {
        for (name, mean) in [
            ("web-search", 1_711_250.0),
            ("hadoop", 120_420.75),
            ("storage", 40_869.8),
            ("google-rpc", 2891.6),
        ] {
            let sizes = SizeDistribution::named(name).unwrap();
            let mut random = Random::stream(1, "sizes", 0);
            let drawn = (0..400_000).map(|_| sizes.draw(&mut random) as f64).sum::<f64>() / 4e5;
            assert!((drawn / sizes.mean() - 1.0).abs() < 0.03, "{name}: {drawn} {}", sizes.mean());
            assert!((sizes.mean() / mean - 1.0).abs() < 0.01, "{name}: {}", sizes.mean());
        }
    }

    #[test]
    fn invalid_distribution_names_its_line() {
        for (text, line, fault) in [
            ("", 1, SizeFault::Incomplete),
            ("0 0\n5 x", 2, SizeFault::Form),
            ("0 0\n5 50", 2, SizeFault::Incomplete),
            ("0 0\n5 50\n4 100", 3, SizeFault::Order),
            ("1 2 3", 1, SizeFault::Form),
            ("-1 0", 1, SizeFault::Range),
        ] {
            assert_eq!(SizeDistribution::read(text), Err(SizeError { line, fault }), "{text:?}");
        }
        assert_eq!(SizeDistribution::read("# one size\n1000 100\n").unwrap().mean(), 1000.0);
    }
}
