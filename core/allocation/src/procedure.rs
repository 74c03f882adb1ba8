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

/// Returns the rates of all flows in grains, and the limits that stopped them.
pub(crate) fn solve(network: &FlowNetwork, policy: Policy) -> FlowRates {
    let mut procedure = Procedure::new(network, policy);
    procedure.run_rounds();
    if (0..network.demands.len()).all(|demand| network.flows_of_demand(demand).len() < 2) {
        return procedure.rates;
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
            return procedure.rates;
        }
    }
    if !follows_rates_alone && procedure.give_up() {
        procedure.run_rounds();
    }
    procedure.rates
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

struct Procedure<'a> {
    network: &'a FlowNetwork,
    policy: Policy,
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
        Self {
            network,
            policy,
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
        self.fractions.rebalance(self.network, &self.rates, &self.weights, shift);
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
        if !self.guarantees.is_empty() {
            self.run_round(FillRound::Guarantees);
            self.promised.clone_from(&self.rates.grains);
        }
        if !self.floors.is_empty() {
            self.run_round(FillRound::ClassFloors);
        }
        let tiers = network.tiers.len();
        if self.policy.tier_floor_permille > 0 {
            (1..tiers).for_each(|tier| self.run_round(FillRound::TierFloor(tier)));
        }
        (0..tiers).for_each(|tier| self.run_round(FillRound::Shares(tier)));
        let is_at_mark = |stop: &Option<FlowStop>| matches!(stop, Some(FlowStop::Mark(_)));
        if self.rates.stops.iter().any(is_at_mark) {
            (0..tiers).for_each(|tier| self.run_round(FillRound::Idle(tier)));
        }
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
        self.filling.start(tiers.clone());
        let demands =
            network.tiers[tiers.start].demands.start..network.tiers[tiers.end - 1].demands.end;
        self.add_flows(round, demands);
        let tier_used = self.tier_used(round);
        for class in 0..network.classes.len() {
            if let Some(limit) = self.class_limit(round, class) {
                self.filling.limit(network.demands.len() + class, limit);
            }
        }
        for (resource, capacity) in network.capacities.iter().enumerate() {
            let mut room = capacity.saturating_sub(self.used[network.classes.len() + resource]);
            if let FillRound::TierFloor(_) = round {
                let used = tier_used.get(resource).copied().unwrap_or_default()
                    + self.filling.held(network.first_resource() + resource);
                let share = capacity * u128::from(self.policy.tier_floor_permille) / 1000;
                room = room.min(share.saturating_sub(used));
            }
            let stop = FlowStop::Resource(resource as u32);
            self.filling.limit(network.first_resource() + resource, FillLimit { room, stop });
        }
        // A mark remains the bottleneck if less than 1 bit/s is available above it.
        let least = if let FillRound::Idle(_) = round { grains(1) } else { 0 };
        self.filling.run(&mut self.rates, least);
        for (number, used) in self.used.iter_mut().enumerate() {
            *used = used.wrapping_add(self.filling.growth(network.demands.len() + number));
        }
    }

    /// Adds the flows of these demands to the filling, and the limits of the demands.
    fn add_flows(&mut self, round: FillRound, demands: Range<usize>) {
        let weights = match round {
            FillRound::Guarantees => &self.flow_guarantees,
            FillRound::ClassFloors => &self.flow_floors,
            _ => &self.flow_weights,
        };
        for demand in demands {
            let terms = &self.network.demands[demand];
            let limit = match round {
                FillRound::Guarantees => Some(terms.guarantee),
                _ => terms.limit,
            };
            // What the demand has besides what its flows hold.
            let mut kept = 0;
            for flow in self.network.flows_of_demand(demand) {
                let rate = self.rates.grains[flow];
                let hold = match round {
                    FillRound::TierFloor(_) | FillRound::Shares(_) => {
                        rate - self.promised.get(flow).copied().unwrap_or_default()
                    }
                    _ => 0,
                };
                let takes_part = match round {
                    FillRound::Idle(_) => {
                        matches!(self.rates.stops[flow], Some(FlowStop::Mark(_)))
                    }
                    _ => true,
                };
                kept += rate - hold;
                self.rates.grains[flow] = rate - hold;
                self.filling.add(flow, if takes_part { weights[flow] } else { 0 }, hold);
            }
            if let Some(limit) = limit {
                let room = grains(limit) - kept - self.filling.held(demand);
                self.filling.limit(demand, FillLimit { room, stop: FlowStop::Demand });
            }
        }
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
        let floor = (terms.floor > 0).then_some((terms.floor, FlowStop::ClassFloor(number)));
        let cap = terms.cap.map(|cap| (cap, FlowStop::ClassCap(number)));
        let mark = terms.mark.map(|mark| (mark, FlowStop::Mark(number)));
        let limits = match round {
            FillRound::Guarantees | FillRound::Idle(_) => [None, cap, None],
            FillRound::ClassFloors => [floor, cap, mark],
            FillRound::TierFloor(_) | FillRound::Shares(_) => [None, cap, mark],
        };
        let used = self.used[class];
        let limits = limits
            .into_iter()
            .flatten()
            .map(|(limit, stop)| FillLimit { room: grains(limit).saturating_sub(used), stop });
        limits.min_by_key(|limit| limit.room)
    }
}
