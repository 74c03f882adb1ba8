//! Progressive filling: all flows rise together in proportion to their weights until a limit is full; the flows on it
//! freeze, the others rise on.
//!
//! The level is the common rate per weight: a flow of weight w has w·level. A limit with room m left for flows of total
//! weight W fills at level m/W. Levels are compared as integer fractions, without rounding. A flow frozen at m/W gets
//! ⌊w·m/W⌋ grains; the remainder stays available to its other limits.
//!
//! A flow may start with a rate it already holds (a lower bound). It joins the filling at level hold/w, where the level
//! would give it more.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::network::FlowNetwork;
use crate::weights::SUM_BITS;

/// A flow that takes part in a filling.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowDemand {
    pub(crate) flow: u32,
    /// Share of the level, above zero.
    pub(crate) weight: u64,
    /// Grains that the flow already holds and keeps; the limits' rooms exclude them.
    pub(crate) hold: u128,
}

/// Final rate of a flow, hold included, and the limit at which it froze.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlowRate {
    pub(crate) grains: u128,
    pub(crate) limit: u32,
}

/// Level at which a limit fills. A heap entry may be outdated, but then its level is too low, never too high.
#[derive(Debug, Clone, Copy)]
struct Saturation {
    /// ⌊2⁶⁰·room/weight⌋, which usually decides a comparison.
    level: u128,
    room: u128,
    weight: u64,
    limit: u32,
    /// Version of the limit; an entry with an older one was superseded.
    version: u32,
}

impl Saturation {
    fn of(number: u32, limit: &LimitState) -> Self {
        let LimitState { room, weight, version, .. } = *limit;
        Self {
            level: (room << SUM_BITS) / u128::from(weight),
            room,
            weight,
            limit: number,
            version,
        }
    }
}

impl Ord for Saturation {
    fn cmp(&self, other: &Self) -> Ordering {
        self.level
            .cmp(&other.level)
            .then_with(|| compare((self.room, self.weight), (other.room, other.weight)))
            .then(self.limit.cmp(&other.limit))
            .then(self.version.cmp(&other.version))
    }
}

impl PartialOrd for Saturation {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Saturation {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Saturation {}

/// Compares levels room/weight. Rooms below 2^67 and weights below 2^60 fit 128 bits.
fn compare(left: (u128, u64), right: (u128, u64)) -> Ordering {
    (left.0 * u128::from(right.1)).cmp(&(right.0 * u128::from(left.1)))
}

#[derive(Clone, Copy)]
struct LimitState {
    room: u128,
    weight: u64,
    version: u32,
    is_open: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FillPhase {
    Frozen,
    Holding,
    Rising,
}

struct Filling<'a> {
    network: &'a FlowNetwork,
    limits: Vec<LimitState>,
    /// Index among the demands of the filling, and phase, of each flow.
    flows: Vec<(u32, FillPhase)>,
    heap: BinaryHeap<Reverse<Saturation>>,
    /// Limits with one flow, whose levels never change, sorted descending; faster than a heap.
    single_flow: Vec<Saturation>,
}

/// Fills. `rooms` has the grains left of each limit, or none for a limit that does not apply. Results are in the order
/// of `demands`. Every flow must have a limit that applies.
pub(crate) fn fill(
    network: &FlowNetwork,
    rooms: &[Option<u128>],
    demands: &[FlowDemand],
) -> Vec<FlowRate> {
    let limit = |room: &Option<u128>| LimitState {
        room: room.unwrap_or(0),
        weight: 0,
        version: 0,
        is_open: room.is_some(),
    };
    let mut filling = Filling {
        network,
        limits: rooms.iter().map(limit).collect(),
        flows: vec![(0, FillPhase::Frozen); network.flows()],
        heap: BinaryHeap::new(),
        single_flow: Vec::new(),
    };
    let mut holding: Vec<&FlowDemand> = Vec::new();
    for (place, demand) in demands.iter().enumerate() {
        let phase = if demand.hold == 0 { FillPhase::Rising } else { FillPhase::Holding };
        filling.flows[demand.flow as usize] = (place as u32, phase);
        if phase == FillPhase::Rising {
            for limit in network.limits_of(demand.flow) {
                filling.limits[*limit as usize].weight += demand.weight;
            }
        } else {
            holding.push(demand);
        }
    }
    holding
        .sort_by(|a, b| compare((a.hold, a.weight), (b.hold, b.weight)).then(a.flow.cmp(&b.flow)));
    let mut first = Vec::with_capacity(rooms.len());
    for (number, limit) in filling.limits.iter().enumerate() {
        if limit.is_open && limit.weight > 0 {
            let full = Saturation::of(number as u32, limit);
            match network.flows_of(full.limit) {
                [_] => filling.single_flow.push(full),
                _ => first.push(Reverse(full)),
            }
        }
    }
    filling.heap = BinaryHeap::from(first);
    filling.single_flow.sort_unstable_by(|a, b| b.cmp(a));
    filling.run(demands, &holding)
}

impl Filling<'_> {
    fn run(mut self, demands: &[FlowDemand], holding: &[&FlowDemand]) -> Vec<FlowRate> {
        let start = |demand: &FlowDemand| FlowRate { grains: demand.hold, limit: u32::MAX };
        let mut rates: Vec<FlowRate> = demands.iter().map(start).collect();
        let mut holding = holding.iter().peekable();
        loop {
            let (multi_flow, single_flow) = (self.next_multi_flow(), self.next_single_flow());
            let is_single_flow = single_flow
                .is_some_and(|single_flow| multi_flow.is_none_or(|other| single_flow < other));
            let next = if is_single_flow { single_flow } else { multi_flow };
            if let Some(demand) = holding.peek() {
                let before = next.is_none_or(|full| {
                    compare((demand.hold, demand.weight), (full.room, full.weight)).is_le()
                });
                if before {
                    self.start_rising(demand);
                    holding.next();
                    continue;
                }
            }
            let Some(full) = next else { return rates };
            // The entry leaves its list when it comes up again and its limit is closed.
            self.freeze(full, demands, &mut rates);
        }
    }

    fn next_single_flow(&mut self) -> Option<Saturation> {
        loop {
            let full = *self.single_flow.last()?;
            let limit = &self.limits[full.limit as usize];
            if limit.is_open && limit.weight > 0 {
                return Some(full);
            }
            self.single_flow.pop();
        }
    }

    /// Returns the first limit to fill among those with several flows, and leaves it in the heap.
    fn next_multi_flow(&mut self) -> Option<Saturation> {
        loop {
            let mut top = self.heap.peek_mut()?;
            let entry = top.0;
            let limit = &self.limits[entry.limit as usize];
            if !limit.is_open || limit.version != entry.version || limit.weight == 0 {
                PeekMut::pop(top);
            } else if limit.room != entry.room || limit.weight != entry.weight {
                top.0 = Saturation::of(entry.limit, limit);
            } else {
                return Some(entry);
            }
        }
    }

    fn start_rising(&mut self, demand: &FlowDemand) {
        let (_, phase) = &mut self.flows[demand.flow as usize];
        if *phase != FillPhase::Holding {
            return;
        }
        *phase = FillPhase::Rising;
        for number in self.network.limits_of(demand.flow) {
            let limit = &mut self.limits[*number as usize];
            if !limit.is_open {
                continue;
            }
            // The level at which it fills falls, but never below the present level.
            limit.room += demand.hold;
            limit.weight += demand.weight;
            limit.version += 1;
            self.heap.push(Reverse(Saturation::of(*number, limit)));
        }
    }

    fn freeze(&mut self, full: Saturation, demands: &[FlowDemand], rates: &mut [FlowRate]) {
        self.limits[full.limit as usize].is_open = false;
        let network = self.network;
        for flow in network.flows_of(full.limit) {
            let (place, phase) = &mut self.flows[*flow as usize];
            let place = *place as usize;
            match std::mem::replace(phase, FillPhase::Frozen) {
                FillPhase::Frozen => {}
                FillPhase::Holding => rates[place].limit = full.limit,
                FillPhase::Rising => {
                    let weight = demands[place].weight;
                    let grains = u128::from(weight) * full.room / u128::from(full.weight);
                    rates[place] = FlowRate { grains, limit: full.limit };
                    for number in network.limits_of(*flow) {
                        let limit = &mut self.limits[*number as usize];
                        if limit.is_open {
                            limit.room -= grains;
                            limit.weight -= weight;
                        }
                    }
                }
            }
        }
    }
}
