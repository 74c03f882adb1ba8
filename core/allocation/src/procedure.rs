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
//! with the weight divided in proportion to the rates and shifted to the paths on which it displaces richer demands,
//! until `Policy::passes` or a fixed point.

use std::ops::Range;

use crate::fill::{FillLimit, Filling, FlowRates};
use crate::network::{FlowNetwork, FlowStop, grains};
use crate::paths::{PathFractions, WeightShift};
use crate::problem::Policy;
use crate::weights::{ExactFraction, to_integers};

/// Largest number of passes with which weight follows rates alone.
const PASSES_BY_RATE_ALONE: u16 = 6;
/// First pass that shifts weight by the ratio of levels, not by its square.
const FIRST_PASS_BY_RATIO: u16 = 4;
/// First pass that goes halfway: paths that displace each other would alternate otherwise.
const FIRST_PASS_HALFWAY: u16 = 6;

/// Solves a component: in one pass where each demand has one path, else in all passes of the policy.
pub(crate) fn solve(network: &FlowNetwork, policy: Policy, keeps_stages: bool) -> Solution {
    let mut procedure = Procedure::new(network, policy, keeps_stages);
    procedure.run_rounds();
    if (0..network.demands.len()).all(|demand| network.flows_of_demand(demand).len() < 2) {
        return procedure.solution();
    }
    let follows_rates_alone = policy.passes <= PASSES_BY_RATE_ALONE;
    let mut before = Vec::new();
    for pass in 1..policy.passes {
        let shift = if follows_rates_alone {
            WeightShift::None
        } else if pass < FIRST_PASS_BY_RATIO {
            WeightShift::Square
        } else if pass < FIRST_PASS_HALFWAY {
            WeightShift::Ratio
        } else {
            WeightShift::Halfway
        };
        before.clone_from(&procedure.rates.grains);
        procedure.rebalance(shift);
        procedure.run_rounds();
        if is_converged(&before, &procedure.rates.grains) {
            return procedure.solution();
        }
    }
    if !follows_rates_alone && procedure.give_up() {
        procedure.run_rounds();
    }
    procedure.solution()
}

/// Solves a region of a component: all flows outside keep their rates, and only demands at the change divide their
/// weight anew.
pub(crate) fn solve_region(
    network: &FlowNetwork,
    policy: Policy,
    fractions: PathFractions,
    surroundings: &Surroundings,
) -> Solution {
    let mut procedure = Procedure::new(network, policy, true);
    procedure.fractions = fractions;
    procedure.surroundings = Some(surroundings);
    procedure.run_rounds();
    if surroundings.divides.contains(&true) {
        for shift in [WeightShift::Square, WeightShift::Halfway] {
            procedure.rebalance(shift);
            procedure.run_rounds();
        }
    }
    procedure.solution()
}

/// True if no flow moved by more than 1/1000 of its rate.
fn is_converged(before: &[u128], after: &[u128]) -> bool {
    before.iter().zip(after).all(|(a, b)| a.abs_diff(*b) * 1000 <= *a)
}

/// Round of the procedure, with the number of its tier among those with demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FillRound {
    Guarantees,
    ClassFloors,
    TierFloor(usize),
    Shares(usize),
    Idle(usize),
}

/// Rates of a flow, or sums of rates, in grains: after floors, the floor of its tier, shares, and idle capacity.
pub(crate) type StageRates = [u128; STAGE_COUNT];
/// Rounds of the procedure whose rates [`StageRates`] has.
pub(crate) const STAGE_COUNT: usize = 4;

/// Rates of all flows, and the state from which a region is solved later.
pub(crate) struct Solution {
    pub(crate) rates: FlowRates,
    pub(crate) fractions: PathFractions,
    /// Rates after all stages but the last; empty where a stage changed none.
    stages: [Vec<u128>; STAGE_COUNT - 1],
}

impl Solution {
    pub(crate) fn stages_of(&self, flow: usize) -> StageRates {
        let mut rates = [0; STAGE_COUNT];
        let mut last = 0;
        for (rate, stage) in rates.iter_mut().zip(&self.stages) {
            last = stage.get(flow).copied().unwrap_or(last);
            *rate = last;
        }
        rates[STAGE_COUNT - 1] = self.rates.grains[flow];
        rates
    }
}

/// Use of a region's constraints by the flows around it, which keep their rates.
#[derive(Debug)]
pub(crate) struct Surroundings {
    /// First tier with demands.
    pub(crate) first_tier: u8,
    /// Tiers in the order of `tier_floors`.
    pub(crate) tiers: Vec<u8>,
    /// Use of each class of the region.
    pub(crate) classes: Vec<StageRates>,
    /// Use of each resource of the region.
    pub(crate) resources: Vec<u128>,
    /// Use of each resource of the region by each tier after the round of its floor.
    pub(crate) tier_floors: Vec<u128>,
    /// True for a demand that divides its weight anew.
    pub(crate) divides: Vec<bool>,
}

impl Surroundings {
    /// Returns the use of a resource by a tier after the round of its floor.
    fn tier_floor_use(&self, resource: usize, tier: u8) -> u128 {
        let at = self.tiers.iter().position(|of| *of == tier);
        at.map_or(0, |at| self.tier_floors[resource * self.tiers.len() + at])
    }
}

struct Procedure<'a> {
    network: &'a FlowNetwork,
    policy: Policy,
    /// None if the network is a whole component.
    surroundings: Option<&'a Surroundings>,
    keeps_stages: bool,
    stages: [Vec<u128>; STAGE_COUNT - 1],
    /// Share of each resource that is the floor of a tier, in grains.
    tier_floors: Vec<u128>,
    /// Weight of each demand for shares.
    weights: Vec<u64>,
    /// Weight of each demand for guarantees, 0 without one; empty if there are none.
    guarantees: Vec<u64>,
    /// Weight of each demand for class floors, 0 without one; empty if there are none.
    floors: Vec<u64>,
    fractions: PathFractions,
    /// The same weights for each flow, in this pass.
    flow_weights: Vec<u64>,
    flow_guarantees: Vec<u64>,
    flow_floors: Vec<u64>,
    filling: Filling<'a>,
    rates: FlowRates,
    /// Rate of each flow after the round of guarantees; empty if there are none.
    promised: Vec<u128>,
    /// Grains that the flows of each class and resource use.
    used: Vec<u128>,
}

impl<'a> Procedure<'a> {
    fn new(network: &'a FlowNetwork, policy: Policy, keeps_stages: bool) -> Self {
        // The demand's fraction of a quantity of its class.
        let of_class = |of: &dyn Fn(usize) -> u64, alone: u64| {
            let fraction = |class: Option<u32>, weight: u32| {
                let members = |class: usize| network.classes[class].members_weight;
                let (of, under) =
                    class.map_or((alone, 1), |class| (of(class as usize), members(class as usize)));
                ExactFraction { over: u128::from(of) * u128::from(weight), under }
            };
            let demands = network.demands.iter();
            demands.map(|demand| fraction(demand.class, demand.weight)).collect::<Vec<_>>()
        };
        let weight = |class: usize| u64::from(network.classes[class].weight);
        let weights = to_integers(&of_class(&weight, 1));
        // Weights for a round in which not all demands take part.
        let some = |fractions: &[ExactFraction]| {
            if fractions.iter().all(|fraction| fraction.over == 0) {
                return Vec::new();
            }
            let mut weights = to_integers(fractions);
            for (weight, fraction) in weights.iter_mut().zip(fractions) {
                if fraction.over == 0 {
                    *weight = 0;
                }
            }
            weights
        };
        let guarantee = |guarantee| ExactFraction { over: u128::from(guarantee), under: 1 };
        let guarantees: Vec<_> =
            network.demands.iter().map(|demand| guarantee(demand.guarantee)).collect();
        let floors = of_class(&|class| network.classes[class].floor, 0);
        let tier_floor = |capacity: &u128| capacity * u128::from(policy.tier_floor_permille) / 1000;
        Self {
            network,
            policy,
            surroundings: None,
            keeps_stages,
            stages: Default::default(),
            tier_floors: network.capacities.iter().map(tier_floor).collect(),
            weights,
            guarantees: some(&guarantees),
            floors: some(&floors),
            fractions: PathFractions::even(network),
            flow_weights: Vec::new(),
            flow_guarantees: Vec::new(),
            flow_floors: Vec::new(),
            filling: Filling::new(network),
            rates: FlowRates {
                grains: vec![0; network.flows()],
                stops: vec![None; network.flows()],
            },
            promised: Vec::new(),
            used: vec![0; network.constraints() - network.demands.len()],
        }
    }

    fn rebalance(&mut self, shift: WeightShift) {
        let divides = self.surroundings.map(|around| around.divides.as_slice());
        self.fractions.rebalance(self.network, &self.rates, &self.weights, shift, divides);
    }

    fn give_up(&mut self) -> bool {
        self.fractions.give_up(self.network, &self.rates, &self.weights)
    }

    /// Runs all rounds with the present division of weights.
    fn run_rounds(&mut self) {
        let (network, fractions) = (self.network, &self.fractions);
        fractions.divide(network, &self.weights, &mut self.flow_weights);
        fractions.divide(network, &self.guarantees, &mut self.flow_guarantees);
        fractions.divide(network, &self.floors, &mut self.flow_floors);
        self.rates.grains.fill(0);
        self.rates.stops.fill(None);
        self.used.fill(0);
        self.promised.clear();
        self.stages.iter_mut().for_each(Vec::clear);
        if !self.guarantees.is_empty() {
            self.run_round(FillRound::Guarantees);
            self.promised.clone_from(&self.rates.grains);
            self.keep_stage(0);
        }
        if !self.floors.is_empty() {
            self.run_round(FillRound::ClassFloors);
            self.keep_stage(0);
        }
        let tiers = network.tiers.len();
        if (0..tiers).any(|tier| self.has_tier_floor(tier)) {
            for tier in 0..tiers {
                if self.has_tier_floor(tier) {
                    self.run_round(FillRound::TierFloor(tier));
                }
            }
            self.keep_stage(1);
        }
        (0..tiers).for_each(|tier| self.run_round(FillRound::Shares(tier)));
        self.keep_stage(2);
        let is_at_mark = |stop: &Option<FlowStop>| matches!(stop, Some(FlowStop::Mark(_)));
        for tier in 0..tiers {
            let flows = network.flows_of_demands(&network.tiers[tier].demands);
            if self.rates.stops[flows].iter().any(is_at_mark) {
                self.run_round(FillRound::Idle(tier));
            }
        }
    }

    /// True for all tiers but the first, if tiers have floors.
    fn has_tier_floor(&self, tier: usize) -> bool {
        let tiers = &self.network.tiers;
        let first = self.surroundings.map_or(tiers[0].tier, |around| around.first_tier);
        self.policy.tier_floor_permille > 0 && tiers[tier].tier != first
    }

    fn keep_stage(&mut self, stage: usize) {
        if self.keeps_stages {
            self.stages[stage].clone_from(&self.rates.grains);
        }
    }

    fn solution(self) -> Solution {
        Solution { rates: self.rates, fractions: self.fractions, stages: self.stages }
    }

    fn run_round(&mut self, round: FillRound) {
        let network = self.network;
        let tiers = match round {
            FillRound::Guarantees | FillRound::ClassFloors => 0..network.tiers.len(),
            FillRound::TierFloor(tier) | FillRound::Shares(tier) | FillRound::Idle(tier) => {
                tier..tier + 1
            }
        };
        if tiers.is_empty() {
            return;
        }
        match round {
            FillRound::Shares(tier) if self.has_tier_floor(tier) => self.filling.start_next(tier),
            _ => self.filling.start(tiers.clone()),
        }
        let demands =
            network.tiers[tiers.start].demands.start..network.tiers[tiers.end - 1].demands.end;
        self.add_demands(round, demands);
        let tier_used = self.tier_used(round);
        let tier = network.tiers[tiers.start].tier;
        for class in 0..network.classes.len() {
            if let Some(limit) = self.class_limit(round, class) {
                self.filling.limit(network.demands.len() + class, limit);
            }
        }
        for (resource, capacity) in network.capacities.iter().enumerate() {
            let mut used = self.used[network.classes.len() + resource];
            if let Some(around) = self.surroundings {
                used += around.resources[resource];
            }
            let mut room = capacity.saturating_sub(used);
            if let FillRound::TierFloor(_) = round {
                let used = tier_used.get(resource).copied().unwrap_or_default()
                    + self.filling.held(network.first_resource() + resource)
                    + self.surroundings.map_or(0, |all| all.tier_floor_use(resource, tier));
                room = room.min(self.tier_floors[resource].saturating_sub(used));
            }
            let stop = FlowStop::Resource(resource as u32);
            self.filling.limit(network.first_resource() + resource, FillLimit { room, stop });
        }
        // A mark remains the bottleneck if less than 1 bit/s is available above it.
        let least = if let FillRound::Idle(_) = round { grains(1) } else { 0 };
        if let FillRound::TierFloor(_) = round {
            self.filling.run_first(&mut self.rates, least);
        } else {
            self.filling.run(&mut self.rates, least);
        }
        for (number, used) in self.used.iter_mut().enumerate() {
            *used = used.wrapping_add(self.filling.growth(network.demands.len() + number));
        }
    }

    /// Adds these demands and their flows to the filling.
    fn add_demands(&mut self, round: FillRound, demands: Range<usize>) {
        let weights = match round {
            FillRound::Guarantees => &self.flow_guarantees,
            FillRound::ClassFloors => &self.flow_floors,
            _ => &self.flow_weights,
        };
        let are_held = matches!(round, FillRound::TierFloor(_) | FillRound::Shares(_));
        let only_marked = matches!(round, FillRound::Idle(_));
        for demand in demands {
            let terms = &self.network.demands[demand];
            let limit = match round {
                FillRound::Guarantees => Some(terms.guarantee),
                _ => terms.limit,
            };
            // What the demand has besides what its flows hold.
            let mut kept = 0;
            let (mut weight, mut held) = (0, 0);
            let flows = self.network.flows_of_demand(demand);
            let promised = self.promised.get(flows.clone()).unwrap_or_default();
            let of = self.rates.grains[flows.clone()].iter_mut().zip(&weights[flows.clone()]);
            for (place, (rate, flow_weight)) in of.enumerate() {
                let flow = flows.start + place;
                let hold = if are_held {
                    *rate - promised.get(place).copied().unwrap_or_default()
                } else {
                    0
                };
                *rate -= hold;
                kept += *rate;
                let takes_part =
                    !only_marked || matches!(self.rates.stops[flow], Some(FlowStop::Mark(_)));
                let flow_weight = if takes_part { *flow_weight } else { 0 };
                self.filling.add(flow, flow_weight, hold);
                if flow_weight > 0 {
                    weight += flow_weight;
                    held += hold;
                }
            }
            let limit = limit.map(|limit| grains(limit) - kept);
            self.filling.add_demand(demand, weight, held, limit);
        }
        self.filling.sum_flows();
    }

    /// Returns what guarantees of a tier use of each resource, for the tier's floor; empty if they use nothing.
    fn tier_used(&self, round: FillRound) -> Vec<u128> {
        let FillRound::TierFloor(tier) = round else { return Vec::new() };
        if self.promised.is_empty() {
            return Vec::new();
        }
        let network = self.network;
        let mut used = vec![0; network.capacities.len()];
        for flow in network.flows_of_demands(&network.tiers[tier].demands) {
            for resource in network.resources_of(flow) {
                used[*resource as usize - network.first_resource()] += self.promised[flow];
            }
        }
        used
    }

    /// Returns the lowest limit of a class that applies in a round; of equal ones the floor, then the cap.
    fn class_limit(&self, round: FillRound, class: usize) -> Option<FillLimit> {
        let terms = &self.network.classes[class];
        let number = class as u32;
        // Use by flows outside the region, up to which a limit is counted.
        let [floors, _, shares, all] =
            self.surroundings.map_or(StageRates::default(), |around| around.classes[class]);
        let floor = terms.floor;
        let floor = (floor > 0).then_some((floor, floors, FlowStop::ClassFloor(number)));
        let cap = terms.cap.map(|cap| (cap, all, FlowStop::ClassCap(number)));
        let mark = terms.mark.map(|mark| (mark, shares, FlowStop::Mark(number)));
        let limits = match round {
            FillRound::Guarantees | FillRound::Idle(_) => [None, cap, None],
            FillRound::ClassFloors => [floor, cap, mark],
            FillRound::TierFloor(_) | FillRound::Shares(_) => [None, cap, mark],
        };
        let used = self.used[class];
        let room = |(limit, outside, stop): (u64, u128, FlowStop)| FillLimit {
            room: grains(limit).saturating_sub(used + outside),
            stop,
        };
        let limits = limits.into_iter().flatten().map(room);
        limits.min_by_key(|limit| limit.room)
    }
}
