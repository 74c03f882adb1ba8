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

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::network::{FlowNetwork, FlowStop};
use crate::weights::SUM_BITS;

/// Leading bits of a level in a [`LevelKey`].
const KEY_BITS: u32 = 57;

/// Level rounded down to its leading bits, in the order of levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LevelKey(u64);

impl LevelKey {
    fn of(level: u128) -> Self {
        let excess = (u128::BITS - level.leading_zeros()).saturating_sub(KEY_BITS);
        // Each binary exponent takes half of the numbers of `KEY_BITS` bits.
        Self((u64::from(excess) << (KEY_BITS - 1)) + (level >> excess) as u64)
    }
}

/// Room for the flows that rise, and the sum of their weights; the level is their ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Saturation {
    room: u128,
    weight: u64,
}

impl Saturation {
    /// Returns ⌊2⁶⁰·room/weight⌋.
    fn level(self) -> u128 {
        (self.room << SUM_BITS) / u128::from(self.weight)
    }

    fn key(self) -> LevelKey {
        LevelKey::of(self.level())
    }

    /// Returns true if a flow of this weight that holds this rate has more than the level. Rooms below 2^67 and weights
    /// below 2^60 fit 128 bits.
    fn is_below(self, hold: u128, weight: u64) -> bool {
        hold * u128::from(self.weight) > self.room * u128::from(weight)
    }
}

/// Candidate of the queue in the exact order of levels, then of constraints; the first is the greatest, for a heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FullConstraint {
    full: Saturation,
    constraint: u32,
}

impl Ord for FullConstraint {
    fn cmp(&self, other: &Self) -> Ordering {
        let cross = |one: &Self, other: &Self| one.full.room * u128::from(other.full.weight);
        cross(other, self).cmp(&cross(self, other)).then(other.constraint.cmp(&self.constraint))
    }
}

impl PartialOrd for FullConstraint {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

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
    /// Grains left, those included that flows which are not frozen hold. Modulo 2^128 for a constraint without a limit.
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

/// Limit that applies to a constraint in a round.
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
    constraints: Vec<ConstraintState>,
    /// Sum of what the flows of each constraint hold.
    held: Vec<u128>,
    /// Limit of each constraint.
    limits: Vec<Option<FillLimit>>,
    tiers: Range<usize>,
    /// Largest ratio of hold and weight among the flows.
    highest_hold: (u128, u64),
    /// Entries of the queue, the lowest level last.
    sorted: Vec<(LevelKey, u32)>,
    /// Further entries of the queue, whose levels were higher than first known.
    raised: BinaryHeap<Reverse<(LevelKey, u32)>>,
    /// Constraints whose levels have the key that is next in the queue.
    equal: BinaryHeap<FullConstraint>,
    holding: Vec<u32>,
    holding_ranges: Vec<Range<usize>>,
    /// Flows that a constraint freezes.
    frozen: Vec<u32>,
}

impl<'a> Filling<'a> {
    pub(crate) fn new(network: &'a FlowNetwork) -> Self {
        let constraints = network.constraints();
        Self {
            network,
            flows: vec![FillingFlow { grains: 0, weight: 0, stop: NO_CONSTRAINT }; network.flows()],
            rising: vec![0; network.flows().div_ceil(64)],
            constraints: vec![ConstraintState::default(); constraints],
            held: vec![0; constraints],
            limits: vec![None; constraints],
            tiers: 0..0,
            highest_hold: (0, 1),
            sorted: Vec::new(),
            raised: BinaryHeap::new(),
            equal: BinaryHeap::new(),
            holding: Vec::new(),
            holding_ranges: Vec::new(),
            frozen: vec![0; network.flows()],
        }
    }

    /// Starts a filling of the flows of these tiers.
    pub(crate) fn start(&mut self, tiers: Range<usize>) {
        let network = self.network;
        let mut clear = |range: Range<usize>| {
            self.constraints[range.clone()].fill(ConstraintState::default());
            self.held[range.clone()].fill(0);
            self.limits[range].fill(None);
        };
        clear(network.tiers[tiers.start].demands.start..network.tiers[tiers.end - 1].demands.end);
        clear(network.demands.len()..network.constraints());
        self.tiers = tiers;
        self.highest_hold = (0, 1);
        self.holding.clear();
        self.holding_ranges.clear();
        self.rising.fill(0);
    }

    /// Adds a flow with a weight, and a rate that it already has and keeps. Each flow of the tiers must be added;
    /// with weight 0 it does not take part.
    pub(crate) fn add(&mut self, flow: usize, weight: u64, hold: u128) {
        self.flows[flow] = FillingFlow { grains: hold, weight, stop: NO_CONSTRAINT };
        if weight == 0 {
            return;
        }
        self.rising[flow / 64] |= 1 << (flow % 64);
        for constraint in self.network.constraints_of(flow) {
            self.constraints[*constraint as usize].weight += weight;
        }
        if hold > 0 {
            for constraint in self.network.constraints_of(flow) {
                self.held[*constraint as usize] += hold;
            }
            let (highest, of) = self.highest_hold;
            if hold * u128::from(of) > highest * u128::from(weight) {
                self.highest_hold = (hold, weight);
            }
        }
    }

    /// Returns the sum of what the flows on a constraint hold.
    pub(crate) fn held(&self, constraint: usize) -> u128 {
        self.held[constraint]
    }

    /// Limits a constraint, after all flows were added.
    pub(crate) fn limit(&mut self, constraint: usize, limit: FillLimit) {
        self.limits[constraint] = Some(limit);
    }

    /// Returns by how much the rates on a constraint grew in the filling.
    pub(crate) fn growth(&self, constraint: usize) -> u128 {
        let room = self.limits[constraint].map_or(0, |limit| limit.room);
        room.wrapping_sub(self.constraints[constraint].room)
    }

    /// Fills. The new rates of flows that take part are added to `rates`, which exclude what they hold; the limit that
    /// stops a flow replaces the former one, unless its new rate is less than `least`. Each flow must have a constraint
    /// with a limit.
    pub(crate) fn run(&mut self, rates: &mut FlowRates, least: u128) {
        let demands = &self.network.tiers[self.tiers.start].demands;
        let first = demands.start;
        let end = self.network.tiers[self.tiers.end - 1].demands.end;
        let others = self.network.demands.len()..self.network.constraints();
        for constraint in (first..end).chain(others) {
            let state = &mut self.constraints[constraint];
            let held = self.held[constraint];
            let Some(limit) = self.limits[constraint] else {
                state.room = held;
                continue;
            };
            state.room = limit.room + held;
            if state.weight > 0 {
                if held > 0 {
                    state.holding = HoldingFlows::UNKNOWN;
                }
                // All flows rise above what they hold, at most.
                let bound = Saturation { room: limit.room, weight: state.weight };
                self.sorted.push((bound.key(), constraint as u32));
            }
        }
        self.sorted.sort_unstable_by(|a, b| b.cmp(a));
        while let Some((key, constraint)) = self.next() {
            let Some(full) = self.saturation(constraint) else { continue };
            let level = full.level();
            let now = LevelKey::of(level);
            if self.peek().is_none_or(|(following, _)| now < following) {
                self.freeze(constraint, full, level);
            } else if now > key {
                self.raised.push(Reverse((now, constraint)));
            } else {
                self.equal.push(FullConstraint { full, constraint });
                self.freeze_equal(key);
            }
        }
        self.add_rates(first..end, rates, least);
    }

    /// Freezes all constraints whose levels have the key, in their exact order.
    fn freeze_equal(&mut self, key: LevelKey) {
        loop {
            while self.peek().is_some_and(|(other, _)| other == key) {
                let Some((_, constraint)) = self.next() else { break };
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
            self.raised.push(Reverse((full.key(), constraint)));
        }
    }

    fn peek(&self) -> Option<(LevelKey, u32)> {
        let raised = self.raised.peek().map(|entry| entry.0);
        raised.into_iter().chain(self.sorted.last().copied()).min()
    }

    fn next(&mut self) -> Option<(LevelKey, u32)> {
        match (self.sorted.last(), self.raised.peek()) {
            (Some(sorted), Some(raised)) if raised.0 < *sorted => {
                self.raised.pop().map(|entry| entry.0)
            }
            (None, _) => self.raised.pop().map(|entry| entry.0),
            _ => self.sorted.pop(),
        }
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
        if !full.is_below(self.highest_hold.0, self.highest_hold.1) {
            state.holding = HoldingFlows::NONE;
            return Some(full);
        }
        let index = state.holding.range().unwrap_or(self.holding_ranges.len());
        let is_rising = |flow: &u32| self.rising[*flow as usize / 64] >> (flow % 64) & 1 > 0;
        let Range { start, end } = match self.holding_ranges.get(index).cloned() {
            None => {
                let start = self.holding.len();
                let flows = self.network.flows_of(constraint as usize, &self.tiers).iter();
                let holding =
                    flows.filter(|flow| is_rising(flow) && self.flows[**flow as usize].grains > 0);
                self.holding.extend(holding);
                self.holding_ranges.push(start..self.holding.len());
                state.holding = HoldingFlows(index as u32 + 2);
                start..self.holding.len()
            }
            Some(Range { start, end }) => {
                let mut kept = start;
                for at in start..end {
                    self.holding[kept] = self.holding[at];
                    kept += usize::from(is_rising(&self.holding[at]));
                }
                start..kept
            }
        };
        // Flows with more than the level of the others are left out, which lowers that level, until none has (Michelot,
        // Journal of Optimization Theory and Applications 50, 1986). Flows that rise below it rise at any later level.
        let mut rising = start;
        loop {
            let before = rising;
            for at in before..end {
                let FillingFlow { grains, weight, .. } = self.flows[self.holding[at] as usize];
                if full.is_below(grains, weight) {
                    full.room -= grains;
                    full.weight -= weight;
                    self.holding.swap(at, rising);
                    rising += 1;
                }
            }
            if rising == before {
                break;
            }
        }
        self.holding_ranges[index] = start..rising;
        if start == rising {
            self.constraints[constraint as usize].holding = HoldingFlows::NONE;
        }
        Some(full)
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
        let all_rise = self.constraints[constraint as usize].holding == HoldingFlows::NONE;
        for number in &self.frozen[..count] {
            let flow = &mut self.flows[*number as usize];
            let FillingFlow { grains, weight, .. } = *flow;
            if all_rise || !full.is_below(grains, weight) {
                flow.grains = part(weight, full, level);
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
        for flow in self.network.flows_of_demands(&demands) {
            let FillingFlow { grains, stop, .. } = self.flows[flow];
            if stop == NO_CONSTRAINT {
                continue;
            }
            rates.grains[flow] += grains;
            if grains >= least {
                rates.stops[flow] = if (stop as usize) < self.network.demands.len() {
                    Some(FlowStop::Demand)
                } else {
                    self.limits[stop as usize].map(|limit| limit.stop)
                };
            }
        }
    }
}

/// Returns ⌊weight·room/total weight⌋ by multiplication with the level.
fn part(weight: u64, full: Saturation, level: u128) -> u128 {
    let weight = u128::from(weight);
    let (high, low) = (level >> 64, level & u128::from(u64::MAX));
    // Less by one or two at most, as the level is rounded down.
    let mut part = ((weight * high) << (64 - SUM_BITS)) + ((weight * low) >> SUM_BITS);
    let mut rest = weight * full.room - part * u128::from(full.weight);
    while rest >= u128::from(full.weight) {
        part += 1;
        rest -= u128::from(full.weight);
    }
    part
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
            let limits: Vec<Option<u128>> = (0..network.constraints())
                .map(|constraint| {
                    let applies = constraint >= network.first_resource() || random.one_in(2);
                    applies.then(|| u128::from(random.below(4 * range)))
                })
                .collect();
            let expected = fill_step_by_step(&network, &flows, &limits);

            let mut filling = Filling::new(&network);
            filling.start(0..1);
            for (flow, (weight, hold)) in flows.iter().enumerate() {
                filling.add(flow, *weight, *hold);
            }
            for (constraint, room) in limits.iter().enumerate() {
                if let Some(room) = *room {
                    let stop = FlowStop::Resource(constraint as u32);
                    filling.limit(constraint, FillLimit { room, stop });
                }
            }
            let count = network.flows();
            let mut rates = FlowRates { grains: vec![0; count], stops: vec![None; count] };
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
