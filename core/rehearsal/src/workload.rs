//! Synthetic workload of a day: requests by class and pair of sites with a daily cycle, and outages.

use std::time::Duration;

use penstock_random::Random;
use penstock_units::{ByteCount, parse_duration};
use serde::{Deserialize, Deserializer, de};

use crate::controller_api::NewRequest;

/// Seconds of a day.
pub const DAY_S: u32 = 86_400;

/// Most files of a request, the limit of one submission.
const FILES_MAX: u32 = 10_000;

/// Largest mean file size in bytes.
const MEAN_FILE_BYTES_MAX: u64 = 1 << 50;

/// Smallest file in bytes.
const FILE_BYTES_MIN: f64 = 1e6;

/// Workload of a day, as read from TOML.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DayWorkload {
    /// Name that reports show.
    pub name: String,
    /// Mean number of files per day.
    pub files_per_day: f64,
    /// Seed of the random generator; the same seed gives the same requests.
    #[serde(default)]
    pub seed: u64,
    /// Files that fail once, in thousandths.
    #[serde(default)]
    pub faults_permille: u32,
    /// Sites with their shares of the traffic.
    #[serde(rename = "site")]
    pub sites: Vec<SiteShare>,
    /// Kinds of requests, with their classes.
    #[serde(rename = "flow")]
    pub flows: Vec<WorkloadFlow>,
    /// Outages of links and hosts.
    #[serde(default, rename = "failure")]
    pub failures: Vec<Outage>,
}

/// Share of a site in the traffic; only ratios matter.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteShare {
    /// Site name in the topology.
    pub name: String,
    /// Share of the files that it sends.
    pub sends: f64,
    /// Share of the files that it receives.
    pub receives: f64,
}

/// A kind of requests.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadFlow {
    /// Name of the class of work.
    pub class: String,
    /// Share of all files; only ratios matter.
    pub share: f64,
    /// Least and most files of a request; log-uniformly distributed.
    pub files: [u32; 2],
    /// Mean file size; exponentially distributed.
    pub size: ByteCount,
    /// Hour of the day, in UTC, with the highest rate.
    #[serde(default)]
    pub peak_hour: f64,
    /// Amplitude of the daily cycle relative to the mean rate, 0 to 1.
    #[serde(default)]
    pub swing: f64,
}

/// Seconds since the start of the day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeOfDay(pub u32);

impl<'de> Deserialize<'de> for TimeOfDay {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let time = parse_duration(&text).map_err(de::Error::custom)?;
        u32::try_from(time.as_secs()).map(Self).map_err(de::Error::custom)
    }
}

/// An outage of a link or a host.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// Start of the outage.
    pub from: TimeOfDay,
    /// End of the outage.
    pub until: TimeOfDay,
    /// Name of the link, if a link fails.
    pub link: Option<String>,
    /// Name of the host, if a host fails; it loses its state in memory.
    pub host: Option<String>,
}

/// A text that is no workload.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// Not TOML, or an unknown or malformed key.
    #[error("line {line}: {reason}")]
    Syntax {
        /// Line of the text, from 1.
        line: usize,
        /// Reason of the parser.
        reason: String,
    },
    /// Number of files per day out of range.
    #[error("files_per_day is above 0 and at most 10,000,000,000")]
    FilesPerDay,
    /// Share of files with faults out of range.
    #[error("faults_permille is {0}: it is thousandths of all files, from 0 to 1000")]
    Faults(u32),
    /// Too few sites, or shares of sites out of range.
    #[error(
        "[[site]]: give at least two with sends and receives of 0 or more, and one of each above 0"
    )]
    Sites,
    /// A flow with a value out of range.
    #[error("flow {class}: {fault}")]
    Flow {
        /// Class of work of the flow.
        class: String,
        /// Value that is out of range.
        fault: DemandFault,
    },
    /// No flow at all.
    #[error("[[flow]]: give at least one")]
    NoFlow,
    /// A failure without a link or host, with both, or without duration.
    #[error("[[failure]]: give link or host, and an end after its beginning")]
    Failure,
}

/// Value of a flow that is out of range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DemandFault {
    /// Bounds of the number of files of a request.
    #[error("files are [at least, at most], from 1 to {FILES_MAX}")]
    Files,
    /// Share of all files, or relative swing over the day.
    #[error("share is above 0 and swing from 0 to 1")]
    Share,
    /// Hour of the largest rate.
    #[error("peak_hour is {0}: give an hour of the day, from 0 to below 24")]
    PeakHour(f64),
    /// Mean size of a file.
    #[error(
        "size is {}: give the mean size of a file, such as 250MB, up to {}",
        .0,
        ByteCount(MEAN_FILE_BYTES_MAX)
    )]
    Size(ByteCount),
}

impl DayWorkload {
    /// Parses a workload from TOML.
    ///
    /// # Errors
    /// If the text is not a workload, with the line and the fault.
    pub fn read(text: &str) -> Result<Self, WorkloadError> {
        let read: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
            WorkloadError::Syntax { line, reason: error.message().replace('\n', " ") }
        })?;
        read.check().map(|()| read)
    }

    fn check(&self) -> Result<(), WorkloadError> {
        let share = |value: f64| value.is_finite() && value >= 0.0;
        if !(self.files_per_day > 0.0 && self.files_per_day <= 1e10) {
            return Err(WorkloadError::FilesPerDay);
        }
        if self.faults_permille > 1000 {
            return Err(WorkloadError::Faults(self.faults_permille));
        }
        let (sends, receives) = self.sites.iter().fold((0, 0), |(sends, receives), site| {
            (sends + u32::from(site.sends > 0.0), receives + u32::from(site.receives > 0.0))
        });
        if !self.sites.iter().all(|site| share(site.sends) && share(site.receives))
            || sends == 0
            || receives == 0
            || self.sites.len() < 2
        {
            return Err(WorkloadError::Sites);
        }
        for flow in &self.flows {
            let fault = |fault| Err(WorkloadError::Flow { class: flow.class.clone(), fault });
            let [least, most] = flow.files;
            if !(1..=most).contains(&least) || most > FILES_MAX {
                return fault(DemandFault::Files);
            }
            if !(flow.share > 0.0 && share(flow.share) && (0.0..=1.0).contains(&flow.swing)) {
                return fault(DemandFault::Share);
            }
            if !(0.0..24.0).contains(&flow.peak_hour) {
                return fault(DemandFault::PeakHour(flow.peak_hour));
            }
            if !(1..=MEAN_FILE_BYTES_MAX).contains(&flow.size.0) {
                return fault(DemandFault::Size(flow.size));
            }
        }
        if self.flows.is_empty() {
            return Err(WorkloadError::NoFlow);
        }
        for failure in &self.failures {
            if failure.link.is_some() == failure.host.is_some() || failure.from >= failure.until {
                return Err(WorkloadError::Failure);
            }
        }
        Ok(())
    }

    /// Returns the names of links and of hosts that are down at this second.
    #[must_use]
    pub fn down(&self, second: u32) -> (Vec<&str>, Vec<&str>) {
        let now = self.failures.iter().filter(|one| (one.from.0..one.until.0).contains(&second));
        let links = now.clone().filter_map(|one| one.link.as_deref()).collect();
        (links, now.filter_map(|one| one.host.as_deref()).collect())
    }
}

/// Generator of requests, second by second.
#[derive(Debug)]
pub struct RequestArrivals {
    demand: DayWorkload,
    flows: Vec<FlowArrivals>,
    pairs: Pairs,
}

/// Poisson arrivals of one kind of requests.
#[derive(Debug)]
struct FlowArrivals {
    random: Random,
    /// Mean requests per second over the day.
    mean: f64,
    /// Time of the next arrival in seconds.
    next: f64,
}

/// Pairs of sites, each with the cumulative sum of shares.
#[derive(Debug)]
struct Pairs(Vec<(f64, usize, usize)>);

impl Pairs {
    fn new(sites: &[SiteShare]) -> Self {
        let mut sum = 0.0;
        let mut pairs = Vec::new();
        for (from, source) in sites.iter().enumerate() {
            for (to, destination) in sites.iter().enumerate().filter(|(to, _)| *to != from) {
                let share = source.sends * destination.receives;
                if share > 0.0 {
                    sum += share;
                    pairs.push((sum, from, to));
                }
            }
        }
        Self(pairs)
    }

    fn choose(&self, random: &mut Random) -> (usize, usize) {
        let at = random.unit() * self.0.last().map_or(0.0, |last| last.0);
        let found = self.0.partition_point(|(sum, ..)| *sum <= at).min(self.0.len() - 1);
        (self.0[found].1, self.0[found].2)
    }
}

impl WorkloadFlow {
    /// Returns the mean number of files of a request, that of the log-uniform distribution.
    fn mean_files(&self) -> f64 {
        let [least, most] = self.files.map(f64::from);
        if most - least < 0.5 { least } else { (most - least) / (most / least).ln() }
    }

    /// Returns the rate at this second relative to the mean.
    fn shape(&self, second: f64) -> f64 {
        let turn = (second / f64::from(DAY_S) - self.peak_hour / 24.0) * std::f64::consts::TAU;
        1.0 + self.swing * turn.cos()
    }
}

impl RequestArrivals {
    /// Creates a generator that starts at this second of the day.
    #[must_use]
    pub fn new(demand: DayWorkload, begin: u32) -> Self {
        let shares: f64 = demand.flows.iter().map(|flow| flow.share).sum();
        let streams = demand.flows.iter().enumerate().map(|(number, flow)| {
            let files = demand.files_per_day * flow.share / shares;
            let mean = files / flow.mean_files() / f64::from(DAY_S);
            let mut random = Random::stream(demand.seed, "arrivals", number as u64);
            let next = f64::from(begin) + random.exponential(1.0 / mean);
            FlowArrivals { random, mean, next }
        });
        Self { flows: streams.collect(), pairs: Pairs::new(&demand.sites), demand }
    }

    /// Returns the requests that arrive before the end of this second.
    pub fn until(&mut self, second: u32) -> Vec<NewRequest> {
        let mut asked = Vec::new();
        let end = f64::from(second) + 1.0;
        for (stream, flow) in self.flows.iter_mut().zip(&self.demand.flows) {
            let fastest = stream.mean * (1.0 + flow.swing);
            while stream.next < end {
                // Thinning (Lewis and Shedler 1979): keeps the fraction of the peak rate that belongs to this hour.
                let at = stream.next;
                stream.next += stream.random.exponential(1.0 / fastest);
                if stream.random.unit() * (1.0 + flow.swing) > flow.shape(at) {
                    continue;
                }
                let random = &mut stream.random;
                let [least, most] = flow.files.map(f64::from);
                let files = least * (most / least).powf(random.unit());
                let size = |_| random_size(random, flow.size.0 as f64);
                let files: Vec<u64> = (0..files.round() as u32).map(size).collect();
                let (from, to) = self.pairs.choose(&mut stream.random);
                asked.push(NewRequest {
                    class: flow.class.clone(),
                    source: self.demand.sites[from].name.clone(),
                    destination: self.demand.sites[to].name.clone(),
                    files,
                });
            }
        }
        asked
    }
}

fn random_size(random: &mut Random, mean: f64) -> u64 {
    random.exponential(mean).max(FILE_BYTES_MIN.min(mean)) as u64
}

/// Formats a second of the day as `HH:MM`.
#[must_use]
pub fn clock(second: u32) -> String {
    let time = Duration::from_secs(u64::from(second)).as_secs();
    format!("{:02}:{:02}", time / 3600, time / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: &str = r#"
name = "a day"
files_per_day = 1_000_000
seed = 7
site = [{ name = "a", sends = 3, receives = 1 }, { name = "b", sends = 1, receives = 1 }]
flow = [
    { class = "big", share = 3, files = [100, 1000], size = "200MB", peak_hour = 14, swing = 0.5 },
    { class = "small", share = 1, files = [1, 1], size = "10MB" },
]
failure = [{ from = "1h", until = "2h", host = "a1" }, { from = "90m", until = "3h", link = "x" }]
"#;

    #[test]
    fn arrivals_match_configured_rates() {
        let demand = DayWorkload::read(DAY).unwrap();
        let mut arrivals = RequestArrivals::new(demand.clone(), 0);
        let (mut files, mut big, mut at_peak, mut at_night, mut from_a) = (0, 0, 0, 0, 0);
        for second in 0..DAY_S {
            for asked in arrivals.until(second) {
                let count = asked.files.len();
                files += count;
                if asked.class == "big" {
                    big += count;
                    at_peak += if (13..15).contains(&(second / 3600)) { count } else { 0 };
                    at_night += if (1..3).contains(&(second / 3600)) { count } else { 0 };
                }
                from_a += if asked.source == "a" { count } else { 0 };
            }
        }
        let near = |is: usize, wanted: f64| (is as f64 / wanted - 1.0).abs() < 0.05;
        assert!(near(files, 1e6) && near(big, 7.5e5), "{files} {big}");
        assert!(near(from_a, 7.5e5), "{from_a}");
        assert!(at_peak as f64 > 2.0 * at_night as f64, "{at_peak} {at_night}");
        assert_eq!(demand.down(5400), (vec!["x"], vec!["a1"]));
        assert_eq!(demand.down(7200), (vec!["x"], vec![]));
    }

    #[test]
    fn same_seed_same_day() {
        let day = || {
            let mut arrivals = RequestArrivals::new(DayWorkload::read(DAY).unwrap(), 0);
            (0..600).flat_map(|second| arrivals.until(second)).collect::<Vec<_>>()
        };
        assert_eq!(day(), day());
    }

    #[test]
    fn invalid_workload_is_rejected() {
        for (from, to, words) in [
            ("files = [1, 1]", "files = [2, 1]", "at least"),
            ("name = \"a day\"", "name = \"a\"\nnmae = 1", "line 3"),
            ("host = \"a1\"", "host = \"a1\", link = \"y\"", "link or host"),
            ("sends = 3", "sends = -3", "[[site]]"),
            ("peak_hour = 14", "peak_hour = 99", "peak_hour is 99"),
            ("peak_hour = 14", "peak_hour = 24", "below 24"),
            ("peak_hour = 14", "peak_hour = -1", "from 0"),
            ("peak_hour = 14", "peak_hour = nan", "peak_hour"),
            ("\"10MB\"", "\"0\"", "size is 0"),
            ("\"10MB\"", "\"9000PB\"", "size is"),
            ("seed = 7", "faults_permille = 1001", "from 0 to 1000"),
        ] {
            let error = DayWorkload::read(&DAY.replace(from, to)).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
