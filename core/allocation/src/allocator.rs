//! Incremental allocation: translates names to numbers and re-solves only the connected component that a change
//! touches, or a region of a large one ([`region`]).
//!
//! Two demands are connected if a resource is on paths of both, or if they are in one class, which divides its weight
//! among them. Components are always solved separately, so solving one gives the same result as the whole problem.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use penstock_units::BitRate;

use crate::network::{ClassTerms, DemandTerms, FlowNetwork, FlowStop, bits_per_second};
use crate::outcome::{Allocation, Allotment, Bound, ClassUse, PathShare, ResourceUse};
use crate::paths::PathFractions;
use crate::problem::{Class, Demand, Policy, Problem, ProblemError, RATE_MAX, Resource};
use crate::procedure::{Solution, StageRates, Surroundings, solve, solve_region};

mod components;
mod region;

use components::{Component, Components};
use region::DemandChange;

type IdsByName = HashMap<String, u32, FixedState>;

/// Computes the rates of all demands of a problem.
///
/// # Errors
/// If a name is unknown or repeated, or a number is out of range.
pub fn allocate(problem: &Problem) -> Result<Allocation, ProblemError> {
    let mut allocator = Allocator::unsolved(problem)?;
    allocator.solve_all(false);
    Ok(Allocation {
        allotments: (0..problem.demands.len() as u32)
            .map(|id| allocator.allotment_of(id))
            .collect(),
        resources: allocator.resources(),
        classes: allocator.classes(),
    })
}

/// Resources, classes and demands with their current allotments.
#[derive(Debug, Clone)]
pub struct Allocator {
    policy: Policy,
    resources: Vec<ResourceEntry>,
    classes: Vec<ClassEntry>,
    demands: Vec<Option<DemandEntry>>,
    /// Unused indices of `demands`.
    free: Vec<u32>,
    resource_names: IdsByName,
    class_names: IdsByName,
    demand_names: IdsByName,
    /// Number of demands with several paths.
    with_paths: usize,
    /// Tiers of classes, and tier 0, in order.
    tiers: Vec<u8>,
    /// True if all demands have [`KeptFlow`]s, so that regions can be solved.
    is_kept: bool,
    /// Changes of which only the region was solved, since all was.
    region_changes: usize,
    /// Rate per weight of each demand, to choose those of a region.
    levels: Vec<u64>,
}

#[derive(Debug, Clone)]
struct ResourceEntry {
    resource: Resource,
    /// Position among all resources by name.
    order: u32,
    demands: Vec<u32>,
    /// Grains of its flows.
    used: u128,
    /// Grains of the flows of each of [`Allocator::tiers`] after the round of the tier's floor.
    tier_floors: Vec<u128>,
}

#[derive(Debug, Clone)]
struct ClassEntry {
    class: Class,
    demands: Vec<u32>,
    /// Sum of the weights of its demands.
    weight: u64,
    /// The sum with which its demands were last solved together.
    solved_weight: u64,
    /// Sum of [`KeptFlow::stages`].
    used: StageRates,
}

/// State of a demand on one path, from which a region is solved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeptFlow {
    /// Numerator of its fraction of the weight.
    fraction: u128,
    stages: StageRates,
}

#[derive(Debug, Clone)]
struct DemandEntry {
    name: String,
    class: Option<u32>,
    weight: u32,
    demand: Option<BitRate>,
    cap: Option<BitRate>,
    guarantee: BitRate,
    /// Resources of each path.
    paths: Vec<Vec<u32>>,
    /// Rate in bits per second and bottleneck of each path.
    shares: Vec<(u64, Stop)>,
    stop: Stop,
    /// State of each path; empty if no region was solved since.
    kept: Vec<KeptFlow>,
}

/// [`Bound`] with numbers instead of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Demand,
    Cap,
    Resource(u32),
    Mark(u32),
    ClassCap(u32),
    NoPath,
    OtherPaths,
}

impl DemandEntry {
    fn rate(&self) -> u64 {
        self.shares.iter().map(|(rate, _)| rate).sum()
    }

    fn limit(&self) -> Option<u64> {
        self.demand.iter().chain(&self.cap).map(|rate| rate.0).min()
    }

    /// Returns the part of the guarantee that demand and cap can use.
    fn usable_guarantee(&self) -> u64 {
        self.limit().map_or(self.guarantee.0, |limit| limit.min(self.guarantee.0))
    }

    /// Returns the shortfall. Each path may lose up to one bit per second to rounding, which does not count.
    fn shortfall_below(&self, wanted: u64) -> BitRate {
        let lacking = wanted.saturating_sub(self.rate());
        BitRate(if lacking < self.shares.len() as u64 { 0 } else { lacking })
    }
}

impl Allocator {
    /// Solves a problem and keeps its allocation.
    ///
    /// # Errors
    /// As [`allocate`].
    pub fn new(problem: &Problem) -> Result<Self, ProblemError> {
        let mut all = Self::unsolved(problem)?;
        let keeps = all.has_regions();
        all.solve_all(keeps);
        Ok(all)
    }

    fn unsolved(problem: &Problem) -> Result<Self, ProblemError> {
        problem.check()?;
        let Problem { resources, classes, demands, policy } = problem;
        let count = demands.len();
        let names = |count| HashMap::with_capacity_and_hasher(count, FixedState::default());
        let mut all = Self {
            policy: *policy,
            resources: Vec::with_capacity(resources.len()),
            classes: Vec::with_capacity(classes.len()),
            demands: Vec::with_capacity(count),
            free: Vec::new(),
            resource_names: names(resources.len()),
            class_names: names(classes.len()),
            demand_names: names(count),
            with_paths: 0,
            tiers: Vec::new(),
            is_kept: false,
            region_changes: 0,
            levels: Vec::new(),
        };
        for resource in resources {
            all.add_resource(resource.clone())?;
        }
        let mut by_name: Vec<u32> = (0..resources.len() as u32).collect();
        by_name.sort_unstable_by_key(|id| resources[*id as usize].name.as_str());
        for (order, id) in by_name.into_iter().enumerate() {
            all.resources[id as usize].order = order as u32;
        }
        for class in classes {
            all.add_class(class.clone())?;
        }
        for demand in demands {
            all.add_demand(demand)?;
        }
        Ok(all)
    }

    /// Adds a demand. Returns the allotments that changed, including its own.
    ///
    /// # Errors
    /// As [`allocate`]; the allocation is unchanged then.
    pub fn insert(&mut self, demand: &Demand) -> Result<Vec<Allotment>, ProblemError> {
        let id = self.add_demand(demand)?;
        let mut change = DemandChange::default();
        change.add_demand(id, self.entry(id));
        Ok(self.changed_with(id, &change))
    }

    /// Removes a demand. Returns the allotments that changed.
    ///
    /// # Errors
    /// If no demand has the name.
    pub fn remove(&mut self, name: &str) -> Result<Vec<Allotment>, ProblemError> {
        let old = self.take_demand(name)?;
        let mut change = DemandChange::default();
        change.touch(&old);
        let changed = self.solve_change(&change);
        Ok(self.allotments_of(&changed))
    }

    /// Replaces the demand of the same name. Returns the allotments that changed.
    ///
    /// # Errors
    /// As [`allocate`], or if no demand has the name; the allocation is unchanged then.
    pub fn update(&mut self, demand: &Demand) -> Result<Vec<Allotment>, ProblemError> {
        let old = self.take_demand(&demand.name)?;
        match self.add_demand(demand) {
            Ok(id) => {
                let mut change = DemandChange::default();
                change.touch(&old);
                change.add_demand(id, self.entry(id));
                self.start_from(id, &old);
                Ok(self.changed_with(id, &change))
            }
            Err(error) => {
                self.place(old);
                Err(error)
            }
        }
    }

    /// Changes the capacity of a resource. Returns the allotments that changed.
    ///
    /// # Errors
    /// If no resource has the name, or the capacity is out of range.
    pub fn set_capacity(
        &mut self,
        resource: &str,
        capacity: BitRate,
    ) -> Result<Vec<Allotment>, ProblemError> {
        let Some(id) = self.resource_names.get(resource).copied() else {
            return Err(unknown("the change", "resource", resource));
        };
        let entry = &mut self.resources[id as usize];
        Resource::new(resource, capacity).check()?;
        entry.resource.capacity = capacity;
        let mut change = DemandChange::default();
        for demand in &self.resources[id as usize].demands {
            change.add_demand(*demand, self.entry(*demand));
        }
        let changed = self.solve_change(&change);
        Ok(self.allotments_of(&changed))
    }

    /// Replaces the class of the same name. Returns the allotments that changed.
    ///
    /// # Errors
    /// If no class has the name, or its numbers are out of range.
    pub fn set_class(&mut self, class: Class) -> Result<Vec<Allotment>, ProblemError> {
        let Some(id) = self.class_names.get(&class.name) else {
            return Err(unknown("the change", "class", &class.name));
        };
        class.check()?;
        let entry = &mut self.classes[*id as usize];
        // The sums of all resources are by tiers.
        self.is_kept &= entry.class.tier == class.tier;
        entry.class = class;
        let around = entry.demands.clone();
        let changed = self.changed_around(&around);
        Ok(self.allotments_of(&changed))
    }

    /// Returns the allotment of a demand.
    #[must_use]
    pub fn allotment(&self, demand: &str) -> Option<Allotment> {
        self.demand_names.get(demand).map(|id| self.allotment_of(*id))
    }

    /// Returns all allotments, ordered by demand name.
    #[must_use]
    pub fn allotments(&self) -> Vec<Allotment> {
        let mut names: Vec<_> = self.demand_names.iter().collect();
        names.sort();
        names.into_iter().map(|(_, id)| self.allotment_of(*id)).collect()
    }

    /// Returns the use of each resource, in the order of the problem.
    #[must_use]
    pub fn resources(&self) -> Vec<ResourceUse> {
        let mut used = vec![0; self.resources.len()];
        for entry in self.demands.iter().flatten() {
            for (path, (rate, _)) in entry.paths.iter().zip(&entry.shares) {
                path.iter().for_each(|resource| used[*resource as usize] += rate);
            }
        }
        let entries = self.resources.iter().zip(used);
        let one = |(entry, used): (&ResourceEntry, u64)| ResourceUse {
            name: entry.resource.name.clone(),
            capacity: entry.resource.capacity,
            used: BitRate(used),
        };
        entries.map(one).collect()
    }

    /// Returns the use of each class, in the order of the problem.
    #[must_use]
    pub fn classes(&self) -> Vec<ClassUse> {
        self.classes.iter().map(|entry| self.class_use(entry)).collect()
    }

    /// Returns the sum of what the demands of a class can use.
    fn wanted(&self, class: &ClassEntry) -> u64 {
        let entries = class.demands.iter().map(|id| self.entry(*id));
        let wanted = entries.filter(|entry| !entry.paths.is_empty());
        wanted.fold(0, |all, entry| all.saturating_add(entry.limit().unwrap_or(RATE_MAX.0)))
    }

    fn class_use(&self, entry: &ClassEntry) -> ClassUse {
        let ClassEntry { class, demands, .. } = entry;
        let (mut used, mut flows) = (0, 0);
        for id in demands {
            let entry = self.entry(*id);
            used += entry.rate();
            flows += entry.shares.len() as u64;
        }
        let lacking = class.floor.0.min(self.wanted(entry)).saturating_sub(used);
        ClassUse {
            name: class.name.clone(),
            used: BitRate(used),
            floor: class.floor,
            mark: class.mark,
            cap: class.cap,
            shortfall: BitRate(if lacking <= flows { 0 } else { lacking }),
        }
    }

    fn entry(&self, id: u32) -> &DemandEntry {
        self.demands[id as usize].as_ref().expect("the demand id is in use")
    }

    fn allotment_of(&self, id: u32) -> Allotment {
        let entry = self.entry(id);
        let share = |(rate, stop): &(u64, Stop)| PathShare {
            rate: BitRate(*rate),
            bound: self.named(*stop),
        };
        Allotment {
            demand: entry.name.clone(),
            rate: BitRate(entry.rate()),
            bound: self.named(entry.stop),
            paths: entry.shares.iter().map(share).collect(),
            shortfall: entry.shortfall_below(entry.usable_guarantee()),
        }
    }

    fn named(&self, stop: Stop) -> Bound {
        let class = |id: u32| self.classes[id as usize].class.name.clone();
        match stop {
            Stop::Demand => Bound::Demand,
            Stop::Cap => Bound::Cap,
            Stop::Resource(id) => {
                Bound::Resource(self.resources[id as usize].resource.name.clone())
            }
            Stop::Mark(id) => Bound::Mark(class(id)),
            Stop::ClassCap(id) => Bound::ClassCap(class(id)),
            Stop::NoPath => Bound::NoPath,
            Stop::OtherPaths => Bound::OtherPaths,
        }
    }

    fn add_resource(&mut self, resource: Resource) -> Result<(), ProblemError> {
        resource.check()?;
        let id = self.resources.len() as u32;
        if self.resource_names.insert(resource.name.clone(), id).is_some() {
            return Err(ProblemError::Twice { what: "resource", name: resource.name });
        }
        let (demands, tier_floors) = (Vec::new(), Vec::new());
        self.resources.push(ResourceEntry { resource, order: 0, demands, used: 0, tier_floors });
        Ok(())
    }

    fn add_class(&mut self, class: Class) -> Result<(), ProblemError> {
        class.check()?;
        let id = self.classes.len() as u32;
        if self.class_names.insert(class.name.clone(), id).is_some() {
            return Err(ProblemError::Twice { what: "class", name: class.name });
        }
        let (demands, used) = (Vec::new(), StageRates::default());
        self.classes.push(ClassEntry { class, demands, weight: 0, solved_weight: 0, used });
        Ok(())
    }

    /// Adds a demand without solving.
    fn add_demand(&mut self, demand: &Demand) -> Result<u32, ProblemError> {
        let Demand { name, weight, demand: wanted, cap, guarantee, .. } = demand;
        let user = || format!("demand '{}'", name.escape_debug());
        if self.demand_names.contains_key(name) {
            return Err(ProblemError::Twice { what: "demand", name: name.clone() });
        }
        demand.check()?;
        let class = match &demand.class {
            Some(class) => {
                let found = self.class_names.get(class).copied();
                Some(found.ok_or_else(|| unknown(&user(), "class", class))?)
            }
            None => None,
        };
        let mut paths = Vec::with_capacity(demand.paths.len());
        for path in &demand.paths {
            let mut ids = Vec::with_capacity(path.len());
            for resource in path {
                let found = self.resource_names.get(resource).copied();
                let id = found.ok_or_else(|| unknown(&user(), "resource", resource))?;
                if ids.contains(&id) {
                    let (demand, resource) = (name.clone(), resource.clone());
                    return Err(ProblemError::Crossed { demand, resource });
                }
                ids.push(id);
            }
            paths.push(ids);
        }
        Ok(self.place(DemandEntry {
            name: name.clone(),
            class,
            weight: *weight,
            demand: *wanted,
            cap: *cap,
            guarantee: *guarantee,
            shares: vec![(0, Stop::NoPath); paths.len()],
            paths,
            stop: Stop::NoPath,
            kept: Vec::new(),
        }))
    }

    fn place(&mut self, entry: DemandEntry) -> u32 {
        let id = self.free.pop().unwrap_or(self.demands.len() as u32);
        self.demand_names.insert(entry.name.clone(), id);
        self.with_paths += usize::from(entry.paths.len() > 1);
        for resource in entry.paths.iter().flatten() {
            let demands = &mut self.resources[*resource as usize].demands;
            // Another path of this demand may cross the resource, too.
            if demands.last() != Some(&id) {
                demands.push(id);
            }
        }
        if let Some(class) = entry.class {
            let class = &mut self.classes[class as usize];
            class.demands.push(id);
            class.weight += u64::from(entry.weight);
        }
        match self.demands.get_mut(id as usize) {
            Some(place) => *place = Some(entry),
            None => self.demands.push(Some(entry)),
        }
        self.levels.resize(self.demands.len(), 0);
        self.count_uses(id, u128::wrapping_add);
        id
    }

    fn take_demand(&mut self, name: &str) -> Result<DemandEntry, ProblemError> {
        let id =
            self.demand_names.remove(name).ok_or_else(|| unknown("the change", "demand", name))?;
        self.count_uses(id, u128::wrapping_sub);
        let entry = self.demands[id as usize].take().expect("the named demand exists");
        self.free.push(id);
        self.with_paths -= usize::from(entry.paths.len() > 1);
        if let Some(class) = entry.class {
            let class = &mut self.classes[class as usize];
            class.demands.retain(|other| *other != id);
            class.weight -= u64::from(entry.weight);
        }
        for resource in entry.paths.iter().flatten() {
            self.resources[*resource as usize].demands.retain(|other| *other != id);
        }
        Ok(entry)
    }

    fn allotments_of(&self, ids: &[u32]) -> Vec<Allotment> {
        ids.iter().map(|id| self.allotment_of(*id)).collect()
    }

    /// Returns the changed allotments, and that of `id` in any case.
    fn changed_with(&mut self, id: u32, change: &DemandChange) -> Vec<Allotment> {
        let mut changed = self.solve_change(change);
        if !changed.contains(&id) {
            changed.push(id);
        }
        self.allotments_of(&changed)
    }

    /// Solves all components.
    fn solve_all(&mut self, keeps: bool) -> Vec<u32> {
        self.is_kept = false;
        let all: Vec<u32> = (0..self.demands.len() as u32)
            .filter(|id| self.demands[*id as usize].is_some())
            .collect();
        if keeps {
            self.clear_kept();
        }
        self.is_kept = keeps;
        self.region_changes = 0;
        self.solve_around(&all)
    }

    /// Solves whole components after a change.
    fn changed_around(&mut self, around: &[u32]) -> Vec<u32> {
        match (self.has_regions(), self.is_kept) {
            (true, false) => self.solve_all(true),
            (has_regions, _) => {
                self.is_kept = has_regions;
                self.solve_around(around)
            }
        }
    }

    /// Solves each component that contains one of these demands, once. Returns the demands whose rate or bottleneck
    /// changed.
    fn solve_around(&mut self, around: &[u32]) -> Vec<u32> {
        let mut components = Components::new(self);
        let mut changed = Vec::new();
        for first in around {
            let Some(component) = components.of(self, *first) else { continue };
            let component = component.clone();
            self.solve_component(&mut components, component, &mut changed);
        }
        changed
    }

    fn solve_component(
        &mut self,
        components: &mut Components,
        component: Component,
        changed: &mut Vec<u32>,
    ) {
        let network = self.network(components, &component);
        let solution = solve(&network, self.policy, self.is_kept);
        for class in &components.classes[component.classes.clone()] {
            let class = &mut self.classes[*class as usize];
            class.solved_weight = class.weight;
        }
        self.store(components, &component, &network, &solution, changed);
    }

    /// Numbers a component, or a part of one.
    fn network(&self, components: &mut Components, component: &Component) -> FlowNetwork {
        // Ties are broken by name, so the order of the problem does not matter.
        let resources = &mut components.resources[component.resources.clone()];
        resources.sort_unstable_by_key(|id| self.resources[*id as usize].order);
        let classes = &mut components.classes[component.classes.clone()];
        let name = |id: &u32| self.classes[*id as usize].class.name.as_str();
        classes.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        for (place, id) in resources.iter().enumerate() {
            components.resource_indices[*id as usize] = place as u32;
        }
        for (place, id) in classes.iter().enumerate() {
            components.class_indices[*id as usize] = place as u32;
        }
        let capacities: Vec<u64> =
            resources.iter().map(|id| self.resources[*id as usize].resource.capacity.0).collect();
        let terms = |id: &u32| {
            let entry = &self.classes[*id as usize];
            let Class { weight, floor, mark, cap, tier, .. } = &entry.class;
            let (mark, cap) = (mark.map(|mark| mark.0), cap.map(|cap| cap.0));
            let members_weight = entry.weight;
            ClassTerms { weight: *weight, members_weight, floor: floor.0, mark, cap, tier: *tier }
        };
        let demands = &mut components.demands[component.demands.clone()];
        let tier = |class: u32| self.classes[class as usize].class.tier;
        demands.sort_by_key(|id| self.entry(*id).class.map_or(0, tier));
        let wants = |id: &u32| {
            let entry = self.entry(*id);
            DemandTerms {
                class: entry.class.map(|class| components.class_indices[class as usize]),
                weight: entry.weight,
                limit: entry.limit(),
                guarantee: entry.usable_guarantee(),
            }
        };
        FlowNetwork::new(
            &capacities,
            classes.iter().map(terms).collect(),
            demands.iter().map(wants).collect(),
            demands.iter().map(|id| self.entry(*id).paths.as_slice()),
            &components.resource_indices,
        )
    }

    /// Stores a solution. Adds the demands whose rate or bottleneck changed.
    fn store(
        &mut self,
        components: &Components,
        component: &Component,
        network: &FlowNetwork,
        solution: &Solution,
        changed: &mut Vec<u32>,
    ) {
        let resources = &components.resources[component.resources.clone()];
        let classes = &components.classes[component.classes.clone()];
        let rates = &solution.rates;
        let mut shares = Vec::new();
        for (place, id) in components.demands[component.demands.clone()].iter().enumerate() {
            if self.is_kept {
                self.count_uses(*id, u128::wrapping_sub);
            }
            let Some(entry) = &mut self.demands[*id as usize] else { continue };
            let wanted = entry.demand;
            let is_cap = wanted.is_none() || entry.cap.is_some_and(|cap| Some(cap) < wanted);
            let named = |stop: Option<FlowStop>| match stop {
                Some(FlowStop::Resource(place)) => Stop::Resource(resources[place as usize]),
                Some(FlowStop::Mark(place)) => Stop::Mark(classes[place as usize]),
                Some(FlowStop::ClassCap(place)) => Stop::ClassCap(classes[place as usize]),
                Some(FlowStop::Demand | FlowStop::ClassFloor(_)) if is_cap => Stop::Cap,
                Some(FlowStop::Demand | FlowStop::ClassFloor(_)) => Stop::Demand,
                None => Stop::OtherPaths,
            };
            let of = network.flows_of_demand(place);
            let share =
                |flow: usize| (bits_per_second(rates.grains[flow]), named(rates.stops[flow]));
            shares.clear();
            shares.extend(of.clone().map(share));
            // Limits of the demand or its class stop all its flows that still rise, so they come last.
            let is_own = |stop: &Stop| !matches!(stop, Stop::Resource(_) | Stop::OtherPaths);
            let own = shares.iter().map(|(_, stop)| *stop).find(is_own);
            let last = shares.iter().rev().max_by_key(|(rate, _)| *rate).map(|(_, stop)| *stop);
            let stop = own.or(last).unwrap_or(Stop::NoPath);
            if shares != entry.shares || stop != entry.stop {
                entry.shares.clone_from(&shares);
                entry.stop = stop;
                changed.push(*id);
            }
            entry.kept.clear();
            if self.is_kept {
                let fractions = solution.fractions.of(of.clone());
                let kept = |(flow, fraction): (usize, &u128)| KeptFlow {
                    fraction: *fraction,
                    stages: solution.stages_of(flow),
                };
                entry.kept.extend(of.zip(fractions).map(kept));
                self.count_uses(*id, u128::wrapping_add);
                self.set_level(*id);
            }
        }
    }
}

fn unknown(user: &str, what: &'static str, name: &str) -> ProblemError {
    ProblemError::Unknown { user: user.to_owned(), what, name: name.to_owned() }
}
