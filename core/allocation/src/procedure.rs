//! The whole procedure over one network: guarantees, floors of classes, floors of tiers, tiers from the highest on
//! under soft marks, and at last what marks keep idle.
//!
//! | round | who rises | by | until, beside demands, caps and resources |
//! |---|---|---|---|
//! | guarantees | demands with one | guarantee | guarantee |
//! | floors | classes with one | floor, divided | floor of the class |
//! | tier floors | each tier but the highest, from the highest on | weight | its share of each resource; marks |
//! | shares | each tier, from the highest on | weight | marks |
//! | idle | what marks stopped, tier by tier | weight | |
//!
//! Guarantees are had first, and a share of the rest on top. Floors of classes and of tiers are a lower bound: a
//! demand rises beyond them once the level of its tier gives it more.
//!
//! A demand with several paths is a flow on each. At first they divide its weight evenly; then the whole procedure is
//! done again with the weight divided as the rates were, as often as the policy allows or until nothing moves.

use std::collections::BTreeSet;

use crate::fill::{Riser, fill};
use crate::network::{Kind, Network, grains};
use crate::problem::Policy;
use crate::weights::{Fraction, SUM_BITS, to_integers};

/// What a flow gets, in grains, and the number of the limit that bound it; none for a path that was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flow {
    pub(crate) grains: u128,
    pub(crate) limit: Option<u32>,
}

/// Passes in which parts follow rates alone.
const PASSES_PLAIN: u16 = 6;
/// A path keeps at least one of so many parts while passes last.
const PART_LEAST: u128 = 1024;
/// Passes from which on a path may be given up.
const PASSES_TO_GIVE_UP: u16 = 8;

/// The rates of all flows.
pub(crate) fn solve(network: &Network, policy: Policy) -> Vec<Flow> {
    let mut round = Round::new(network, policy);
    let mut flows = round.all();
    if (0..network.demands.len()).all(|demand| network.flows_of_demand(demand).len() < 2) {
        return flows;
    }
    let mut is_plain = true;
    for pass in 1..policy.passes {
        is_plain &= pass < PASSES_PLAIN;
        round.parts = round.corrected(&flows, is_plain);
        let next = round.all();
        let is_steady = is_near(&flows, &next);
        flows = next;
        if is_steady && !is_plain {
            return flows;
        }
        is_plain &= !is_steady;
    }
    if policy.passes >= PASSES_TO_GIVE_UP && round.give_up(&flows) {
        flows = round.all();
    }
    flows
}

/// No flow moved by more than a 1000th of what it had.
fn is_near(before: &[Flow], after: &[Flow]) -> bool {
    let near = |(a, b): (&Flow, &Flow)| a.grains.abs_diff(b.grains) * 1000 <= a.grains;
    before.iter().zip(after).all(near)
}

/// What a flow's demand's weight is multiplied with: a part over the whole.
#[derive(Debug, Clone, Copy)]
struct Part {
    over: u128,
    under: u128,
}

struct Round<'a> {
    network: &'a Network,
    policy: Policy,
    /// Tiers that somebody is in, from the highest on.
    tiers: Vec<u8>,
    /// Of each demand, whether it takes part in shares, and by what.
    weights: Vec<u64>,
    /// The same for guarantees; empty where there are none.
    guarantees: Vec<u64>,
    /// The same for floors.
    floors: Vec<u64>,
    /// Of each flow.
    parts: Vec<Part>,
}

impl<'a> Round<'a> {
    fn new(network: &'a Network, policy: Policy) -> Self {
        let mut members = vec![0; network.classes.len()];
        for demand in &network.demands {
            if let Some(class) = demand.class {
                members[class as usize] += u64::from(demand.weight);
            }
        }
        // The demand's part of something of its class.
        let of_class = |of: &dyn Fn(usize) -> u64, alone: u64| {
            let fraction = |class: Option<u32>, weight: u32| {
                let (of, under) =
                    class.map_or((alone, 1), |class| (of(class as usize), members[class as usize]));
                Fraction { over: u128::from(of) * u128::from(weight), under }
            };
            let demands = network.demands.iter();
            demands.map(|demand| fraction(demand.class, demand.weight)).collect::<Vec<_>>()
        };
        let weight = |class: usize| u64::from(network.classes[class].weight);
        let weights = to_integers(&of_class(&weight, 1));
        let has = |kind: fn(&Kind) -> bool| network.limits.iter().any(|limit| kind(&limit.kind));
        let guarantees = if has(|kind| matches!(kind, Kind::Guarantee)) {
            let demands = network.demands.iter();
            let fraction = |guarantee: u64| Fraction { over: u128::from(guarantee), under: 1 };
            to_integers(&demands.map(|demand| fraction(demand.guarantee)).collect::<Vec<_>>())
        } else {
            Vec::new()
        };
        let floors = if has(|kind| matches!(kind, Kind::ClassFloor(_))) {
            to_integers(&of_class(&|class| network.classes[class].floor, 0))
        } else {
            Vec::new()
        };
        let tiers: BTreeSet<u8> =
            network.demands.iter().map(|demand| network.tier(demand)).collect();
        let mut parts = Vec::with_capacity(network.flows());
        for demand in 0..network.demands.len() {
            let paths = network.flows_of_demand(demand).len();
            parts.extend(std::iter::repeat_n(Part { over: 1, under: paths as u128 }, paths));
        }
        let tiers = tiers.into_iter().collect();
        Self { network, policy, tiers, weights, guarantees, floors, parts }
    }

    /// Flows of demands that pass, each with its part of the demand's weight.
    fn risers(
        &self,
        weights: &[u64],
        hold: impl Fn(usize) -> u128,
        takes_part: impl Fn(usize) -> bool,
    ) -> Vec<Riser> {
        let mut risers = Vec::new();
        for (demand, whole) in weights.iter().enumerate() {
            if !takes_part(demand) {
                continue;
            }
            for flow in self.network.flows_of_demand(demand) {
                let Part { over, under } = self.parts[flow];
                // Below 2^60 times 2^67.
                let weight = (u128::from(*whole) * over / under) as u64;
                if over > 0 {
                    let (flow, hold) = (flow as u32, hold(flow));
                    risers.push(Riser { flow, weight: weight.max(1), hold });
                }
            }
        }
        risers
    }

    /// What is left of each limit that counts in a round.
    fn rooms(&self, flows: &[Flow], counts: impl Fn(&Kind) -> bool) -> Vec<Option<u128>> {
        let used = self.used(flows, |_| true);
        let limits = self.network.limits.iter().zip(used);
        limits
            .map(|(limit, used)| counts(&limit.kind).then(|| limit.grains.saturating_sub(used)))
            .collect()
    }

    /// What the flows of some demands use of each limit.
    fn used(&self, flows: &[Flow], of: impl Fn(usize) -> bool) -> Vec<u128> {
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

    fn all(&self) -> Vec<Flow> {
        let network = self.network;
        let mut flows = vec![Flow::default(); network.flows()];
        if !self.guarantees.is_empty() {
            let rooms =
                self.rooms(&flows, |kind| !matches!(kind, Kind::ClassFloor(_) | Kind::Mark(_)));
            let has = |demand: usize| network.demands[demand].guarantee > 0;
            let risers = self.risers(&self.guarantees, |_| 0, has);
            raise(network, &rooms, &risers, &mut flows);
        }
        let promised: Vec<u128> = flows.iter().map(|flow| flow.grains).collect();
        if !self.floors.is_empty() {
            let rooms = self.rooms(&flows, |kind| *kind != Kind::Guarantee);
            let has = |demand: usize| {
                let class = network.demands[demand].class;
                class.is_some_and(|class| network.classes[class as usize].floor > 0)
            };
            let risers = self.risers(&self.floors, |_| 0, has);
            raise(network, &rooms, &risers, &mut flows);
        }
        let shares = |kind: &Kind| !matches!(kind, Kind::Guarantee | Kind::ClassFloor(_));
        let lower = self.tiers.iter().skip(1).filter(|_| self.policy.tier_floor_permille > 0);
        for (is_floor, tier) in
            lower.map(|tier| (true, tier)).chain(self.tiers.iter().map(|tier| (false, tier)))
        {
            let of_tier = |demand: usize| network.tier(&network.demands[demand]) == *tier;
            let mut rooms = self.rooms(&flows, shares);
            if is_floor {
                self.keep_to_floor(&mut rooms, &self.used(&flows, of_tier));
            }
            let hold = |flow: usize| flows[flow].grains - promised[flow];
            let risers = self.risers(&self.weights, hold, of_tier);
            for riser in &risers {
                flows[riser.flow as usize].grains -= riser.hold;
            }
            raise(network, &rooms, &risers, &mut flows);
        }
        self.idle(&mut flows);
        flows
    }

    /// Of each resource a tier has no more than its share for now.
    fn keep_to_floor(&self, rooms: &mut [Option<u128>], used: &[u128]) {
        let permille = u128::from(self.policy.tier_floor_permille);
        for ((room, limit), used) in rooms.iter_mut().zip(&self.network.limits).zip(used) {
            if let (Kind::Resource(_), Some(room)) = (limit.kind, room) {
                *room = (*room).min((limit.grains * permille / 1000).saturating_sub(*used));
            }
        }
    }

    /// What marks keep idle goes to those that they stopped.
    fn idle(&self, flows: &mut [Flow]) {
        let limits = &self.network.limits;
        let at_mark: Vec<bool> = flows
            .iter()
            .map(|flow| {
                flow.limit.is_some_and(|limit| matches!(limits[limit as usize].kind, Kind::Mark(_)))
            })
            .collect();
        if !at_mark.contains(&true) {
            return;
        }
        for tier in &self.tiers {
            let of_tier = |demand: usize| self.network.tier(&self.network.demands[demand]) == *tier;
            let mut risers = self.risers(&self.weights, |_| 0, of_tier);
            risers.retain(|riser| at_mark[riser.flow as usize]);
            let rooms = self.rooms(flows, |kind| {
                matches!(kind, Kind::Demand | Kind::ClassCap(_) | Kind::Resource(_))
            });
            let marks: Vec<Flow> = flows.to_vec();
            raise(self.network, &rooms, &risers, flows);
            for (flow, before) in flows.iter_mut().zip(marks) {
                // It is the mark that bounds it where there was next to nothing above it.
                if flow.grains < before.grains + grains(1) {
                    flow.limit = before.limit;
                }
            }
        }
    }

    /// Parts as the rates were. Later passes also move from one path to another what helps poorer demands than it harms.
    fn corrected(&self, flows: &[Flow], is_plain: bool) -> Vec<Part> {
        let mut parts = self.parts.clone();
        let levels = self.least_levels(flows);
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
                    let here = self.poorest(&levels, flow, other);
                    let there = self.poorest(&levels, other, flow);
                    // Between a quarter and all of it, in 256ths.
                    (here / (there / 256).max(1)).clamp(64, 256)
                });
                let keeps = if is_plain { 256 } else { keeps.min().unwrap_or(256) };
                // Never nothing: others may leave the path later.
                parts[flow].over = (flows[flow].grains * keeps / 256).max(total / PART_LEAST);
            }
            let under: u128 = parts[of.clone()].iter().map(|part| part.over).sum();
            for part in &mut parts[of] {
                part.under = under.max(1);
            }
        }
        parts
    }

    /// What the poorest has that waits for room on the limits of one flow, but not of the other.
    fn poorest(&self, levels: &[u128], on: usize, off: usize) -> u128 {
        let off = self.network.limits_of(off as u32);
        let limits = self.network.limits_of(on as u32).iter().filter(|limit| !off.contains(limit));
        limits.map(|limit| levels[*limit as usize]).min().unwrap_or(u128::MAX)
    }

    /// Of each resource, what the poorest demand has that it stopped and that wants more, by its weight.
    fn least_levels(&self, flows: &[Flow]) -> Vec<u128> {
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
                if let Kind::Resource(_) = self.network.limits[limit as usize].kind {
                    levels[limit as usize] = levels[limit as usize].min(level);
                }
            }
        }
        levels
    }

    /// Gives up paths that have under a 20th of their demand's rate and still lost a 100th of that in the last pass, as
    /// they go to nothing like one over the number of passes, and those that have next to nothing. Whether there are any.
    fn give_up(&mut self, flows: &[Flow]) -> bool {
        let mut next = self.corrected(flows, false);
        let mut is_any = false;
        // Shares to 40 bits: enough to see a hundredth of a hundredth.
        let share = |part: Part| (part.over << 40) / part.under;
        for demand in 0..self.network.demands.len() {
            let of = self.network.flows_of_demand(demand);
            let mut lost = 0;
            for flow in of.clone() {
                let (now, before) = (next[flow], self.parts[flow]);
                let falls = now.over * 20 < now.under && share(now) * 100 <= share(before) * 99;
                if falls || now.over * PART_LEAST / 4 < now.under {
                    lost += now.over;
                    next[flow].over = 0;
                    is_any = true;
                }
            }
            for part in &mut next[of] {
                part.under -= lost;
            }
        }
        self.parts = next;
        is_any
    }
}

/// Fills, and adds what the flows have now; where they stopped replaces where they had stopped before.
fn raise(network: &Network, rooms: &[Option<u128>], risers: &[Riser], flows: &mut [Flow]) {
    for (riser, risen) in risers.iter().zip(fill(network, rooms, risers)) {
        let flow = &mut flows[riser.flow as usize];
        flow.grains += risen.grains;
        flow.limit = Some(risen.limit);
    }
}
