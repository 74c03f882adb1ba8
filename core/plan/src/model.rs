//! A checked plan: every reference resolves and every number is within its bounds.

use std::ops::RangeInclusive;
use std::time::Duration;

use penstock_units::{BitRate, ByteCount};

/// Traffic of experiments between sites over several years.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemandPlan {
    /// Identifier in the results, one line.
    pub name: String,
    /// Name in reports and charts.
    pub title: Option<String>,
    /// Source of the figures, such as a publication.
    pub source: Option<String>,
    /// Years of the forecast; the rates of the flows are those of the first.
    pub years: RangeInclusive<u16>,
    /// Traffic models, at least one.
    pub models: Vec<TrafficModel>,
    /// Sites that send and receive data.
    pub sites: Vec<PlanSite>,
    /// Experiments, at least one.
    pub experiments: Vec<ExperimentDemand>,
}

/// A model that derives the capacity that networks need from mean rates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficModel {
    /// Identifier, unique among models.
    pub name: String,
    /// Name in reports and charts.
    pub title: Option<String>,
    /// Factors that multiply all rates; none for the mean rate.
    pub factors: Vec<RateFactor>,
}

/// One factor between mean rate and capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateFactor {
    /// Reason, such as bursts or overprovisioning.
    pub name: String,
    /// Factor in thousandths, so that results are exact integers.
    pub permille: u64,
}

/// A site of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanSite {
    /// Identifier, unique among sites.
    pub name: String,
    /// Name in reports and charts.
    pub title: Option<String>,
    /// Host, switch or site of the topology; none for the one of the same name.
    pub node: Option<String>,
}

/// An experiment with its flows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExperimentDemand {
    /// Identifier, unique among experiments.
    pub name: String,
    /// Name in reports and charts.
    pub title: Option<String>,
    /// Flows, at least one.
    pub flows: Vec<PlannedFlow>,
}

/// Data that one site sends to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedFlow {
    /// Identifier, unique within the experiment.
    pub name: String,
    /// Mean rate in the first year, to all targets together.
    pub rate: BitRate,
    /// Amount of data and time from which the rate was computed, if the file has them.
    pub data: Option<(ByteCount, Duration)>,
    /// Sending site, an index into [`DemandPlan::sites`].
    pub from: usize,
    /// Receiving sites, at least one.
    pub to: Vec<FlowTarget>,
    /// Growth per year in thousandths of the year before.
    pub growth_permille: u64,
}

/// A receiving site and its share of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowTarget {
    /// Index into [`DemandPlan::sites`].
    pub site: usize,
    /// Weight among the targets of the flow.
    pub share: u32,
}

impl DemandPlan {
    /// Applies the yearly growth to a rate of the first year.
    #[must_use]
    pub fn growth(&self, rate: BitRate, permille: u64, year: u16) -> BitRate {
        let years = year.saturating_sub(*self.years.start());
        let next = |rate, _| times(rate, 1000 + permille);
        BitRate((0..years).fold(rate.0, next))
    }
}

impl TrafficModel {
    /// Applies the factors to a mean rate.
    #[must_use]
    pub fn provisioned(&self, rate: BitRate) -> BitRate {
        BitRate(self.factors.iter().fold(rate.0, |rate, factor| times(rate, factor.permille)))
    }
}

impl PlannedFlow {
    /// Splits a rate among the targets by weight, as pairs of site and rate.
    pub fn split(&self, rate: BitRate) -> impl Iterator<Item = (usize, BitRate)> {
        let weights: Vec<u64> = self.to.iter().map(|target| target.share.into()).collect();
        self.to.iter().map(|target| target.site).zip(parts_of(rate, &weights))
    }
}

/// Splits a rate by weight into whole bits, whose sum is the rate.
pub(crate) fn parts_of(rate: BitRate, weights: &[u64]) -> Vec<BitRate> {
    let all: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let (mut weighed, mut given) = (0, 0);
    let part = |weight: &u64| {
        weighed += u128::from(*weight);
        let until = (u128::from(rate.0) * weighed / all.max(1)) as u64;
        BitRate(until - std::mem::replace(&mut given, until))
    };
    weights.iter().map(part).collect()
}

fn times(rate: u64, permille: u64) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(permille) / 1000).unwrap_or(u64::MAX)
}
