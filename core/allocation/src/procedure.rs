//! The whole procedure over one component: guarantees, class floors, tier floors, shares tier by tier under soft marks,
//! and finally the capacity that marks leave idle.
//!
//! | round | flows that rise | weight | stopped by, beside demands, caps and resources |
//! |---|---|---|---|
//! | guarantees | demands with a guarantee | guarantee | guarantee |
//! | floors | classes with a floor | floor, divided among demands | floor of the class |
//! | tier floors | each tier but the first, in order | weight | the tier's share of each resource; marks |
//! | shares | each tier, in order | weight | marks |
//! | idle | flows stopped by marks, tier by tier | weight | |
//!
//! Guarantees come on top of shares. Floors of classes and tiers are lower bounds: a demand rises beyond them once the
//! level of its tier gives it more.
//!
//! A demand with several paths is one flow per path. Its weight is first divided evenly; then the procedure is repeated
//! with the weight divided in proportion to the rates, until `Policy::passes` or a fixed point.

use std::collections::BTreeSet;

use crate::fill::{FlowDemand, fill};
use crate::network::{FlowNetwork, LimitKind, grains};
use crate::problem::Policy;
use crate::weights::{ExactFraction, SUM_BITS, to_integers};

/// Rate of a flow in grains, and the limit that stopped it; none for a path that was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FlowShare {
    pub(crate) grains: u128,
    pub(crate) limit: Option<u32>,
}

/// Passes in which weight follows rates alone.
const PASSES_BY_RATE_ALONE: u16 = 6;
/// Smallest fraction of its demand that a path keeps while passes last, as one over this.
const PATH_FRACTION_MIN_DENOMINATOR: u128 = 1024;
/// Passes after which a path may be given up.
const PASSES_BEFORE_GIVING_UP: u16 = 8;

/// Returns the rates of all flows.
pub(crate) fn solve(network: &FlowNetwork, policy: Policy) -> Vec<FlowShare> {
    let mut procedure = Procedure::new(network, policy);
    let mut flows = procedure.run_rounds();
    if (0..network.demands.len()).all(|demand| network.flows_of_demand(demand).len() < 2) {
        return flows;
    }
    let mut is_plain = true;
    for pass in 1..policy.passes {
        is_plain &= pass < PASSES_BY_RATE_ALONE;
        procedure.fractions = procedure.rebalanced(&flows, is_plain);
        let next = procedure.run_rounds();
        let is_steady = is_converged(&flows, &next);
        flows = next;
        if is_steady && !is_plain {
            return flows;
        }
        is_plain &= !is_steady;
    }
    if policy.passes >= PASSES_BEFORE_GIVING_UP && procedure.give_up(&flows) {
        flows = procedure.run_rounds();
    }
    flows
}

/// True if no flow moved by more than 1/1000 of its rate.
fn is_converged(before: &[FlowShare], after: &[FlowShare]) -> bool {
    let near = |(a, b): (&FlowShare, &FlowShare)| a.grains.abs_diff(b.grains) * 1000 <= a.grains;
    before.iter().zip(after).all(near)
}

/// Fraction of a demand's weight on one path.
#[derive(Debug, Clone, Copy)]
struct PathFraction {
    over: u128,
    under: u128,
}

struct Procedure<'a> {
    network: &'a FlowNetwork,
    policy: Policy,
    /// Tiers with demands, in order of precedence.
    tiers: Vec<u8>,
    /// Weight of each demand for shares.
    weights: Vec<u64>,
    /// Weight of each demand for guarantees; empty if there are none.
    guarantees: Vec<u64>,
    /// Weight of each demand for class floors; empty if there are none.
    floors: Vec<u64>,
    /// Fraction of the demand's weight, for each flow.
    fractions: Vec<PathFraction>,
}

impl<'a> Procedure<'a> {
    fn new(network: &'a FlowNetwork, policy: Policy) -> Self {
        let mut members = vec![0; network.classes.len()];
        for demand in &network.demands {
            if let Some(class) = demand.class {
                members[class as usize] += u64::from(demand.weight);
            }
        }
        // The demand's fraction of a quantity of its class.
        let of_class = |of: &dyn Fn(usize) -> u64, alone: u64| {
            let fraction = |class: Option<u32>, weight: u32| {
                let (of, under) =
                    class.map_or((alone, 1), |class| (of(class as usize), members[class as usize]));
                ExactFraction { over: u128::from(of) * u128::from(weight), under }
            };
            let demands = network.demands.iter();
            demands.map(|demand| fraction(demand.class, demand.weight)).collect::<Vec<_>>()
        };
        let weight = |class: usize| u64::from(network.classes[class].weight);
        let weights = to_integers(&of_class(&weight, 1));
        let has =
            |kind: fn(&LimitKind) -> bool| network.limits.iter().any(|limit| kind(&limit.kind));
        let guarantees = if has(|kind| matches!(kind, LimitKind::Guarantee)) {
            let demands = network.demands.iter();
            let fraction = |guarantee: u64| ExactFraction { over: u128::from(guarantee), under: 1 };
            to_integers(&demands.map(|demand| fraction(demand.guarantee)).collect::<Vec<_>>())
        } else {
            Vec::new()
        };
        let floors = if has(|kind| matches!(kind, LimitKind::ClassFloor(_))) {
            to_integers(&of_class(&|class| network.classes[class].floor, 0))
        } else {
            Vec::new()
        };
        let tiers: BTreeSet<u8> =
            network.demands.iter().map(|demand| network.tier(demand)).collect();
        let mut fractions = Vec::with_capacity(network.flows());
        for demand in 0..network.demands.len() {
            let paths = network.flows_of_demand(demand).len();
            fractions
                .extend(std::iter::repeat_n(PathFraction { over: 1, under: paths as u128 }, paths));
        }
        let tiers = tiers.into_iter().collect();
        Self { network, policy, tiers, weights, guarantees, floors, fractions }
    }

    /// Returns the flows of the demands that take part, each with its fraction of the demand's weight.
    fn flow_demands(
        &self,
        weights: &[u64],
        hold: impl Fn(usize) -> u128,
        takes_part: impl Fn(usize) -> bool,
    ) -> Vec<FlowDemand> {
        let mut flow_demands = Vec::new();
        for (demand, whole) in weights.iter().enumerate() {
            if !takes_part(demand) {
                continue;
            }
            for flow in self.network.flows_of_demand(demand) {
                let PathFraction { over, under } = self.fractions[flow];
                // Below 2^60 times 2^67.
                let weight = (u128::from(*whole) * over / under) as u64;
                if over > 0 {
                    let (flow, hold) = (flow as u32, hold(flow));
                    flow_demands.push(FlowDemand { flow, weight: weight.max(1), hold });
                }
            }
        }
        flow_demands
    }

    /// Returns the grains left of each limit that applies in a round.
    fn rooms(&self, flows: &[FlowShare], counts: impl Fn(&LimitKind) -> bool) -> Vec<Option<u128>> {
        let used = self.used(flows, |_| true);
        let limits = self.network.limits.iter().zip(used);
        limits
            .map(|(limit, used)| counts(&limit.kind).then(|| limit.grains.saturating_sub(used)))
            .collect()
    }

    /// Returns the grains of each limit that the flows of some demands use.
    fn used(&self, flows: &[FlowShare], of: impl Fn(usize) -> bool) -> Vec<u128> {
        let mut used = vec![0; self.network.limits.len()];
        for demand in 0..self.network.demands.len() {
            if of(demand) {
                for flow in self.network.flows_of_demand(demand) {
                    let grains = flows[flow].grains;
                    if grains > 0 {
                        for limit in self.network.limits_of(flow as u32) {
                            used[*limit as usize] += grains;
                        }
                    }
                }
            }
        }
        used
    }

    fn run_rounds(&self) -> Vec<FlowShare> {
        let network = self.network;
        let mut flows = vec![FlowShare::default(); network.flows()];
        if !self.guarantees.is_empty() {
            let rooms = self.rooms(&flows, |kind| {
                !matches!(kind, LimitKind::ClassFloor(_) | LimitKind::Mark(_))
            });
            let has = |demand: usize| network.demands[demand].guarantee > 0;
            let flow_demands = self.flow_demands(&self.guarantees, |_| 0, has);
            fill_up(network, &rooms, &flow_demands, &mut flows);
        }
        let promised: Vec<u128> = flows.iter().map(|flow| flow.grains).collect();
        if !self.floors.is_empty() {
            let rooms = self.rooms(&flows, |kind| *kind != LimitKind::Guarantee);
            let has = |demand: usize| {
                let class = network.demands[demand].class;
                class.is_some_and(|class| network.classes[class as usize].floor > 0)
            };
            let flow_demands = self.flow_demands(&self.floors, |_| 0, has);
            fill_up(network, &rooms, &flow_demands, &mut flows);
        }
        let shares =
            |kind: &LimitKind| !matches!(kind, LimitKind::Guarantee | LimitKind::ClassFloor(_));
        let lower = self.tiers.iter().skip(1).filter(|_| self.policy.tier_floor_permille > 0);
        for (is_floor, tier) in
            lower.map(|tier| (true, tier)).chain(self.tiers.iter().map(|tier| (false, tier)))
        {
            let of_tier = |demand: usize| network.tier(&network.demands[demand]) == *tier;
            let mut rooms = self.rooms(&flows, shares);
            if is_floor {
                self.limit_to_tier_floor(&mut rooms, &self.used(&flows, of_tier));
            }
            let hold = |flow: usize| flows[flow].grains - promised[flow];
            let flow_demands = self.flow_demands(&self.weights, hold, of_tier);
            for flow_demand in &flow_demands {
                flows[flow_demand.flow as usize].grains -= flow_demand.hold;
            }
            fill_up(network, &rooms, &flow_demands, &mut flows);
        }
        self.distribute_idle(&mut flows);
        flows
    }

    /// Limits the rooms of a tier to its reserved share of each resource.
    fn limit_to_tier_floor(&self, rooms: &mut [Option<u128>], used: &[u128]) {
        let permille = u128::from(self.policy.tier_floor_permille);
        for ((room, limit), used) in rooms.iter_mut().zip(&self.network.limits).zip(used) {
            if let (LimitKind::Resource(_), Some(room)) = (limit.kind, room) {
                *room = (*room).min((limit.grains * permille / 1000).saturating_sub(*used));
            }
        }
    }

    /// Distributes what marks leave idle among the flows that they stopped.
    fn distribute_idle(&self, flows: &mut [FlowShare]) {
        let limits = &self.network.limits;
        let at_mark: Vec<bool> = flows
            .iter()
            .map(|flow| {
                flow.limit
                    .is_some_and(|limit| matches!(limits[limit as usize].kind, LimitKind::Mark(_)))
            })
            .collect();
        if !at_mark.contains(&true) {
            return;
        }
        for tier in &self.tiers {
            let of_tier = |demand: usize| self.network.tier(&self.network.demands[demand]) == *tier;
            let mut flow_demands = self.flow_demands(&self.weights, |_| 0, of_tier);
            flow_demands.retain(|flow_demand| at_mark[flow_demand.flow as usize]);
            let rooms = self.rooms(flows, |kind| {
                matches!(kind, LimitKind::Demand | LimitKind::ClassCap(_) | LimitKind::Resource(_))
            });
            let marks: Vec<FlowShare> = flows.to_vec();
            fill_up(self.network, &rooms, &flow_demands, flows);
            for (flow, before) in flows.iter_mut().zip(marks) {
                // The mark remains the bottleneck if less than 1 bit/s was available above it.
                if flow.grains < before.grains + grains(1) {
                    flow.limit = before.limit;
                }
            }
        }
    }

    /// Returns fractions in proportion to rates. Later passes also shift weight between paths to help poorer demands.
    fn rebalanced(&self, flows: &[FlowShare], is_plain: bool) -> Vec<PathFraction> {
        let mut fractions = self.fractions.clone();
        let levels = self.lowest_levels(flows);
        for demand in 0..self.network.demands.len() {
            let of = self.network.flows_of_demand(demand);
            let total: u128 = flows[of.clone()].iter().map(|flow| flow.grains).sum();
            if of.len() < 2 || total == 0 {
                continue;
            }
            for flow in of.clone() {
                let others =
                    of.clone().filter(|other| *other != flow && flows[*other].limit.is_some());
                let keeps = others.map(|other| {
                    let here = self.lowest_contending_level(&levels, flow, other);
                    let there = self.lowest_contending_level(&levels, other, flow);
                    // Between a quarter and all of it, in 256ths.
                    (here / (there / 256).max(1)).clamp(64, 256)
                });
                let keeps = if is_plain { 256 } else { keeps.min().unwrap_or(256) };
                // Above zero, as others may leave the path later.
                fractions[flow].over =
                    (flows[flow].grains * keeps / 256).max(total / PATH_FRACTION_MIN_DENOMINATOR);
            }
            let under: u128 = fractions[of.clone()].iter().map(|part| part.over).sum();
            for part in &mut fractions[of] {
                part.under = under.max(1);
            }
        }
        fractions
    }

    /// Returns the lowest level of a demand that waits for room on the limits of one flow, but not of the other.
    fn lowest_contending_level(&self, levels: &[u128], on: usize, off: usize) -> u128 {
        let off = self.network.limits_of(off as u32);
        let limits = self.network.limits_of(on as u32).iter().filter(|limit| !off.contains(limit));
        limits.map(|limit| levels[*limit as usize]).min().unwrap_or(u128::MAX)
    }

    /// Returns for each resource the lowest rate per weight among the demands that it stopped and that want more.
    fn lowest_levels(&self, flows: &[FlowShare]) -> Vec<u128> {
        let mut levels = vec![u128::MAX; self.network.limits.len()];
        for (demand, weight) in self.weights.iter().enumerate() {
            let of = self.network.flows_of_demand(demand);
            let rate: u128 = flows[of.clone()].iter().map(|flow| flow.grains).sum();
            let has_all = |limit: u64| rate + grains(of.len() as u64) > grains(limit);
            if self.network.demands[demand].limit.is_some_and(has_all) {
                continue;
            }
            // Below 2^73, of 64 paths.
            let level = (rate << (SUM_BITS - 8)) / u128::from(*weight);
            for limit in flows[of].iter().filter_map(|flow| flow.limit) {
                if let LimitKind::Resource(_) = self.network.limits[limit as usize].kind {
                    levels[limit as usize] = levels[limit as usize].min(level);
                }
            }
        }
        levels
    }

    /// Gives up paths with under 1/20 of their demand's rate that lost 1/100 of it in the last pass (they converge to
    /// zero as 1/passes), and paths with a negligible rate. True if there were any.
    fn give_up(&mut self, flows: &[FlowShare]) -> bool {
        let mut next = self.rebalanced(flows, false);
        let mut gave_up = false;
        // Fractions to 40 bits resolve 1/100 of 1/100.
        let share = |part: PathFraction| (part.over << 40) / part.under;
        for demand in 0..self.network.demands.len() {
            let of = self.network.flows_of_demand(demand);
            let mut lost = 0;
            for flow in of.clone() {
                let (now, before) = (next[flow], self.fractions[flow]);
                let falls = now.over * 20 < now.under && share(now) * 100 <= share(before) * 99;
                if falls || now.over * PATH_FRACTION_MIN_DENOMINATOR / 4 < now.under {
                    lost += now.over;
                    next[flow].over = 0;
                    gave_up = true;
                }
            }
            for part in &mut next[of] {
                part.under -= lost;
            }
        }
        self.fractions = next;
        gave_up
    }
}

/// Fills, and adds the increase to the flows; the limit that stops a flow replaces the former one.
fn fill_up(
    network: &FlowNetwork,
    rooms: &[Option<u128>],
    flow_demands: &[FlowDemand],
    flows: &mut [FlowShare],
) {
    for (flow_demand, rate) in flow_demands.iter().zip(fill(network, rooms, flow_demands)) {
        let flow = &mut flows[flow_demand.flow as usize];
        flow.grains += rate.grains;
        flow.limit = Some(rate.limit);
    }
}
