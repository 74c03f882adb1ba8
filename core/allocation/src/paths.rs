//! Division of a demand's weight over its paths, in proportion to their rates of the pass before.
//!
//! Weight is also shifted between paths, where that helps a poorer demand more than it harms this one.

use std::ops::Range;

use crate::fill::FlowRates;
use crate::network::{FlowNetwork, FlowStop, grains};
use crate::problem::PATHS_MAX;
use crate::weights::Ratio;

/// Smallest fraction of its demand that a path keeps while passes last, as one over this.
const PATH_FRACTION_MIN_DENOMINATOR: u128 = 1024;
/// Bounds of what a path keeps of its fraction in a pass, in 256ths.
const KEPT_MIN: u32 = 64;
const KEPT_MAX: u32 = 256;

/// Bits of a fraction of a demand's weight where a rounded one suffices.
const FRACTION_BITS: u32 = 40;
/// A whole weight in such fractions.
const FRACTION_UNITS: f64 = (1_u64 << FRACTION_BITS) as f64;

/// Extent to which a pass shifts weight to the paths of a demand where it displaces richer demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightShift {
    /// Weight only follows rates.
    None,
    /// A path keeps the square of the ratio of the levels, for a fast start.
    Square,
    /// A path keeps the ratio of the levels.
    Ratio,
    /// The mean of the former fraction and that by ratio, so that fractions settle.
    Halfway,
}

/// Fraction of its demand's weight for each flow.
#[derive(Debug, Clone, Default)]
pub(crate) struct PathFractions {
    /// Numerators, below 2^67; 0 for a path that was given up.
    over: Vec<u128>,
    /// Denominator of each demand's flows: the sum of their numerators.
    under: Vec<u128>,
}

impl PathFractions {
    /// Divides each demand's weight evenly.
    pub(crate) fn even(network: &FlowNetwork) -> Self {
        let paths = |demand| network.flows_of_demand(demand).len() as u128;
        Self {
            over: vec![1; network.flows()],
            under: (0..network.demands.len()).map(paths).collect(),
        }
    }

    /// Adds a demand with what [`Self::of`] returned; one whose paths are to be divided anew gets back those given up.
    pub(crate) fn add(&mut self, of: impl Iterator<Item = u128>, revives: bool) {
        let first = self.over.len();
        self.over.extend(of);
        let of = &mut self.over[first..];
        if revives {
            let least = of.iter().sum::<u128>() / PATH_FRACTION_MIN_DENOMINATOR;
            of.iter_mut().for_each(|over| *over = (*over).max(least).max(1));
        }
        self.under.push(of.iter().sum::<u128>().max(1));
    }

    /// Returns the numerators of a demand.
    pub(crate) fn of(&self, flows: Range<usize>) -> &[u128] {
        &self.over[flows]
    }

    /// Divides a weight of each demand over its flows. Each flow gets at least 1, and 0 if its path was given up or its
    /// demand has no weight.
    pub(crate) fn divide(&self, network: &FlowNetwork, weights: &[u64], parts: &mut Vec<u64>) {
        parts.clear();
        for (demand, whole) in weights.iter().enumerate() {
            let of = &self.over[network.flows_of_demand(demand)];
            if *whole == 0 {
                parts.extend(std::iter::repeat_n(0, of.len()));
            } else if let [1] = of {
                parts.push(*whole);
            } else if !of.is_empty() {
                let ratio = Ratio::new(*whole, self.under[demand]);
                let part = |over: &u128| if *over == 0 { 0 } else { ratio.times(*over).max(1) };
                parts.extend(of.iter().map(part));
            }
        }
    }

    /// Sets fractions in proportion to rates, shifted by the levels of demands with these weights; if `divides` is given,
    /// only those of demands for which it is true.
    pub(crate) fn rebalance(
        &mut self,
        network: &FlowNetwork,
        rates: &FlowRates,
        weights: &[u64],
        shift: WeightShift,
        divides: Option<&[bool]>,
    ) {
        let levels = (shift != WeightShift::None).then(|| lowest_levels(network, rates, weights));
        let mut kept = [KEPT_MAX; PATHS_MAX];
        let mut paths = Vec::new();
        for demand in 0..network.demands.len() {
            let of = network.flows_of_demand(demand);
            let total: u128 = rates.grains[of.clone()].iter().sum();
            if of.len() < 2 || total == 0 || divides.is_some_and(|divides| !divides[demand]) {
                continue;
            }
            let kept = &mut kept[..of.len()];
            if let Some(levels) = &levels {
                find_kept(&mut paths, network, rates, levels, of.clone(), kept);
            }
            let least = total / PATH_FRACTION_MIN_DENOMINATOR;
            let inverse = FRACTION_UNITS / to_float(self.under[demand]);
            let mut under = 0;
            for (flow, kept) in of.zip(kept) {
                let keep = |over: u128| over * u128::from(*kept) / u128::from(KEPT_MAX);
                let mut over = keep(rates.grains[flow]);
                match shift {
                    WeightShift::None | WeightShift::Ratio => {}
                    WeightShift::Square => over = keep(over),
                    WeightShift::Halfway => {
                        let before = u128::from((to_float(self.over[flow]) * inverse) as u64);
                        over = (over + ((total * before) >> FRACTION_BITS)) / 2;
                    }
                }
                // Above zero, as others may leave the path later.
                self.over[flow] = over.max(least);
                under += self.over[flow];
            }
            self.under[demand] = under.max(1);
        }
    }

    /// Gives up paths with under 1/20 of their demand's rate that lost 1/100 of it in the last pass (they converge to
    /// zero as 1/passes), and paths with a negligible rate. True if there were any.
    pub(crate) fn give_up(
        &mut self,
        network: &FlowNetwork,
        rates: &FlowRates,
        weights: &[u64],
    ) -> bool {
        let before = self.clone();
        self.rebalance(network, rates, weights, WeightShift::Halfway, None);
        let mut gave_up = false;
        // They resolve 1/100 of 1/100.
        let share = |over: u128, under: u128| (over << FRACTION_BITS) / under;
        for demand in 0..network.demands.len() {
            let (under, under_before) = (self.under[demand], before.under[demand]);
            for flow in network.flows_of_demand(demand) {
                let over = self.over[flow];
                let falls =
                    || share(over, under) * 100 <= share(before.over[flow], under_before) * 99;
                if over * PATH_FRACTION_MIN_DENOMINATOR / 4 < under || over * 20 < under && falls()
                {
                    self.under[demand] -= over;
                    self.over[flow] = 0;
                    gave_up = true;
                }
            }
        }
        gave_up
    }
}

/// Resources of a path, and the one with the lowest level.
#[derive(Debug, Clone, Copy)]
struct ComparedPath<'a> {
    resources: &'a [u32],
    /// A bit for each of its resources, which other resources may have, too.
    resource_bits: u64,
    lowest: u32,
    lowest_level: f64,
}

impl<'a> ComparedPath<'a> {
    fn new(resources: &'a [u32], level: impl Fn(u32) -> f64) -> Self {
        let (lowest, lowest_level) = (u32::MAX, f64::INFINITY);
        let mut path = Self { resources, resource_bits: 0, lowest, lowest_level };
        for resource in resources {
            path.resource_bits |= 1 << (resource % u64::BITS);
            let level = level(*resource);
            if level < path.lowest_level {
                (path.lowest, path.lowest_level) = (*resource, level);
            }
        }
        path
    }

    /// Returns the lowest level of a demand that waits for room on the resources of this path, but not of the other.
    #[inline]
    fn lowest_level_beside(&self, other: &Self, level: impl Fn(u32) -> f64) -> f64 {
        let may_overlap = self.resource_bits & other.resource_bits > 0;
        if !may_overlap || !other.resources.contains(&self.lowest) {
            return self.lowest_level;
        }
        let here = self.resources.iter().filter(|resource| !other.resources.contains(resource));
        here.map(|resource| level(*resource)).fold(f64::INFINITY, f64::min)
    }
}

/// Finds what each path of a demand, which has these flows, keeps of its fraction: less if the demands that wait for
/// room on it are poorer than those that wait on another path. The memory of `paths` serves the next demand, too.
fn find_kept<'a>(
    paths: &mut Vec<ComparedPath<'a>>,
    network: &'a FlowNetwork,
    rates: &FlowRates,
    levels: &[f64],
    flows: Range<usize>,
    kept: &mut [u32],
) {
    kept.fill(KEPT_MAX);
    let stops = &rates.stops[flows.clone()];
    let level = |resource: u32| levels[resource as usize - network.first_resource()];
    paths.clear();
    paths.extend(flows.map(|flow| ComparedPath::new(network.resources_of(flow), level)));
    for one in 0..kept.len() {
        for other in one + 1..kept.len() {
            let here = paths[one].lowest_level_beside(&paths[other], level);
            let there = paths[other].lowest_level_beside(&paths[one], level);
            if here < there && stops[other].is_some() {
                kept[one] = kept[one].min(kept_part(here, there));
            } else if there < here && stops[one].is_some() {
                kept[other] = kept[other].min(kept_part(there, here));
            }
        }
    }
}

/// Returns the ratio of a level and a higher one in 256ths, at least a quarter.
fn kept_part(here: f64, there: f64) -> u32 {
    ((here / there * f64::from(KEPT_MAX)) as u32).max(KEPT_MIN)
}

/// Converts without the slow conversion of 128 bits where 64 suffice, with the same result.
fn to_float(number: u128) -> f64 {
    match u64::try_from(number) {
        Ok(number) => number as f64,
        Err(_) => number as f64,
    }
}

/// Returns for each resource the lowest rate per weight among the demands that it stopped and that want more, infinite
/// without one. Only ratios of levels matter, to 1/256.
fn lowest_levels(network: &FlowNetwork, rates: &FlowRates, weights: &[u64]) -> Vec<f64> {
    let mut levels = vec![f64::INFINITY; network.capacities.len()];
    for (demand, weight) in weights.iter().enumerate() {
        let of = network.flows_of_demand(demand);
        let rate: u128 = rates.grains[of.clone()].iter().sum();
        let has_all = |limit: u64| rate + grains(of.len() as u64) > grains(limit);
        if network.demands[demand].limit.is_some_and(has_all) {
            continue;
        }
        let level = to_float(rate) / *weight as f64;
        for stop in rates.stops[of].iter().flatten() {
            if let FlowStop::Resource(resource) = stop {
                let lowest = &mut levels[*resource as usize];
                *lowest = level.min(*lowest);
            }
        }
    }
    levels
}
