//! Keeps an allocation up to date: names at the edges, numbers inside, and of a change only that part is worked out
//! again that shares something with it.
//!
//! Two demands share something when a resource is on paths of both, or when they are in one class, as its weight is
//! divided over them. What shares nothing is worked out apart, always, so that a change has the same result as the
//! whole problem from the beginning.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use penstock_units::BitRate;

use crate::network::{ClassTerms, DemandTerms, Kind, Network, bits_per_second};
use crate::outcome::{Allocation, Allotment, Bound, ClassUse, PathShare, ResourceUse};
use crate::problem::{Class, Demand, Policy, Problem, ProblemError, RATE_MAX, Resource};
use crate::procedure::solve;

mod parts;

use parts::{Part, Parts};

type Names = HashMap<String, u32, FixedState>;

/// Works out a whole problem.
///
/// # Errors
/// When names are missing or twice, or numbers out of range.
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

/// Resources, classes and demands with what each has.
#[derive(Debug, Clone)]
pub struct Allocator {
    policy: Policy,
    resources: Vec<ResourceEntry>,
    classes: Vec<ClassEntry>,
    demands: Vec<Option<DemandEntry>>,
    /// Places of demands that went.
    free: Vec<u32>,
    resource_names: Names,
    class_names: Names,
    demand_names: Names,
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
    /// Of each path, the resources.
    paths: Vec<Vec<u32>>,
    /// Of each path, bits per second and what bound them.
    shares: Vec<(u64, Stop)>,
    stop: Stop,
}

/// [`Bound`] by numbers.
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

    /// What was promised and can be used.
    fn promised(&self) -> u64 {
        self.limit().map_or(self.guarantee.0, |limit| limit.min(self.guarantee.0))
    }

    /// Rounding down takes less than a bit per second of each path.
    fn lacks(&self, wanted: u64) -> BitRate {
        let lacking = wanted.saturating_sub(self.rate());
        BitRate(if lacking < self.shares.len() as u64 { 0 } else { lacking })
    }
}

impl Allocator {
    /// Everything of a problem, worked out.
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
        let everyone: Vec<u32> = (0..count as u32).collect();
        all.work_out(&everyone);
        Ok(all)
    }

    /// A demand more. Tells the allotments that are others now, its own among them.
    ///
    /// # Errors
    /// As [`allocate`]; nothing has changed then.
    pub fn insert(&mut self, demand: &Demand) -> Result<Vec<Allotment>, ProblemError> {
        let id = self.add_demand(demand)?;
        Ok(self.worked_out_with(id, &[id]))
    }

    /// A demand less. Tells the allotments that are others now.
    ///
    /// # Errors
    /// When there is none of the name.
    pub fn remove(&mut self, name: &str) -> Result<Vec<Allotment>, ProblemError> {
        let around = self.take_demand(name)?.1;
        Ok(self.worked_out(&around))
    }

    /// Another demand in the place of the one of the same name. Tells the allotments that are others now.
    ///
    /// # Errors
    /// As [`allocate`], or when there is none of the name; nothing has changed then.
    pub fn update(&mut self, demand: &Demand) -> Result<Vec<Allotment>, ProblemError> {
        let (old, mut around) = self.take_demand(&demand.name)?;
        match self.add_demand(demand) {
            Ok(id) => {
                around.push(id);
                Ok(self.worked_out_with(id, &around))
            }
            Err(error) => {
                self.place(old);
                Err(error)
            }
        }
    }

    /// Another capacity for a resource. Tells the allotments that are others now.
    ///
    /// # Errors
    /// When there is none of the name, or the capacity is out of range.
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
        Ok(self.worked_out(&around))
    }

    /// Other terms for the class of the same name. Tells the allotments that are others now.
    ///
    /// # Errors
    /// When there is none of the name, or its numbers are out of range.
    pub fn set_class(&mut self, class: Class) -> Result<Vec<Allotment>, ProblemError> {
        let Some(id) = self.class_names.get(&class.name) else {
            return Err(unknown("the change", "class", &class.name));
        };
        class.check()?;
        let entry = &mut self.classes[*id as usize];
        entry.class = class;
        let around = entry.demands.clone();
        Ok(self.worked_out(&around))
    }

    /// What a demand gets.
    #[must_use]
    pub fn allotment(&self, demand: &str) -> Option<Allotment> {
        self.demand_names.get(demand).map(|id| self.allotment_of(*id))
    }

    /// All allotments, in the order of the demands' names.
    #[must_use]
    pub fn allotments(&self) -> Vec<Allotment> {
        let mut names: Vec<_> = self.demand_names.iter().collect();
        names.sort();
        names.into_iter().map(|(_, id)| self.allotment_of(*id)).collect()
    }

    /// What is used of each resource, in the order of the problem.
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

    /// What each class has, in the order of the problem.
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
        self.demands[id as usize].as_ref().expect("a number of a demand that is there")
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
            shortfall: entry.lacks(entry.promised()),
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

    /// Not worked out yet.
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
            // Another of its paths may cross it, too.
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

    /// The demand, and those that shared something with it.
    fn take_demand(&mut self, name: &str) -> Result<(DemandEntry, Vec<u32>), ProblemError> {
        let id =
            self.demand_names.remove(name).ok_or_else(|| unknown("the change", "demand", name))?;
        let entry = self.demands[id as usize].take().expect("a demand that has a name");
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

    fn worked_out(&mut self, around: &[u32]) -> Vec<Allotment> {
        self.work_out(around).into_iter().map(|id| self.allotment_of(id)).collect()
    }

    /// The same, and one that is told in any case.
    fn worked_out_with(&mut self, id: u32, around: &[u32]) -> Vec<Allotment> {
        let mut changed = self.work_out(around);
        if !changed.contains(&id) {
            changed.push(id);
        }
        changed.into_iter().map(|id| self.allotment_of(id)).collect()
    }

    /// Works out each part that one of these demands is in, once. The demands that have something else now.
    fn work_out(&mut self, around: &[u32]) -> Vec<u32> {
        let mut parts = Parts::new(self);
        let mut changed = Vec::new();
        for first in around {
            let Some(part) = parts.of(self, *first) else { continue };
            let part = part.clone();
            self.solve_part(&mut parts, part, &mut changed);
        }
        changed
    }

    fn solve_part(&mut self, parts: &mut Parts, part: Part, changed: &mut Vec<u32>) {
        // Ties go by name, whatever order the problem has.
        let resources = &mut parts.resources[part.resources];
        let name = |id: &u32| self.resources[*id as usize].resource.name.as_str();
        resources.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        let classes = &mut parts.classes[part.classes];
        let name = |id: &u32| self.classes[*id as usize].class.name.as_str();
        classes.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        for (place, id) in resources.iter().enumerate() {
            parts.resource_places[*id as usize] = place as u32;
        }
        for (place, id) in classes.iter().enumerate() {
            parts.class_places[*id as usize] = place as u32;
        }
        let capacities: Vec<u64> =
            resources.iter().map(|id| self.resources[*id as usize].resource.capacity.0).collect();
        let terms = |id: &u32| {
            let Class { weight, floor, mark, cap, tier, .. } = &self.classes[*id as usize].class;
            let (mark, cap) = (mark.map(|mark| mark.0), cap.map(|cap| cap.0));
            ClassTerms { weight: *weight, floor: floor.0, mark, cap, tier: *tier }
        };
        let demands = &parts.demands[part.demands];
        let wants = |id: &u32| {
            let entry = self.entry(*id);
            DemandTerms {
                class: entry.class.map(|class| parts.class_places[class as usize]),
                weight: entry.weight,
                limit: entry.limit(),
                guarantee: entry.promised(),
            }
        };
        let network = Network::new(
            &capacities,
            classes.iter().map(terms).collect(),
            demands.iter().map(wants).collect(),
            demands.iter().map(|id| self.entry(*id).paths.as_slice()),
            &parts.resource_places,
        );
        let flows = solve(&network, self.policy);
        for (place, id) in demands.iter().enumerate() {
            let Some(entry) = &mut self.demands[*id as usize] else { continue };
            let wanted = entry.demand;
            let is_cap = wanted.is_none() || entry.cap.is_some_and(|cap| Some(cap) < wanted);
            let named = |limit: Option<u32>| {
                let Some(limit) = limit else { return Stop::OtherPaths };
                match network.limits[limit as usize].kind {
                    Kind::Resource(place) => Stop::Resource(resources[place as usize]),
                    Kind::Mark(place) => Stop::Mark(classes[place as usize]),
                    Kind::ClassCap(place) => Stop::ClassCap(classes[place as usize]),
                    _ if is_cap => Stop::Cap,
                    _ => Stop::Demand,
                }
            };
            let of = &flows[network.flows_of_demand(place)];
            let share = |grains, limit| (bits_per_second(grains), named(limit));
            let shares: Vec<_> = of.iter().map(|flow| share(flow.grains, flow.limit)).collect();
            // Limits of the demand or its class stop all its flows that still rise, and so they come last.
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
