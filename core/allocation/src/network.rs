//! A connected component with numbers instead of names: flows (a demand on one of its paths) and the constraints of each
//! flow.
//!
//! Amounts are in grains of 2⁻¹⁶ bit/s; a petabit per second is below 2⁶⁶ grains.

use std::ops::Range;

/// Grains per bit per second, as a power of two.
const GRAIN_BITS: u32 = 16;

/// Converts bits per second to grains.
pub(crate) const fn grains(bits_per_second: u64) -> u128 {
    (bits_per_second as u128) << GRAIN_BITS
}

/// Converts grains to bits per second, rounded down so that sums never exceed a capacity.
pub(crate) const fn bits_per_second(grains: u128) -> u64 {
    (grains >> GRAIN_BITS) as u64
}

/// Limit that stopped a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowStop {
    /// Guarantee of the demand, or the smaller of its request and cap.
    Demand,
    /// Floor of the class with this number; stops flows in the floor round only.
    ClassFloor(u32),
    /// Hard cap of the class with this number.
    ClassCap(u32),
    /// Soft high-water mark of the class with this number.
    Mark(u32),
    /// Capacity of the resource with this number.
    Resource(u32),
}

/// Terms of a class; rates in bits per second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClassTerms {
    pub(crate) weight: u32,
    /// Sum of the weights of its demands.
    pub(crate) members_weight: u64,
    pub(crate) floor: u64,
    pub(crate) mark: Option<u64>,
    pub(crate) cap: Option<u64>,
    pub(crate) tier: u8,
}

/// Terms of a demand; rates in bits per second.
#[derive(Debug, Clone)]
pub(crate) struct DemandTerms {
    pub(crate) class: Option<u32>,
    pub(crate) weight: u32,
    /// Smaller of request and cap.
    pub(crate) limit: Option<u64>,
    /// Bits per second, at most `limit`.
    pub(crate) guarantee: u64,
}

/// Demands of one tier, which are adjacent, with their flows.
#[derive(Debug, Clone)]
pub(crate) struct TierRange {
    pub(crate) tier: u8,
    pub(crate) demands: Range<usize>,
}

/// Flows and the constraints that several flows share, with the incidence in both directions.
///
/// A constraint is a demand, a class or a resource, numbered in this order, which is that of precedence: of several
/// constraints that fill at one level the first freezes the flow. Each has at most one limit in a round: of several
/// limits of a class only the lowest can fill.
#[derive(Debug)]
pub(crate) struct FlowNetwork {
    pub(crate) classes: Vec<ClassTerms>,
    /// In the order of their tiers.
    pub(crate) demands: Vec<DemandTerms>,
    /// Grains of each resource.
    pub(crate) capacities: Vec<u128>,
    /// Tiers with demands, in order of precedence.
    pub(crate) tiers: Vec<TierRange>,
    /// First flow of each demand, and the number of flows.
    flow_starts: Vec<u32>,
    /// Constraints of each flow, in ascending order.
    constraints_of: Lists,
    /// Number of constraints of each flow that are no resources.
    shared_counts: Vec<u8>,
    /// Constraints of all flows of each demand: whether the demand is one, and its class.
    shared_constraints: Vec<(bool, Option<u32>)>,
    /// Flows of each class and resource, in a list for each tier.
    flows_of: Lists,
    /// All flows in order, of which a demand's are a part.
    flows: Vec<u32>,
}

/// Lists of numbers in compressed form: the start of each list and the end of the last one, and all numbers.
#[derive(Debug)]
struct Lists {
    starts: Vec<u32>,
    numbers: Vec<u32>,
}

impl Lists {
    fn get(&self, list: usize) -> &[u32] {
        self.range(list..list + 1)
    }

    /// Returns adjacent lists as one.
    fn range(&self, lists: Range<usize>) -> &[u32] {
        &self.numbers[self.starts[lists.start] as usize..self.starts[lists.end] as usize]
    }
}

impl FlowNetwork {
    /// `resources` has capacities in bits per second. `paths` has the paths of each demand as resource numbers, which
    /// `places` maps to indices of `resources`. The order of resources and classes breaks ties between limits; that of
    /// demands, which are in the order of their tiers, has no effect.
    pub(crate) fn new<'p>(
        resources: &[u64],
        classes: Vec<ClassTerms>,
        demands: Vec<DemandTerms>,
        paths: impl Iterator<Item = &'p [Vec<u32>]>,
        places: &[u32],
    ) -> Self {
        let first_resource = (demands.len() + classes.len()) as u32;
        let is_limited =
            |class: &ClassTerms| class.floor > 0 || class.mark.is_some() || class.cap.is_some();
        let mut constraints_of = Lists { starts: vec![0], numbers: Vec::new() };
        let (mut flow_starts, mut shared_counts) = (vec![0], Vec::new());
        let mut shared_constraints = Vec::with_capacity(demands.len());
        for ((number, demand), paths) in demands.iter().enumerate().zip(paths) {
            let own = (demand.limit.is_some() || demand.guarantee > 0).then_some(number as u32);
            let class = demand.class.filter(|class| is_limited(&classes[*class as usize]));
            let class = class.map(|class| demands.len() as u32 + class);
            shared_constraints.push((own.is_some(), class));
            for path in paths {
                let numbers = &mut constraints_of.numbers;
                numbers.extend(own);
                numbers.extend(class);
                numbers.extend(path.iter().map(|id| first_resource + places[*id as usize]));
                constraints_of.starts.push(constraints_of.numbers.len() as u32);
                shared_counts.push(u8::from(own.is_some()) + u8::from(class.is_some()));
            }
            flow_starts.push(constraints_of.starts.len() as u32 - 1);
        }
        let flows = (0..constraints_of.starts.len() as u32 - 1).collect();
        let capacities = resources.iter().map(|capacity| grains(*capacity)).collect();
        let mut network = Self {
            classes,
            demands,
            capacities,
            tiers: Vec::new(),
            flow_starts,
            constraints_of,
            shared_counts,
            shared_constraints,
            flows_of: Lists { starts: Vec::new(), numbers: Vec::new() },
            flows,
        };
        network.find_tiers();
        network.transpose();
        network
    }

    fn find_tiers(&mut self) {
        for (number, demand) in self.demands.iter().enumerate() {
            let tier = self.tier(demand);
            match self.tiers.last_mut() {
                Some(range) if range.tier == tier => range.demands.end = number + 1,
                _ => self.tiers.push(TierRange { tier, demands: number..number + 1 }),
            }
        }
        assert!(self.tiers.is_sorted_by_key(|range| range.tier), "demands are in order of tiers");
    }

    /// Lists the flows of each class and resource.
    fn transpose(&mut self) {
        let (first, tiers) = (self.demands.len(), self.tiers.len());
        let lists = (self.constraints() - first) * tiers;
        let visit = |visit_one: &mut dyn FnMut(usize, u32)| {
            for (number, range) in self.tiers.iter().enumerate() {
                for flow in self.flows_of_demands(&range.demands) {
                    for constraint in self.constraints_of.get(flow) {
                        if *constraint as usize >= first {
                            visit_one((*constraint as usize - first) * tiers + number, flow as u32);
                        }
                    }
                }
            }
        };
        // The start of each list, two places further; then the place of its next flow, one place further.
        let mut starts = vec![0; lists + 2];
        visit(&mut |list, _| starts[list + 2] += 1);
        for list in 2..starts.len() {
            starts[list] += starts[list - 1];
        }
        let mut numbers = vec![0; starts[lists + 1] as usize];
        visit(&mut |list, flow| {
            let place = &mut starts[list + 1];
            numbers[*place as usize] = flow;
            *place += 1;
        });
        starts.pop();
        self.flows_of = Lists { starts, numbers };
    }

    pub(crate) const fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Returns the number of constraints: demands, classes and resources.
    pub(crate) const fn constraints(&self) -> usize {
        self.first_resource() + self.capacities.len()
    }

    /// Returns the number of the first constraint that is a resource.
    pub(crate) const fn first_resource(&self) -> usize {
        self.demands.len() + self.classes.len()
    }

    pub(crate) fn flows_of_demand(&self, demand: usize) -> Range<usize> {
        self.flows_of_demands(&(demand..demand + 1))
    }

    pub(crate) fn flows_of_demands(&self, demands: &Range<usize>) -> Range<usize> {
        self.flow_starts[demands.start] as usize..self.flow_starts[demands.end] as usize
    }

    /// Returns the constraints of a flow in ascending order.
    #[inline]
    pub(crate) fn constraints_of(&self, flow: usize) -> &[u32] {
        self.constraints_of.get(flow)
    }

    /// Returns the resources of a flow, as constraints.
    #[inline]
    pub(crate) fn resources_of(&self, flow: usize) -> &[u32] {
        &self.constraints_of.get(flow)[usize::from(self.shared_counts[flow])..]
    }

    /// Returns the constraints that all flows of a demand have: whether the demand is one, and its class.
    #[inline]
    pub(crate) fn shared_constraints(&self, demand: usize) -> (bool, Option<u32>) {
        self.shared_constraints[demand]
    }

    /// Returns the flows of a constraint that belong to these of [`Self::tiers`].
    pub(crate) fn flows_of(&self, constraint: usize, tiers: &Range<usize>) -> &[u32] {
        let Some(list) = constraint.checked_sub(self.demands.len()) else {
            return &self.flows[self.flows_of_demand(constraint)];
        };
        let first = list * self.tiers.len();
        self.flows_of.range(first + tiers.start..first + tiers.end)
    }

    pub(crate) fn tier(&self, demand: &DemandTerms) -> u8 {
        demand.class.map_or(0, |class| self.classes[class as usize].tier)
    }
}
