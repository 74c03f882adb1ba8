//! Incremental allocation: translates names to numbers and re-solves only the connected component that a change
//! touches.
//!
//! Two demands are connected if a resource is on paths of both, or if they are in one class, which divides its weight
//! among them. Components are always solved separately, so a change gives the same result as solving the whole problem.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use penstock_units::BitRate;

use crate::network::{ClassTerms, DemandTerms, FlowNetwork, FlowStop, bits_per_second};
use crate::outcome::{Allocation, Allotment, Bound, ClassUse, PathShare, ResourceUse};
use crate::problem::{Class, Demand, Policy, Problem, ProblemError, RATE_MAX, Resource};
use crate::procedure::solve;

mod components;

use components::{Component, Components};

type IdsByName = HashMap<String, u32, FixedState>;

/// Computes the rates of all demands of a problem.
///
/// # Errors
/// If a name is unknown or repeated, or a number is out of range.
pub fn allocate(problem: &Problem) -> Result<Allocation, ProblemError> {
    let allocator = Allocator::new(problem)?;
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
}

#[derive(Debug, Clone)]
struct ResourceEntry {
    resource: Resource,
    demands: Vec<u32>,
}

#[derive(Debug, Clone)]
struct ClassEntry {
    class: Class,
    demands: Vec<u32>,
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
        };
        for resource in resources {
            all.add_resource(resource.clone())?;
        }
        for class in classes {
            all.add_class(class.clone())?;
        }
        for demand in demands {
            all.add_demand(demand)?;
        }
        let all_demands: Vec<u32> = (0..count as u32).collect();
        all.solve_around(&all_demands);
        Ok(all)
    }

    /// Adds a demand. Returns the allotments that changed, including its own.
    ///
    /// # Errors
    /// As [`allocate`]; the allocation is unchanged then.
    pub fn insert(&mut self, demand: &Demand) -> Result<Vec<Allotment>, ProblemError> {
        let id = self.add_demand(demand)?;
        Ok(self.changed_around_and(id, &[id]))
    }

    /// Removes a demand. Returns the allotments that changed.
    ///
    /// # Errors
    /// If no demand has the name.
    pub fn remove(&mut self, name: &str) -> Result<Vec<Allotment>, ProblemError> {
        let around = self.take_demand(name)?.1;
        Ok(self.changed_around(&around))
    }

    /// Replaces the demand of the same name. Returns the allotments that changed.
    ///
    /// # Errors
    /// As [`allocate`], or if no demand has the name; the allocation is unchanged then.
    pub fn update(&mut self, demand: &Demand) -> Result<Vec<Allotment>, ProblemError> {
        let (old, mut around) = self.take_demand(&demand.name)?;
        match self.add_demand(demand) {
            Ok(id) => {
                around.push(id);
                Ok(self.changed_around_and(id, &around))
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
        let Some(id) = self.resource_names.get(resource) else {
            return Err(unknown("the change", "resource", resource));
        };
        let entry = &mut self.resources[*id as usize];
        Resource::new(resource, capacity).check()?;
        entry.resource.capacity = capacity;
        let around = entry.demands.clone();
        Ok(self.changed_around(&around))
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
        entry.class = class;
        let around = entry.demands.clone();
        Ok(self.changed_around(&around))
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

    fn class_use(&self, ClassEntry { class, demands }: &ClassEntry) -> ClassUse {
        let (mut used, mut wanted, mut flows) = (0, 0_u64, 0);
        for id in demands {
            let entry = self.entry(*id);
            used += entry.rate();
            flows += entry.shares.len() as u64;
            if !entry.paths.is_empty() {
                wanted = wanted.saturating_add(entry.limit().unwrap_or(RATE_MAX.0));
            }
        }
        let lacking = class.floor.0.min(wanted).saturating_sub(used);
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
        self.resources.push(ResourceEntry { resource, demands: Vec::new() });
        Ok(())
    }

    fn add_class(&mut self, class: Class) -> Result<(), ProblemError> {
        class.check()?;
        let id = self.classes.len() as u32;
        if self.class_names.insert(class.name.clone(), id).is_some() {
            return Err(ProblemError::Twice { what: "class", name: class.name });
        }
        self.classes.push(ClassEntry { class, demands: Vec::new() });
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
        }))
    }

    fn place(&mut self, entry: DemandEntry) -> u32 {
        let id = self.free.pop().unwrap_or(self.demands.len() as u32);
        self.demand_names.insert(entry.name.clone(), id);
        for resource in entry.paths.iter().flatten() {
            let demands = &mut self.resources[*resource as usize].demands;
            // Another path of this demand may cross the resource, too.
            if demands.last() != Some(&id) {
                demands.push(id);
            }
        }
        if let Some(class) = entry.class {
            self.classes[class as usize].demands.push(id);
        }
        match self.demands.get_mut(id as usize) {
            Some(place) => *place = Some(entry),
            None => self.demands.push(Some(entry)),
        }
        id
    }

    /// Removes a demand. Returns it with the demands that it was connected to.
    fn take_demand(&mut self, name: &str) -> Result<(DemandEntry, Vec<u32>), ProblemError> {
        let id =
            self.demand_names.remove(name).ok_or_else(|| unknown("the change", "demand", name))?;
        let entry = self.demands[id as usize].take().expect("the named demand exists");
        self.free.push(id);
        let mut around = Vec::new();
        if let Some(class) = entry.class {
            let demands = &mut self.classes[class as usize].demands;
            demands.retain(|other| *other != id);
            around.extend(demands.iter());
        }
        for resource in entry.paths.iter().flatten() {
            let demands = &mut self.resources[*resource as usize].demands;
            demands.retain(|other| *other != id);
            around.extend(demands.iter());
        }
        Ok((entry, around))
    }

    fn changed_around(&mut self, around: &[u32]) -> Vec<Allotment> {
        self.solve_around(around).into_iter().map(|id| self.allotment_of(id)).collect()
    }

    /// Solves around `around`. Returns the changed allotments, and that of `id` in any case.
    fn changed_around_and(&mut self, id: u32, around: &[u32]) -> Vec<Allotment> {
        let mut changed = self.solve_around(around);
        if !changed.contains(&id) {
            changed.push(id);
        }
        changed.into_iter().map(|id| self.allotment_of(id)).collect()
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
        // Ties are broken by name, so the order of the problem does not matter.
        let resources = &mut components.resources[component.resources];
        let name = |id: &u32| self.resources[*id as usize].resource.name.as_str();
        resources.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        let classes = &mut components.classes[component.classes];
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
            let Class { weight, floor, mark, cap, tier, .. } = &self.classes[*id as usize].class;
            let (mark, cap) = (mark.map(|mark| mark.0), cap.map(|cap| cap.0));
            ClassTerms { weight: *weight, floor: floor.0, mark, cap, tier: *tier }
        };
        let demands = &mut components.demands[component.demands];
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
        let network = FlowNetwork::new(
            &capacities,
            classes.iter().map(terms).collect(),
            demands.iter().map(wants).collect(),
            demands.iter().map(|id| self.entry(*id).paths.as_slice()),
            &components.resource_indices,
        );
        let rates = solve(&network, self.policy);
        for (place, id) in demands.iter().enumerate() {
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
            let shares: Vec<_> = of.map(share).collect();
            // Limits of the demand or its class stop all its flows that still rise, so they come last.
            let is_own = |stop: &Stop| !matches!(stop, Stop::Resource(_) | Stop::OtherPaths);
            let own = shares.iter().map(|(_, stop)| *stop).find(is_own);
            let last = shares.iter().rev().max_by_key(|(rate, _)| *rate).map(|(_, stop)| *stop);
            let stop = own.or(last).unwrap_or(Stop::NoPath);
            if shares != entry.shares || stop != entry.stop {
                (entry.shares, entry.stop) = (shares, stop);
                changed.push(*id);
            }
        }
    }
}

fn unknown(user: &str, what: &'static str, name: &str) -> ProblemError {
    ProblemError::Unknown { user: user.to_owned(), what, name: name.to_owned() }
}
