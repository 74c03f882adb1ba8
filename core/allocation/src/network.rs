//! A connected component with numbers instead of names: flows (a demand on one of its paths) and the limits that apply
//! to each flow.
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

/// Kind of a limit, in order of precedence: of several limits that fill at one level the first freezes the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitKind {
    /// Guarantee of a demand; applies in the guarantee round only.
    Guarantee,
    /// Smaller of a demand's request and its cap.
    Demand,
    /// Floor of the class with this number; applies in the floor round only.
    ClassFloor(u32),
    /// Hard cap of the class with this number.
    ClassCap(u32),
    /// Soft high-water mark of the class with this number; does not apply in the last round.
    Mark(u32),
    /// Capacity of the resource with this number.
    Resource(u32),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) kind: LimitKind,
    pub(crate) grains: u128,
}

/// Terms of a class; rates in bits per second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClassTerms {
    pub(crate) weight: u32,
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

/// Flows and limits, with the incidence in both directions.
#[derive(Debug)]
pub(crate) struct FlowNetwork {
    pub(crate) classes: Vec<ClassTerms>,
    pub(crate) demands: Vec<DemandTerms>,
    pub(crate) limits: Vec<Limit>,
    /// Flows of each demand.
    of_demand: Vec<Range<u32>>,
    limits_of: Lists,
    flows_of: Lists,
}

/// Lists of numbers in compressed form: the end of each list, and all numbers.
#[derive(Debug)]
struct Lists {
    ends: Vec<u32>,
    numbers: Vec<u32>,
}

impl Lists {
    fn get(&self, list: u32) -> &[u32] {
        let list = list as usize;
        let start = if list == 0 { 0 } else { self.ends[list - 1] };
        &self.numbers[start as usize..self.ends[list] as usize]
    }

    /// Returns the transpose: for each of `count` numbers the lists that contain it.
    fn transposed(&self, count: usize) -> Self {
        let mut ends = vec![0; count];
        for number in &self.numbers {
            ends[*number as usize] += 1;
        }
        let mut total = 0;
        for end in &mut ends {
            (*end, total) = (total, total + *end);
        }
        let mut numbers = vec![0; self.numbers.len()];
        for list in 0..self.ends.len() as u32 {
            for number in self.get(list) {
                let end = &mut ends[*number as usize];
                numbers[*end as usize] = list;
                *end += 1;
            }
        }
        Self { ends, numbers }
    }
}

impl FlowNetwork {
    /// `resources` has capacities in bits per second. `paths` has the paths of each demand as resource numbers, which
    /// `places` maps to indices of `resources`. The order of resources and classes breaks ties between limits; that of
    /// demands has no effect.
    pub(crate) fn new<'p>(
        resources: &[u64],
        classes: Vec<ClassTerms>,
        demands: Vec<DemandTerms>,
        paths: impl Iterator<Item = &'p [Vec<u32>]>,
        places: &[u32],
    ) -> Self {
        let mut limits = Vec::with_capacity(demands.len() + resources.len() + 3 * classes.len());
        let mut add = |kind, bits_per_second: u64| {
            limits.push(Limit { kind, grains: grains(bits_per_second) });
            limits.len() as u32 - 1
        };
        let guarantee: Vec<_> = demands
            .iter()
            .map(|demand| {
                (demand.guarantee > 0).then(|| add(LimitKind::Guarantee, demand.guarantee))
            })
            .collect();
        let wanted: Vec<_> = demands
            .iter()
            .map(|demand| demand.limit.map(|limit| add(LimitKind::Demand, limit)))
            .collect();
        let mut of_class = vec![Vec::new(); classes.len()];
        for (number, class) in classes.iter().enumerate() {
            let (number, of) = (number as u32, &mut of_class[number]);
            if class.floor > 0 {
                of.push(add(LimitKind::ClassFloor(number), class.floor));
            }
            of.extend(class.cap.map(|cap| add(LimitKind::ClassCap(number), cap)));
            of.extend(class.mark.map(|mark| add(LimitKind::Mark(number), mark)));
        }
        let first_resource = limits.len() as u32;
        limits.extend(resources.iter().enumerate().map(|(number, capacity)| Limit {
            kind: LimitKind::Resource(number as u32),
            grains: grains(*capacity),
        }));
        let mut limits_of = Lists { ends: Vec::new(), numbers: Vec::new() };
        let mut of_demand = Vec::with_capacity(demands.len());
        for ((number, demand), paths) in demands.iter().enumerate().zip(paths) {
            let first = limits_of.ends.len() as u32;
            for path in paths {
                let numbers = &mut limits_of.numbers;
                numbers.extend(guarantee[number]);
                numbers.extend(wanted[number]);
                numbers.extend(demand.class.iter().flat_map(|class| &of_class[*class as usize]));
                let place = |resource: &u32| first_resource + places[*resource as usize];
                numbers.extend(path.iter().map(place));
                limits_of.ends.push(limits_of.numbers.len() as u32);
            }
            of_demand.push(first..limits_of.ends.len() as u32);
        }
        let flows_of = limits_of.transposed(limits.len());
        Self { classes, demands, limits, of_demand, limits_of, flows_of }
    }

    pub(crate) fn flows(&self) -> usize {
        self.limits_of.ends.len()
    }

    pub(crate) fn flows_of_demand(&self, demand: usize) -> Range<usize> {
        let Range { start, end } = self.of_demand[demand];
        start as usize..end as usize
    }

    pub(crate) fn limits_of(&self, flow: u32) -> &[u32] {
        self.limits_of.get(flow)
    }

    pub(crate) fn flows_of(&self, limit: u32) -> &[u32] {
        self.flows_of.get(limit)
    }

    pub(crate) fn tier(&self, demand: &DemandTerms) -> u8 {
        demand.class.map_or(0, |class| self.classes[class as usize].tier)
    }
}
