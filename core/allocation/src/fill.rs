//! Progressive filling: all flows rise together in proportion to their weights until a constraint is full; the flows on
//! it freeze, the others rise on.
//!
//! The level is the common rate per weight: a flow of weight w has w·level, but not less than the rate that it holds
//! from an earlier round. A constraint with room m for flows of total weight W fills at level m/W. Levels are compared as
//! integer fractions, without rounding. A flow frozen at m/W gets ⌊w·m/W⌋ grains; the remainder stays available to its
//! other constraints.
//!
//! Flows that hold more than the level neither count in W nor their rates in m; they join once the level reaches
//! hold/w. The level at which a constraint fills, such joins included, never falls while other constraints fill. So it
//! is computed only when the constraint comes up in the queue: entries of the queue are lower bounds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::levels::{
    FullConstraint, LevelKey, QueueEntry, ROUGH_LEVEL_LOWER, ROUGH_LEVEL_UPPER, Saturation,
    rough_level,
};
use crate::network::{FlowNetwork, FlowStop};

/// Flow of a filling: half a cache line, since a constraint's flows are anywhere in memory.
#[derive(Debug, Clone, Copy)]
struct FillingFlow {
    /// Grains that the flow holds from an earlier round; its rate once it is frozen.
    grains: u128,
    /// Share of the level, above zero.
    weight: u64,
    /// Constraint that froze the flow; none for a flow that does not take part.
    stop: u32,
}

/// Number that denotes no constraint.
const NO_CONSTRAINT: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, Default)]
struct ConstraintState {
    /// Grains left, those included that flows which are not frozen hold: only these before the filling runs. Modulo
    /// 2^128 for a constraint without a limit.
    room: u128,
    /// Total weight of the flows that are not frozen.
    weight: u64,
    holding: HoldingFlows,
}

/// Flows of a constraint that hold more than the level at which it was last known to fill.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct HoldingFlows(u32);

impl HoldingFlows {
    const NONE: Self = Self(0);
    const UNKNOWN: Self = Self(1);

    /// Index of their range in [`Filling::holding_ranges`].
    const fn range(self) -> Option<usize> {
        (self.0 as usize).checked_sub(2)
    }
}

/// Flow of [`Filling::holding`].
#[derive(Debug, Clone, Copy, Default)]
struct HoldingFlow {
    rough_level: f32,
    flow: u32,
}

/// Weight of the flows of a class or resource, and what they hold.
#[derive(Debug, Clone, Copy, Default)]
struct FlowSums {
    weight: u64,
    held: u128,
}

/// Limit that applies to a class or resource in a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FillLimit {
    /// Grains left besides what flows hold.
    pub(crate) room: u128,
    pub(crate) stop: FlowStop,
}

/// Rates of all flows, and the limits that stopped them.
#[derive(Debug, Clone)]
pub(crate) struct FlowRates {
    pub(crate) grains: Vec<u128>,
    /// None for a path that was given up.
    pub(crate) stops: Vec<Option<FlowStop>>,
}

/// Memory of a filling, which the next one reuses.
#[derive(Debug)]
pub(crate) struct Filling<'a> {
    network: &'a FlowNetwork,
    flows: Vec<FillingFlow>,
    /// A bit for each flow that takes part and is not frozen.
    rising: Vec<u64>,
    /// Number of such flows.
    rising_count: usize,
    /// Rough ratio of hold and weight of each flow.
    hold_levels: Vec<f32>,
    /// The largest of them.
    highest_hold: f32,
    constraints: Vec<ConstraintState>,
    /// Limit of each class and resource.
    limits: Vec<Option<FillLimit>>,
    tiers: Range<usize>,
    /// Sums of each class and resource in the next filling of each tier with the same weights.
    next_sums: Vec<Vec<FlowSums>>,
    /// True if the present filling began with such sums.
    has_sums: bool,
    /// Entries of the queue before the filling runs.
    entries: Vec<Reverse<QueueEntry>>,
    queue: BinaryHeap<Reverse<QueueEntry>>,
    /// Constraints whose levels have the key that is next in the queue.
    equal: BinaryHeap<FullConstraint>,
    holding: Vec<HoldingFlow>,
    holding_ranges: Vec<Range<usize>>,
    /// Flows that a constraint freezes.
    frozen: Vec<u32>,
}

impl<'a> Filling<'a> {
    pub(crate) fn new(network: &'a FlowNetwork) -> Self {
        let constraints = network.constraints();
        let others = constraints - network.demands.len();
        Self {
            network,
            flows: vec![FillingFlow { grains: 0, weight: 0, stop: NO_CONSTRAINT }; network.flows()],
            rising: vec![0; network.flows().div_ceil(64)],
            rising_count: 0,
            hold_levels: vec![0.0; network.flows()],
            highest_hold: 0.0,
            constraints: vec![ConstraintState::default(); constraints],
            limits: vec![None; others],
            tiers: 0..0,
            next_sums: vec![Vec::new(); network.tiers.len()],
            has_sums: false,
            entries: Vec::new(),
            queue: BinaryHeap::new(),
            equal: BinaryHeap::new(),
            holding: Vec::new(),
            holding_ranges: Vec::new(),
            frozen: vec![0; network.flows()],
        }
    }

    /// Starts a filling of the flows of these tiers.
    pub(crate) fn start(&mut self, tiers: Range<usize>) {
        let first = self.network.demands.len();
        self.constraints[first..].fill(ConstraintState::default());
        self.limits.fill(None);
        self.tiers = tiers;
        self.has_sums = false;
        self.highest_hold = 0.0;
        self.holding.clear();
        self.holding_ranges.clear();
        self.rising.fill(0);
        self.rising_count = 0;
    }

    /// Starts a filling of the flows of a tier with the weights that they had when [`Self::run_first`] filled it, and
    /// that hold the rates which they got then.
    pub(crate) fn start_next(&mut self, tier: usize) {
        self.start(tier..tier + 1);
        self.has_sums = true;
        let first = self.network.demands.len();
        for (state, sums) in self.constraints[first..].iter_mut().zip(&self.next_sums[tier]) {
            (state.room, state.weight) = (sums.held, sums.weight);
        }
    }

    /// Adds a flow with a weight, and a rate that it already has and keeps. Each flow of the tiers must be added, and
    /// then its demand; with weight 0 it does not take part.
    #[inline]
    pub(crate) fn add(&mut self, flow: usize, weight: u64, hold: u128) {
        self.flows[flow] = FillingFlow { grains: hold, weight, stop: NO_CONSTRAINT };
        self.hold_levels[flow] = 0.0;
        if weight == 0 {
            return;
        }
        self.rising[flow / 64] |= 1 << (flow % 64);
        self.rising_count += 1;
        if hold > 0 {
            let level = rough_level(hold, weight);
            self.hold_levels[flow] = level;
            self.highest_hold = self.highest_hold.max(level);
        }
        if self.has_sums {
            return;
        }
        for constraint in self.network.resources_of(flow) {
            let state = &mut self.constraints[*constraint as usize];
            state.weight += weight;
            state.room += hold;
        }
    }

    /// Adds a demand after its flows: the sum of the weights of those that take part, what these hold, and the grains
    /// that they may have together with that; none for no limit.
    #[inline]
    pub(crate) fn add_demand(
        &mut self,
        demand: usize,
        weight: u64,
        held: u128,
        limit: Option<u128>,
    ) {
        if weight == 0 {
            return;
        }
        let (own, class) = self.network.shared_constraints(demand);
        if own {
            let holding = if held > 0 { HoldingFlows::UNKNOWN } else { HoldingFlows::NONE };
            let room = limit.unwrap_or(held);
            self.constraints[demand] = ConstraintState { room, weight, holding };
            if let Some(room) = limit {
                let bound = Saturation { room: room - held, weight };
                self.entries.push(Reverse(QueueEntry::new(bound.key(), demand as u32)));
            }
        }
        if let Some(class) = class
            && !self.has_sums
        {
            let state = &mut self.constraints[class as usize];
            state.weight += weight;
            state.room += held;
        }
    }

    /// Returns the sum of what the flows on a class or resource hold, before the filling runs.
    pub(crate) fn held(&self, constraint: usize) -> u128 {
        self.constraints[constraint].room
    }

    /// Limits a class or resource, after all flows were added.
    pub(crate) fn limit(&mut self, constraint: usize, limit: FillLimit) {
        self.limits[constraint - self.network.demands.len()] = Some(limit);
    }

    /// Returns by how much the rates on a class or resource grew in the filling.
    pub(crate) fn growth(&self, constraint: usize) -> u128 {
        let room =
            self.limits[constraint - self.network.demands.len()].map_or(0, |limit| limit.room);
        room.wrapping_sub(self.constraints[constraint].room)
    }

    /// As [`Self::run`]; [`Self::start_next`] continues.
    pub(crate) fn run_first(&mut self, rates: &mut FlowRates, least: u128) {
        let first = self.network.demands.len();
        let tier = self.tiers.start;
        let mut sums = std::mem::take(&mut self.next_sums[tier]);
        let before = self.constraints[first..].iter();
        sums.clear();
        sums.extend(before.map(|state| FlowSums { weight: state.weight, held: state.room }));
        self.run(rates, least);
        for (number, sums) in sums.iter_mut().enumerate() {
            sums.held = sums.held.wrapping_add(self.growth(first + number));
        }
        self.next_sums[tier] = sums;
    }

    /// Fills. The new rates of flows that take part are added to `rates`, which exclude what they hold; the limit that
    /// stops a flow replaces the former one, unless its new rate is less than `least`. Each flow must have a constraint
    /// with a limit.
    pub(crate) fn run(&mut self, rates: &mut FlowRates, least: u128) {
        let demands = &self.network.tiers[self.tiers.start].demands;
        let first = demands.start;
        let end = self.network.tiers[self.tiers.end - 1].demands.end;
        let others = self.network.demands.len();
        for (number, limit) in self.limits.iter().enumerate() {
            let constraint = others + number;
            let state = &mut self.constraints[constraint];
            let Some(limit) = limit else { continue };
            let held = state.room;
            state.room += limit.room;
            if state.weight > 0 {
                if held > 0 {
                    state.holding = HoldingFlows::UNKNOWN;
                }
                // All flows rise above what they hold, at most.
                let bound = Saturation { room: limit.room, weight: state.weight };
                self.entries.push(Reverse(QueueEntry::new(bound.key(), constraint as u32)));
            }
        }
        self.queue = BinaryHeap::from(std::mem::take(&mut self.entries));
        while self.rising_count > 0 {
            let Some(Reverse(entry)) = self.queue.peek().copied() else { break };
            let (key, constraint) = (entry.key(), entry.constraint());
            let Some(full) = self.saturation(constraint) else {
                self.queue.pop();
                continue;
            };
            let level = full.level();
            let now = LevelKey::of(level);
            if self.following().is_none_or(|following| now < following.key()) {
                self.queue.pop();
                self.freeze(constraint, full, level);
            } else if now > key {
                if let Some(mut first) = self.queue.peek_mut() {
                    *first = Reverse(QueueEntry::new(now, constraint));
                }
            } else {
                self.queue.pop();
                self.equal.push(FullConstraint { full, constraint });
                self.freeze_equal(key);
            }
        }
        self.entries = std::mem::take(&mut self.queue).into_vec();
        self.entries.clear();
        self.add_rates(first..end, rates, least);
    }

    /// Freezes all constraints whose levels have the key, in their exact order.
    fn freeze_equal(&mut self, key: LevelKey) {
        loop {
            while let Some(Reverse(entry)) = self.queue.peek()
                && entry.key() == key
            {
                let constraint = entry.constraint();
                self.queue.pop();
                self.queue_exactly(key, constraint);
            }
            let Some(FullConstraint { full, constraint }) = self.equal.pop() else { return };
            if self.saturation(constraint) == Some(full) {
                self.freeze(constraint, full, full.level());
            } else {
                self.queue_exactly(key, constraint);
            }
        }
    }

    fn queue_exactly(&mut self, key: LevelKey, constraint: u32) {
        let Some(full) = self.saturation(constraint) else { return };
        if full.key() == key {
            self.equal.push(FullConstraint { full, constraint });
        } else {
            self.queue.push(Reverse(QueueEntry::new(full.key(), constraint)));
        }
    }

    /// Returns the second entry of the queue.
    fn following(&self) -> Option<QueueEntry> {
        // The children of the first one in the heap.
        self.queue.as_slice().iter().skip(1).take(2).map(|entry| entry.0).min()
    }

    /// Returns the room and weight with which a constraint fills if no other does before; none if all its flows are
    /// frozen.
    fn saturation(&mut self, constraint: u32) -> Option<Saturation> {
        let state = &mut self.constraints[constraint as usize];
        if state.weight == 0 {
            return None;
        }
        let mut full = Saturation { room: state.room, weight: state.weight };
        if state.holding == HoldingFlows::NONE {
            return Some(full);
        }
        // The room is at least what these flows hold, so the level of all flows bounds that of any part.
        if full.rough_level() * ROUGH_LEVEL_LOWER >= self.highest_hold {
            state.holding = HoldingFlows::NONE;
            return Some(full);
        }
        let (index, left_out, end) = if let Some(index) = state.holding.range() {
            let (left_out, end) = self.leave_out_holding(index, &mut full);
            (index, left_out, end)
        } else {
            let index = self.holding_ranges.len();
            state.holding = HoldingFlows(index as u32 + 2);
            let Range { start, end } = self.collect_holding(constraint);
            self.holding_ranges.push(start..end);
            (index, start, end)
        };
        let start = self.holding_ranges[index].start;
        let end = self.leave_out_above(left_out..end, &mut full);
        self.holding_ranges[index] = start..end;
        if start == end {
            self.constraints[constraint as usize].holding = HoldingFlows::NONE;
        }
        Some(full)
    }

    fn is_rising(&self, flow: u32) -> bool {
        self.rising[flow as usize / 64] >> (flow % 64) & 1 > 0
    }

    /// Lists the flows of a constraint that rise and hold a rate. Returns their range.
    fn collect_holding(&mut self, constraint: u32) -> Range<usize> {
        let start = self.holding.len();
        let flows = self.network.flows_of(constraint as usize, &self.tiers);
        self.holding.resize(start + flows.len(), HoldingFlow::default());
        let mut end = start;
        for flow in flows {
            // Without a branch, which the processor could not predict.
            let rough_level = self.hold_levels[*flow as usize];
            self.holding[end] = HoldingFlow { rough_level, flow: *flow };
            end += usize::from(self.is_rising(*flow) & (rough_level > 0.0));
        }
        self.holding.truncate(end);
        start..end
    }

    /// Leaves out the listed flows, which held more than a former level, but those that hold less than the present one.
    /// Returns the ends of the list of those left out, and of the others that follow them.
    fn leave_out_holding(&mut self, list: usize, full: &mut Saturation) -> (usize, usize) {
        let Range { start, end } = self.holding_ranges[list].clone();
        let mut sum = Saturation { room: 0, weight: 0 };
        let (mut kept, mut least) = (start, f32::INFINITY);
        for at in start..end {
            let one = self.holding[at];
            let is_rising = self.is_rising(one.flow);
            self.holding[kept] = one;
            kept += usize::from(is_rising);
            if is_rising {
                let FillingFlow { grains, weight, .. } = self.flows[one.flow as usize];
                sum.room += grains;
                sum.weight += weight;
                least = least.min(one.rough_level);
            }
        }
        if sum.weight == full.weight {
            return (start, kept);
        }
        // However flows are left out, the level of the others is not below the one sought.
        full.room -= sum.room;
        full.weight -= sum.weight;
        let mut upper = full.rough_level() * ROUGH_LEVEL_UPPER;
        if least > upper {
            return (kept, kept);
        }
        let mut left_out = start;
        for at in start..kept {
            let one = self.holding[at];
            if one.rough_level <= upper {
                let FillingFlow { grains, weight, .. } = self.flows[one.flow as usize];
                if !full.is_below(grains, weight) {
                    full.room += grains;
                    full.weight += weight;
                    upper = full.rough_level() * ROUGH_LEVEL_UPPER;
                    continue;
                }
            }
            self.holding.swap(at, left_out);
            left_out += 1;
        }
        (left_out, kept)
    }

    /// Leaves out the flows of a list that hold more than the level of the others, which lowers that level, until none
    /// does (Michelot, Journal of Optimization Theory and Applications 50, 1986): flows that rise below it rise at any
    /// later level. Returns the end of the list of those left out.
    fn leave_out_above(&mut self, list: Range<usize>, full: &mut Saturation) -> usize {
        let Range { start: mut left_out, end } = list;
        let mut lower = full.rough_level() * ROUGH_LEVEL_LOWER;
        loop {
            let before = left_out;
            for at in before..end {
                let HoldingFlow { rough_level, flow } = self.holding[at];
                if rough_level < lower {
                    continue;
                }
                let FillingFlow { grains, weight, .. } = self.flows[flow as usize];
                if full.is_below(grains, weight) {
                    full.room -= grains;
                    full.weight -= weight;
                    lower = full.rough_level() * ROUGH_LEVEL_LOWER;
                    self.holding.swap(at, left_out);
                    left_out += 1;
                }
            }
            if left_out == before {
                return left_out;
            }
        }
    }

    fn freeze(&mut self, constraint: u32, full: Saturation, level: u128) {
        let network = self.network;
        let mut count = 0;
        for flow in network.flows_of(constraint as usize, &self.tiers) {
            // Without a branch, which the processor could not predict.
            self.frozen[count] = *flow;
            let word = &mut self.rising[*flow as usize / 64];
            count += (*word >> (flow % 64) & 1) as usize;
            *word &= !(1 << (flow % 64));
        }
        self.rising_count -= count;
        let all_rise = self.constraints[constraint as usize].holding == HoldingFlows::NONE;
        for number in &self.frozen[..count] {
            let flow = &mut self.flows[*number as usize];
            let FillingFlow { grains, weight, .. } = *flow;
            if all_rise || !full.is_below(grains, weight) {
                flow.grains = full.part(weight, level);
            }
            flow.stop = constraint;
            let grains = flow.grains;
            for other in network.constraints_of(*number as usize) {
                let other = &mut self.constraints[*other as usize];
                other.room = other.room.wrapping_sub(grains);
                other.weight -= weight;
            }
        }
    }

    /// Adds the new rates of the flows of these demands.
    fn add_rates(&self, demands: Range<usize>, rates: &mut FlowRates, least: u128) {
        let flows = self.network.flows_of_demands(&demands);
        let first = self.network.demands.len();
        let limits = &self.limits;
        let stop_of = |stop: u32| match (stop as usize).checked_sub(first) {
            None => Some(FlowStop::Demand),
            Some(other) => limits[other].map(|limit| limit.stop),
        };
        let of = rates.grains[flows.clone()].iter_mut().zip(&mut rates.stops[flows.clone()]);
        for ((rate, last), FillingFlow { grains, stop, .. }) in of.zip(&self.flows[flows]) {
            if *stop == NO_CONSTRAINT {
                continue;
            }
            *rate += grains;
            if *grains >= least {
                *last = stop_of(*stop);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_random::Random;

    use super::*;
    use crate::network::{ClassTerms, DemandTerms};

    /// Network of demands with limits and paths over a few resources, in two classes with caps.
    fn network(random: &mut Random) -> FlowNetwork {
        let resources = 1 + random.below(8);
        let class = ClassTerms {
            weight: 1,
            members_weight: 1,
            floor: 0,
            mark: None,
            cap: Some(1),
            tier: 0,
        };
        let demands: Vec<_> = (0..1 + random.below(20))
            .map(|_| DemandTerms {
                class: random.one_in(2).then(|| random.below(2) as u32),
                weight: 1,
                limit: random.one_in(2).then_some(1),
                guarantee: 0,
            })
            .collect();
        let path = |random: &mut Random| {
            let all = (0..resources as u32).filter(|_| random.one_in(3)).collect::<Vec<_>>();
            if all.is_empty() { vec![random.below(resources) as u32] } else { all }
        };
        let paths: Vec<Vec<Vec<u32>>> = demands
            .iter()
            .map(|_| (0..1 + random.below(3)).map(|_| path(random)).collect())
            .collect();
        let places: Vec<u32> = (0..resources as u32).collect();
        let capacities = vec![1; resources as usize];
        FlowNetwork::new(
            &capacities,
            vec![class; 2],
            demands,
            paths.iter().map(Vec::as_slice),
            &places,
        )
    }

    /// The definition: in each step the flow joins that holds the least per weight, if that is not above the level at
    /// which the first constraint fills; otherwise that constraint freezes its flows.
    fn fill_step_by_step(
        network: &FlowNetwork,
        flows: &[(u64, u128)],
        limits: &[Option<u128>],
    ) -> Vec<Option<(u128, usize)>> {
        let mut rates = vec![None; flows.len()];
        let mut joined: Vec<bool> =
            flows.iter().map(|(weight, hold)| *weight > 0 && *hold == 0).collect();
        let mut rooms = limits.to_vec();
        loop {
            let mut first: Option<(u128, u128, usize)> = None;
            for (constraint, room) in rooms.iter().enumerate() {
                let on_it = (0..flows.len()).filter(|flow| {
                    joined[*flow] && network.constraints_of(*flow).contains(&(constraint as u32))
                });
                let weight: u128 = on_it.map(|flow| u128::from(flows[flow].0)).sum();
                if let (Some(room), true) = (room, weight > 0)
                    && first.is_none_or(|(least, of, _)| room * of < least * weight)
                {
                    first = Some((*room, weight, constraint));
                }
            }
            let waiting = (0..flows.len())
                .filter(|flow| flows[*flow].0 > 0 && !joined[*flow] && rates[*flow].is_none());
            let next = waiting.min_by(|a, b| {
                let cross = |a: usize, b: usize| flows[a].1 * u128::from(flows[b].0);
                cross(*a, *b).cmp(&cross(*b, *a))
            });
            let joins = next.filter(|flow| {
                let (weight, hold) = flows[*flow];
                first.is_none_or(|(room, of, _)| hold * of <= room * u128::from(weight))
            });
            if let Some(flow) = joins {
                joined[flow] = true;
                for constraint in network.constraints_of(flow) {
                    if let Some(room) = &mut rooms[*constraint as usize] {
                        *room += flows[flow].1;
                    }
                }
                continue;
            }
            let Some((room, weight, constraint)) = first else { return rates };
            rooms[constraint] = None;
            for flow in 0..flows.len() {
                let takes_part = flows[flow].0 > 0 && rates[flow].is_none();
                if !takes_part || !network.constraints_of(flow).contains(&(constraint as u32)) {
                    continue;
                }
                if !std::mem::take(&mut joined[flow]) {
                    rates[flow] = Some((flows[flow].1, constraint));
                    continue;
                }
                let grains = u128::from(flows[flow].0) * room / weight;
                rates[flow] = Some((grains, constraint));
                for other in network.constraints_of(flow) {
                    if let Some(room) = &mut rooms[*other as usize] {
                        *room -= grains;
                    }
                }
            }
        }
    }

    /// Adds all flows with these weights and holds, and sets the limits of all constraints.
    fn add_all(
        filling: &mut Filling<'_>,
        network: &FlowNetwork,
        flows: &[(u64, u128)],
        limits: &[Option<u128>],
    ) {
        let first = network.demands.len();
        for (demand, limit) in limits[..first].iter().enumerate() {
            let (mut weights, mut held) = (0, 0);
            for flow in network.flows_of_demand(demand) {
                let (weight, hold) = flows[flow];
                filling.add(flow, weight, hold);
                weights += weight;
                held += if weight > 0 { hold } else { 0 };
            }
            filling.add_demand(demand, weights, held, limit.map(|limit| limit + held));
        }
        for (constraint, room) in limits.iter().enumerate().skip(first) {
            if let Some(room) = *room {
                let stop = FlowStop::Resource(constraint as u32);
                filling.limit(constraint, FillLimit { room, stop });
            }
        }
    }

    fn no_rates(network: &FlowNetwork) -> FlowRates {
        let count = network.flows();
        FlowRates { grains: vec![0; count], stops: vec![None; count] }
    }

    fn limits(network: &FlowNetwork, range: u64, random: &mut Random) -> Vec<Option<u128>> {
        let limit = |constraint| {
            let applies = constraint >= network.first_resource() || random.one_in(2);
            applies.then(|| u128::from(random.below(4 * range)))
        };
        (0..network.constraints()).map(limit).collect()
    }

    #[test]
    fn next_filling_equals_fresh_one() {
        for seed in 0..1_000 {
            let mut random = Random::new(seed);
            let network = network(&mut random);
            let range = [4, 1_000, 1 << 40][random.below(3) as usize];
            let mut flows: Vec<(u64, u128)> = (0..network.flows())
                .map(|_| (random.below(range.min(1 << 30)), u128::from(random.below(range))))
                .collect();
            for (weight, hold) in &mut flows {
                *hold = if *weight == 0 { 0 } else { *hold };
            }
            let mut filling = Filling::new(&network);
            filling.start(0..1);
            add_all(&mut filling, &network, &flows, &limits(&network, range, &mut random));
            let mut rates = no_rates(&network);
            filling.run_first(&mut rates, 0);
            for ((_, hold), rate) in flows.iter_mut().zip(rates.grains) {
                *hold = rate;
            }
            let limits = limits(&network, range, &mut random);
            let mut next = no_rates(&network);
            filling.start_next(0);
            add_all(&mut filling, &network, &flows, &limits);
            filling.run(&mut next, 0);
            let mut expected = no_rates(&network);
            let mut fresh = Filling::new(&network);
            fresh.start(0..1);
            add_all(&mut fresh, &network, &flows, &limits);
            fresh.run(&mut expected, 0);
            assert_eq!(next.grains, expected.grains, "seed {seed}");
            assert_eq!(next.stops, expected.stops, "seed {seed}");
        }
    }

    #[test]
    fn filling_equals_step_by_step() {
        for seed in 0..4_000 {
            let mut random = Random::new(seed);
            let network = network(&mut random);
            let first = network.demands.len();
            // Small numbers, for equal levels, or any.
            let range = [4, 1_000, 1 << 40][random.below(3) as usize];
            let holds = random.one_in(2);
            let flows: Vec<(u64, u128)> = (0..network.flows())
                .map(|_| {
                    let hold = if holds { random.below(3) * random.below(range) } else { 0 };
                    (random.below(range.min(1 << 30)), u128::from(hold))
                })
                .collect();
            let limits = limits(&network, range, &mut random);
            let expected = fill_step_by_step(&network, &flows, &limits);

            let mut filling = Filling::new(&network);
            filling.start(0..1);
            add_all(&mut filling, &network, &flows, &limits);
            let mut rates = no_rates(&network);
            filling.run(&mut rates, 0);
            for (flow, expected) in expected.iter().enumerate() {
                let stop = expected.map(|(_, constraint)| match constraint {
                    demand if demand < first => FlowStop::Demand,
                    other => FlowStop::Resource(other as u32),
                });
                let grains = expected.map_or(0, |(grains, _)| grains);
                assert_eq!(rates.grains[flow], grains, "seed {seed}, flow {flow}");
                assert_eq!(rates.stops[flow], stop, "seed {seed}, flow {flow}");
            }
        }
    }
}
