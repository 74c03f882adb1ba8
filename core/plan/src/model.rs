//! A plan that was read and checked.

use std::ops::RangeInclusive;
use std::time::Duration;

use penstock_units::{BitRate, ByteCount};

/// What is planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// A short name.
    pub name: String,
    /// A longer one.
    pub title: Option<String>,
    /// Where its figures come from.
    pub source: Option<String>,
    /// From the year of the figures on.
    pub years: RangeInclusive<u16>,
    /// At least one.
    pub models: Vec<Model>,
    /// Where data comes from and goes to.
    pub sites: Vec<Site>,
    /// Who moves it.
    pub experiments: Vec<Experiment>,
}

/// A way to turn what is moved into what networks must carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// For people.
    pub title: Option<String>,
    /// What all rates are multiplied with.
    pub factors: Vec<Factor>,
}

/// One reason for more than the mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Factor {
    /// What for: bursts, overprovisioning.
    pub name: String,
    /// In thousandths, so that there is no rounding to argue about.
    pub permille: u64,
}

/// A place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Its name.
    pub name: String,
    /// For people.
    pub title: Option<String>,
    /// The host or switch of a topology that it is behind; none for one of its own name.
    pub node: Option<String>,
}

/// Who moves data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Experiment {
    /// Its name.
    pub name: String,
    /// For people.
    pub title: Option<String>,
    /// What it moves.
    pub flows: Vec<Flow>,
}

/// A stream of data from one site to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Its name.
    pub name: String,
    /// The mean rate in the first year, to all sites together.
    pub rate: BitRate,
    /// Where that is worked out: so much data within a time.
    pub data: Option<(ByteCount, Duration)>,
    /// Index of the site.
    pub from: usize,
    /// At least one.
    pub to: Vec<Target>,
    /// By the year, in thousandths of the year before.
    pub growth_permille: u64,
}

/// Who gets a part of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Index of the site.
    pub site: usize,
    /// Against the others.
    pub share: u32,
}

impl Plan {
    /// A rate of the first year in another one.
    #[must_use]
    pub fn growth(&self, rate: BitRate, permille: u64, year: u16) -> BitRate {
        let years = year.saturating_sub(*self.years.start());
        let next = |rate, _| times(rate, 1000 + permille);
        BitRate((0..years).fold(rate.0, next))
    }
}

impl Model {
    /// The mean rate as networks must have it.
    #[must_use]
    pub fn provisioned(&self, rate: BitRate) -> BitRate {
        BitRate(self.factors.iter().fold(rate.0, |rate, factor| times(rate, factor.permille)))
    }
}

impl Flow {
    /// What of a rate goes to each target.
    pub fn split(&self, rate: BitRate) -> impl Iterator<Item = (usize, BitRate)> {
        let all: u64 = self.to.iter().map(|target| u64::from(target.share)).sum();
        self.to.iter().map(move |target| {
            let part = u128::from(rate.0) * u128::from(target.share) / u128::from(all.max(1));
            (target.site, BitRate(part as u64))
        })
    }
}

fn times(rate: u64, permille: u64) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(permille) / 1000).unwrap_or(u64::MAX)
}
