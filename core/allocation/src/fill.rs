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

use std::collections::BinaryHeap;
use std::ops::Range;

use crate::levels::{
    FullConstraint, LevelKey, LevelQueue, QueueEntry, ROUGH_LEVEL_LOWER, ROUGH_LEVEL_UPPER,
    Saturation, rough_level,
};
use crate::network::{FlowNetwork, FlowStop};

/// Flow of a filling: half a cache line, since a constraint's flows are anywhere in memory.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
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
#[repr(align(32))]
struct ConstraintState {
    /// Grains left. If no flow may hold more than the level, those included that flows which are not frozen hold: only
    /// these before the filling runs. Modulo 2^128 for a constraint without a limit.
    room: u128,
    /// Total weight of the flows that are not frozen.
    weight: u64,
    holding: HoldingFlows,
}

/// Flows of a constraint of which some may hold more than the level at which it was last known to fill.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct HoldingFlows(u32);

impl HoldingFlows {
    const NONE: Self = Self(0);
    const UNKNOWN: Self = Self(1);

    const fn new(list: usize) -> Self {
        Self(list as u32 + 2)
    }

    /// Index of their list in [`Filling::holding_lists`].
    const fn list(self) -> Option<usize> {
        (self.0 as usize).checked_sub(2)
    }
}

/// Flow of [`Filling::holding`]: the bits of its rough level, which are in the order of levels, above its number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct HoldingFlow(u64);

impl HoldingFlow {
    const fn new(rough_level: f32, flow: u32) -> Self {
        Self((rough_level.to_bits() as u64) << 32 | flow as u64)
    }

    const fn rough_level(self) -> f32 {
        f32::from_bits((self.0 >> 32) as u32)
    }

    const fn flow(self) -> u32 {
        self.0 as u32
    }
}

/// Parts of [`Filling::holding`] that have the flows of a constraint in the order of what they hold for their weights.
#[derive(Debug, Clone)]
struct HoldingList {
    /// Flows that held no more than the level when it was last known.
    joined: Range<usize>,
    waiting: Range<usize>,
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
    queue: LevelQueue,
    /// Constraints whose levels have the key that is next in the queue.
    equal: BinaryHeap<FullConstraint>,
    holding: Vec<HoldingFlow>,
    holding_lists: Vec<HoldingList>,
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
            queue: LevelQueue::default(),
            equal: BinaryHeap::new(),
            holding: Vec::new(),
            holding_lists: Vec::new(),
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
        self.holding_lists.clear();
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
        let grains = if weight > 0 { hold } else { 0 };
        self.flows[flow] = FillingFlow { grains, weight, stop: NO_CONSTRAINT };
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
            let room = limit.map_or(0, |limit| limit - held);
            self.constraints[demand] = ConstraintState { room, weight, holding };
            if limit.is_some() {
                // All flows rise above what they hold, at most.
                let bound = Saturation { room, weight };
                self.queue.add(QueueEntry::new(bound.key(), demand as u32));
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

    /// Sums the weights of the flows on each resource and what they hold, after all were added: with fewer branches than
    /// flow by flow.
    pub(crate) fn sum_flows(&mut self) {
        if self.has_sums {
            return;
        }
        for constraint in self.network.first_resource()..self.constraints.len() {
            let (mut weight, mut room) = (0, 0);
            let flows = self.network.flows_of(constraint, &self.tiers);
            if self.highest_hold > 0.0 {
                for flow in flows {
                    let flow = &self.flows[*flow as usize];
                    weight += flow.weight;
                    room += flow.grains;
                }
            } else {
                weight = flows.iter().map(|flow| self.flows[*flow as usize].weight).sum();
            }
            let state = &mut self.constraints[constraint];
            (state.weight, state.room) = (weight, room);
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
                let all = Saturation { room: state.room, weight: state.weight };
                if held > 0 && all.rough_level() * ROUGH_LEVEL_LOWER < self.highest_hold {
                    state.holding = HoldingFlows::UNKNOWN;
                    state.room = limit.room;
                }
                let bound = Saturation { room: limit.room, weight: state.weight };
                self.queue.add(QueueEntry::new(bound.key(), constraint as u32));
            }
        }
        self.queue.sort();
        while self.rising_count > 0 {
            let Some(entry) = self.queue.pop() else { break };
            let (key, constraint) = (entry.key(), entry.constraint());
            let Some(full) = self.saturation(constraint) else { continue };
            let level = full.level();
            let now = LevelKey::of(level);
            if self.queue.first().is_none_or(|following| now < following.key()) {
                self.freeze(constraint, full, level);
            } else if now > key {
                self.queue.push(QueueEntry::new(now, constraint));
            } else {
                self.equal.push(FullConstraint { full, constraint });
                self.freeze_equal(key);
            }
        }
        self.queue.clear();
        self.add_rates(first..end, rates, least);
    }

    /// Freezes all constraints whose levels have the key, in their exact order.
    fn freeze_equal(&mut self, key: LevelKey) {
        loop {
            while let Some(entry) = self.queue.first()
                && entry.key() == key
            {
                self.queue.pop();
                self.queue_exactly(key, entry.constraint());
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
            self.queue.push(QueueEntry::new(full.key(), constraint));
        }
    }

    /// Returns the room and weight with which a constraint fills if no other does before; none if all its flows are
    /// frozen.
    fn saturation(&mut self, constraint: u32) -> Option<Saturation> {
        let ConstraintState { room, weight, holding } = self.constraints[constraint as usize];
        if weight == 0 {
            return None;
        }
        if holding == HoldingFlows::NONE {
            return Some(Saturation { room, weight });
        }
        let list = holding.list().unwrap_or_else(|| self.list_holding(constraint));
        let full = self.join(list, room);
        let state = &mut self.constraints[constraint as usize];
        if full.weight == weight {
            (state.room, state.holding) = (full.room, HoldingFlows::NONE);
        } else {
            state.holding = HoldingFlows::new(list);
        }
        Some(full)
    }

    fn is_rising(&self, flow: u32) -> bool {
        self.rising[flow as usize / 64] >> (flow % 64) & 1 > 0
    }

    /// Lists the flows of a constraint that rise, in the order of what they hold for their weights.
    fn list_holding(&mut self, constraint: u32) -> usize {
        let start = self.holding.len();
        let flows = self.network.flows_of(constraint as usize, &self.tiers);
        self.holding.resize(start + flows.len(), HoldingFlow::default());
        let mut end = start;
        for flow in flows {
            // Without a branch, which the processor could not predict.
            self.holding[end] = HoldingFlow::new(self.hold_levels[*flow as usize], *flow);
            end += usize::from(self.is_rising(*flow));
        }
        self.holding.truncate(end);
        let list = &mut self.holding[start..];
        list.sort_unstable();
        // Runs of nearly equal rough levels may be in the wrong order.
        let is_near = |a: &HoldingFlow, b: &HoldingFlow| {
            a.rough_level() * ROUGH_LEVEL_UPPER >= b.rough_level()
        };
        let is_below = |a: HoldingFlow, b: HoldingFlow| {
            let [a, b] = [a, b].map(|one| self.flows[one.flow() as usize]);
            Saturation { room: a.grains, weight: a.weight }.is_below(b.grains, b.weight)
        };
        for run in list.chunk_by_mut(is_near) {
            run.sort_unstable_by(|a, b| is_below(*b, *a).cmp(&is_below(*a, *b)));
        }
        self.holding_lists.push(HoldingList { joined: start..start, waiting: start..end });
        self.holding_lists.len() - 1
    }

    /// Returns the room and weight of the flows in a list that hold no more than the level at which these fill the
    /// room: that level never falls, so that flows which joined the others before still belong to them.
    fn join(&mut self, list: usize, room: u128) -> Saturation {
        let HoldingList { joined, mut waiting } = self.holding_lists[list].clone();
        let mut full = Saturation { room, weight: 0 };
        let mut end = joined.start;
        for at in joined.clone() {
            let one = self.holding[at];
            if self.is_rising(one.flow()) {
                let FillingFlow { grains, weight, .. } = self.flows[one.flow() as usize];
                full.room += grains;
                full.weight += weight;
                self.holding[end] = one;
                end += 1;
            }
        }
        let mut level = if full.weight > 0 { full.rough_level() } else { f32::INFINITY };
        while let Some(one) = self.holding[waiting.clone()].first().copied() {
            if self.is_rising(one.flow()) {
                let FillingFlow { grains, weight, .. } = self.flows[one.flow() as usize];
                let is_near = one.rough_level() > level * ROUGH_LEVEL_LOWER;
                if is_near && full.is_below(grains, weight) {
                    break;
                }
                full.room += grains;
                full.weight += weight;
                level = full.rough_level();
                self.holding[end] = one;
                end += 1;
            }
            waiting.start += 1;
        }
        self.holding_lists[list] = HoldingList { joined: joined.start..end, waiting };
        full
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
            let FillingFlow { grains: hold, weight, .. } = *flow;
            if all_rise || !full.is_below(hold, weight) {
                flow.grains = full.part(weight, level);
            }
            flow.stop = constraint;
            let grains = flow.grains;
            for other in network.constraints_of(*number as usize) {
                let other = &mut self.constraints[*other as usize];
                // Without a branch: the hold if the room does not include it.
                let excluded =
                    hold & u128::from(other.holding != HoldingFlows::NONE).wrapping_neg();
                other.room = other.room.wrapping_sub(grains - excluded);
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
        filling.sum_flows();
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
            // None, any, or such of which rough levels do not tell the order.
            let holds = random.below(3);
            let flows: Vec<(u64, u128)> = (0..network.flows())
                .map(|_| {
                    let weight = random.below(range.min(1 << 30));
                    let hold = match holds {
                        0 => 0,
                        1 => random.below(3) * random.below(range),
                        _ => weight * 1_000 + random.below(3),
                    };
                    (weight, u128::from(hold))
                })
                .collect();
            let room_range = if holds == 2 { 1 } else { range };
            let limits = limits(&network, room_range, &mut random);
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
