//! Progressive filling: the rates of all flows rise together, each by its weight, until something is full; the flows
//! on it stay where they are, the others go on.
//!
//! The height to which everything has risen is the level; a flow of weight w has level·w. A limit with room m left
//! for flows of weight W together is full at level m/W. Levels are compared as fractions of integers, without
//! rounding. A flow that is frozen at m/W gets ⌊w·m/W⌋ grains; what rounding leaves stays with its other limits.
//!
//! A flow may hold something already and rise only once the level gives it more (level with a lower bound): it wakes
//! at the level hold/w.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::network::Network;
use crate::weights::SUM_BITS;

/// A flow that takes part in a filling.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Riser {
    pub(crate) flow: u32,
    /// Above zero.
    pub(crate) weight: u64,
    /// Grains that the limits' rooms do not hold any more, and that the flow keeps in any case.
    pub(crate) hold: u128,
}

/// What a flow has at the end: hold and increase together, and the limit at which it stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Risen {
    pub(crate) grains: u128,
    pub(crate) limit: u32,
}

/// When a limit is full; the heap's key may be older, and then it is lower than the truth.
#[derive(Debug, Clone, Copy)]
struct Full {
    /// ⌊2⁶⁰·room/weight⌋: mostly enough to compare.
    level: u128,
    room: u128,
    weight: u64,
    limit: u32,
    /// Of an entry that another one has replaced it is not the limit's.
    issue: u32,
}

impl Full {
    fn of(number: u32, limit: &Limit) -> Self {
        let Limit { room, weight, issue, .. } = *limit;
        Self { level: (room << SUM_BITS) / u128::from(weight), room, weight, limit: number, issue }
    }
}

impl Ord for Full {
    fn cmp(&self, other: &Self) -> Ordering {
        self.level
            .cmp(&other.level)
            .then_with(|| compare((self.room, self.weight), (other.room, other.weight)))
            .then(self.limit.cmp(&other.limit))
            .then(self.issue.cmp(&other.issue))
    }
}

impl PartialOrd for Full {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Full {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Full {}

/// Levels a/w: room below 2^67 and weights below 2^60 fit 128 bits.
fn compare(left: (u128, u64), right: (u128, u64)) -> Ordering {
    (left.0 * u128::from(right.1)).cmp(&(right.0 * u128::from(left.1)))
}

#[derive(Clone, Copy)]
struct Limit {
    room: u128,
    weight: u64,
    issue: u32,
    is_open: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Out,
    Holding,
    Rising,
}

struct Filling<'a> {
    network: &'a Network,
    limits: Vec<Limit>,
    /// Of each flow: where it is among the risers, and what it does.
    flows: Vec<(u32, State)>,
    heap: BinaryHeap<Reverse<Full>>,
    /// Limits of one flow alone, whose levels never change: the next one last. A heap is slower.
    alone: Vec<Full>,
}

/// Fills. `rooms` has grains left of each limit, or none for a limit that does not count this time. The result is in
/// the order of the risers; a flow that nothing stops is not one that is allowed here.
pub(crate) fn fill(network: &Network, rooms: &[Option<u128>], risers: &[Riser]) -> Vec<Risen> {
    let limit = |room: &Option<u128>| Limit {
        room: room.unwrap_or(0),
        weight: 0,
        issue: 0,
        is_open: room.is_some(),
    };
    let mut filling = Filling {
        network,
        limits: rooms.iter().map(limit).collect(),
        flows: vec![(0, State::Out); network.flows()],
        heap: BinaryHeap::new(),
        alone: Vec::new(),
    };
    let mut waking: Vec<&Riser> = Vec::new();
    for (place, riser) in risers.iter().enumerate() {
        let state = if riser.hold == 0 { State::Rising } else { State::Holding };
        filling.flows[riser.flow as usize] = (place as u32, state);
        if state == State::Rising {
            for limit in network.limits_of(riser.flow) {
                filling.limits[*limit as usize].weight += riser.weight;
            }
        } else {
            waking.push(riser);
        }
    }
    waking
        .sort_by(|a, b| compare((a.hold, a.weight), (b.hold, b.weight)).then(a.flow.cmp(&b.flow)));
    let mut first = Vec::with_capacity(rooms.len());
    for (number, limit) in filling.limits.iter().enumerate() {
        if limit.is_open && limit.weight > 0 {
            let full = Full::of(number as u32, limit);
            match network.flows_of(full.limit) {
                [_] => filling.alone.push(full),
                _ => first.push(Reverse(full)),
            }
        }
    }
    filling.heap = BinaryHeap::from(first);
    filling.alone.sort_unstable_by(|a, b| b.cmp(a));
    filling.run(risers, &waking)
}

impl Filling<'_> {
    fn run(mut self, risers: &[Riser], waking: &[&Riser]) -> Vec<Risen> {
        let start = |riser: &Riser| Risen { grains: riser.hold, limit: u32::MAX };
        let mut risen: Vec<Risen> = risers.iter().map(start).collect();
        let mut waking = waking.iter().peekable();
        loop {
            let (changing, alone) = (self.next_changing(), self.next_alone());
            let is_alone = alone.is_some_and(|alone| changing.is_none_or(|other| alone < other));
            let next = if is_alone { alone } else { changing };
            if let Some(riser) = waking.peek() {
                let before = next.is_none_or(|full| {
                    compare((riser.hold, riser.weight), (full.room, full.weight)).is_le()
                });
                if before {
                    self.wake(riser);
                    waking.next();
                    continue;
                }
            }
            let Some(full) = next else { return risen };
            // Taken off its list when it is closed and comes up again.
            self.freeze(full, risers, &mut risen);
        }
    }

    fn next_alone(&mut self) -> Option<Full> {
        loop {
            let full = *self.alone.last()?;
            let limit = &self.limits[full.limit as usize];
            if limit.is_open && limit.weight > 0 {
                return Some(full);
            }
            self.alone.pop();
        }
    }

    /// Of the limits of several flows the one that is full first, left in the heap.
    fn next_changing(&mut self) -> Option<Full> {
        loop {
            let mut top = self.heap.peek_mut()?;
            let entry = top.0;
            let limit = &self.limits[entry.limit as usize];
            if !limit.is_open || limit.issue != entry.issue || limit.weight == 0 {
                PeekMut::pop(top);
            } else if limit.room != entry.room || limit.weight != entry.weight {
                top.0 = Full::of(entry.limit, limit);
            } else {
                return Some(entry);
            }
        }
    }

    fn wake(&mut self, riser: &Riser) {
        let (_, state) = &mut self.flows[riser.flow as usize];
        if *state != State::Holding {
            return;
        }
        *state = State::Rising;
        for number in self.network.limits_of(riser.flow) {
            let limit = &mut self.limits[*number as usize];
            if !limit.is_open {
                continue;
            }
            // The level of its being full falls, though never below the level of now.
            limit.room += riser.hold;
            limit.weight += riser.weight;
            limit.issue += 1;
            self.heap.push(Reverse(Full::of(*number, limit)));
        }
    }

    fn freeze(&mut self, full: Full, risers: &[Riser], risen: &mut [Risen]) {
        self.limits[full.limit as usize].is_open = false;
        let network = self.network;
        for flow in network.flows_of(full.limit) {
            let (place, state) = &mut self.flows[*flow as usize];
            let place = *place as usize;
            match std::mem::replace(state, State::Out) {
                State::Out => {}
                State::Holding => risen[place].limit = full.limit,
                State::Rising => {
                    let weight = risers[place].weight;
                    let grains = u128::from(weight) * full.room / u128::from(full.weight);
                    risen[place] = Risen { grains, limit: full.limit };
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
