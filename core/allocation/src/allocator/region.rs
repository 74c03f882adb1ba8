//! Changes of large components with several paths: only a region near the change is solved, while all other demands keep
//! their rates.
//!
//! A region has the changed demand and, of the demands on its resources and in its class, in each tier the richest few,
//! which yield to it, and the poorest few that wait for room, which gain by it. What the others use is taken from all
//! limits ([`Surroundings`]), also from the floors of tiers and classes and from marks, of which it is known for each
//! round of the procedure. Only the changed demand divides its weight anew, from its division before.
//!
//! Once in 32 changes all is solved anew, and so are wide changes. Small components, and those with one path for each
//! demand, are always solved whole.

use super::*;

/// Number of other demands of a region, unless each constraint has only one at each end.
const REGION_DEMANDS: usize = 150;
/// Most demands of a tier that a constraint adds to a region at each end.
const END_DEMANDS_MAX: usize = 8;
/// Most changes of which only regions are solved, until all is.
const REGION_CHANGES_MAX: usize = 31;
/// The demands of a class are solved again if the sum of their weights changes by one part in this.
const CLASS_WEIGHT_PARTS: u64 = 16;

/// Bits of a level below its tier.
const LEVEL_BITS: u32 = 56;

/// Demands that a change concerns itself.
#[derive(Debug, Default, Clone)]
pub(super) struct DemandChange {
    pub(super) demands: Vec<u32>,
    resources: Vec<u32>,
    classes: Vec<u32>,
}

impl DemandChange {
    pub(super) fn add_demand(&mut self, id: u32, entry: &DemandEntry) {
        self.demands.push(id);
        self.touch(entry);
    }

    /// Adds the resources and the class of a demand.
    pub(super) fn touch(&mut self, entry: &DemandEntry) {
        self.resources.extend(entry.paths.iter().flatten());
        self.classes.extend(entry.class);
    }
}

impl Allocator {
    /// True if changes may be solved by regions.
    pub(super) fn has_regions(&self) -> bool {
        self.with_paths > 0 && self.demand_names.len() > self.policy.whole_part_demands as usize
    }

    /// Solves what a change concerns. Returns the demands whose rate or bottleneck changed.
    pub(super) fn solve_change(&mut self, change: &DemandChange) -> Vec<u32> {
        let on = change.resources.iter().map(|id| &self.resources[*id as usize].demands);
        let of = change.classes.iter().map(|id| &self.classes[*id as usize].demands);
        let mut around = change.demands.clone();
        around.extend(on.chain(of).flatten());
        if !self.is_kept || !self.has_regions() || self.is_small(&around) {
            return self.changed_around(&around);
        }
        let has_other_weights = |id: &u32| {
            let class = &self.classes[*id as usize];
            class.weight.abs_diff(class.solved_weight) * CLASS_WEIGHT_PARTS > class.solved_weight
        };
        let is_wide = change.demands.len() > 1 || change.classes.iter().any(has_other_weights);
        if self.region_changes < REGION_CHANGES_MAX
            && !is_wide
            && let Some(changed) = self.solve_region(change)
        {
            self.region_changes += 1;
            return changed;
        }
        self.solve_all(true)
    }

    /// True if all of a change is in small components, or in those with one path for each demand: they are solved whole.
    fn is_small(&self, around: &[u32]) -> bool {
        let enough = self.policy.whole_part_demands as usize;
        let mut components = Components::new(self);
        around.iter().all(|first| {
            let mut several = false;
            let is_large = |found: usize, id: u32| {
                several |= self.entry(id).paths.len() > 1;
                several && found > enough
            };
            components.has_seen(*first) || components.search(self, *first, is_large).is_some()
        })
    }

    /// Solves the region of a change; none if a guarantee or a floor would be missed.
    fn solve_region(&mut self, change: &DemandChange) -> Option<Vec<u32>> {
        let mut components = Components::new(self);
        let region = components.part(self, self.region(change));
        let network = self.network(&mut components, &region);
        let divides = components.demands.iter().map(|id| change.demands.contains(id)).collect();
        let surroundings = self.surroundings(&components, divides);
        let mut fractions = PathFractions::default();
        for (id, divides) in components.demands.iter().zip(&surroundings.divides) {
            let entry = self.entry(*id);
            let of = |path: usize| entry.kept.get(path).map_or(1, |kept| kept.fraction);
            fractions.add((0..entry.paths.len()).map(of), *divides);
        }
        let solution = solve_region(&network, self.policy, fractions, &surroundings);
        if self.misses_promise(&components, &network, &solution, &surroundings) {
            return None;
        }
        let mut changed = Vec::new();
        self.store(&components, &region, &network, &solution, &mut changed);
        Some(changed)
    }

    /// Chooses the demands of a region.
    fn region(&self, change: &DemandChange) -> Vec<u32> {
        let mut chosen = change.demands.clone();
        let (mut resources, mut classes) = (change.resources.clone(), change.classes.clone());
        for list in [&mut resources, &mut classes] {
            list.sort_unstable();
            list.dedup();
        }
        let constraints = resources.len() + classes.len();
        let ends = REGION_DEMANDS / (2 * constraints.max(1) * self.tiers.len());
        let ends = ends.clamp(1, END_DEMANDS_MAX);
        let mut sorted = Vec::new();
        let resources = resources.iter().map(|id| &self.resources[*id as usize].demands);
        let classes = classes.iter().map(|id| &self.classes[*id as usize].demands);
        for demands in resources.chain(classes) {
            sorted.clear();
            sorted.extend(demands.iter().map(|id| (self.levels[*id as usize], *id)));
            sorted.sort_unstable_by(|a, b| {
                a.0.cmp(&b.0).then_with(|| self.entry(a.1).name.cmp(&self.entry(b.1).name))
            });
            for tier in sorted.chunk_by(|a, b| a.0 >> LEVEL_BITS == b.0 >> LEVEL_BITS) {
                let richest = tier.iter().rev().take(ends);
                let waiting = tier.iter().filter(|one| one.0 & 1 == 0).take(ends);
                chosen.extend(richest.chain(waiting).map(|one| one.1));
            }
        }
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }

    fn surroundings(&self, components: &Components, divides: Vec<bool>) -> Surroundings {
        let tiers = self.tiers.len();
        let entries = || components.resources.iter().map(|id| &self.resources[*id as usize]);
        let mut resources: Vec<u128> = entries().map(|entry| entry.used).collect();
        let mut tier_floors: Vec<u128> =
            entries().flat_map(|entry| &entry.tier_floors).copied().collect();
        let mut classes: Vec<StageRates> =
            components.classes.iter().map(|id| self.classes[*id as usize].used).collect();
        for id in &components.demands {
            let entry = self.entry(*id);
            let tier = self.tier_of(entry);
            for (path, kept) in entry.paths.iter().zip(&entry.kept) {
                for resource in path {
                    let place = components.resource_indices[*resource as usize] as usize;
                    resources[place] -= kept.stages[3];
                    tier_floors[place * tiers + tier] -= kept.stages[1];
                }
                if let Some(class) = entry.class {
                    let place = components.class_indices[class as usize] as usize;
                    add(&mut classes[place], &kept.stages, u128::wrapping_sub);
                }
            }
        }
        let with_demands = || self.classes.iter().filter(|class| !class.demands.is_empty());
        let members: usize = with_demands().map(|class| class.demands.len()).sum();
        let tiers_of_classes = with_demands().map(|class| class.class.tier);
        let first_tier = if members < self.demand_names.len() {
            0
        } else {
            tiers_of_classes.min().unwrap_or_default()
        };
        let tiers = self.tiers.clone();
        Surroundings { first_tier, tiers, classes, resources, tier_floors, divides }
    }

    /// True if a guarantee or the floor of a class is missed.
    fn misses_promise(
        &self,
        components: &Components,
        network: &FlowNetwork,
        solution: &Solution,
        surroundings: &Surroundings,
    ) -> bool {
        let rates = &solution.rates.grains;
        let mut used: Vec<u128> = surroundings.classes.iter().map(|class| class[3]).collect();
        for (place, id) in components.demands.iter().enumerate() {
            let of = network.flows_of_demand(place);
            let count = of.len() as u64;
            let rate: u128 = rates[of].iter().sum();
            let entry = self.entry(*id);
            if bits_per_second(rate) + count < entry.usable_guarantee() && count > 0 {
                return true;
            }
            if let Some(class) = entry.class {
                used[components.class_indices[class as usize] as usize] += rate;
            }
        }
        components.classes.iter().zip(used).any(|(id, used)| {
            let class = &self.classes[*id as usize];
            let used = bits_per_second(used) + 1;
            used < class.class.floor.0 && used < self.wanted(class)
        })
    }

    /// Forgets the state of all demands, before they are solved.
    pub(super) fn clear_kept(&mut self) {
        self.tiers = self.classes.iter().map(|class| class.class.tier).chain([0]).collect();
        self.tiers.sort_unstable();
        self.tiers.dedup();
        for resource in &mut self.resources {
            resource.used = 0;
            resource.tier_floors.clear();
            resource.tier_floors.resize(self.tiers.len(), 0);
        }
        self.classes.iter_mut().for_each(|class| class.used = StageRates::default());
        self.demands.iter_mut().flatten().for_each(|entry| entry.kept.clear());
    }

    fn tier_of(&self, entry: &DemandEntry) -> usize {
        let tier = entry.class.map_or(0, |class| self.classes[class as usize].class.tier);
        self.tiers.iter().position(|one| *one == tier).unwrap_or_default()
    }

    /// Adds what a demand uses to the sums of its resources and its class, or subtracts it.
    pub(super) fn count_uses(&mut self, id: u32, with: fn(u128, u128) -> u128) {
        let Some(entry) = &self.demands[id as usize] else { return };
        if entry.kept.is_empty() || !self.is_kept {
            return;
        }
        let tier = self.tier_of(entry);
        for (path, kept) in entry.paths.iter().zip(&entry.kept) {
            for resource in path {
                let resource = &mut self.resources[*resource as usize];
                resource.used = with(resource.used, kept.stages[3]);
                let floors = &mut resource.tier_floors[tier];
                *floors = with(*floors, kept.stages[1]);
            }
            if let Some(class) = entry.class {
                add(&mut self.classes[class as usize].used, &kept.stages, with);
            }
        }
    }

    /// Gives a changed demand the division of its weight before, if it has the same paths.
    pub(super) fn start_from(&mut self, id: u32, old: &DemandEntry) {
        let Some(entry) = &mut self.demands[id as usize] else { return };
        if entry.paths == old.paths {
            let stages = StageRates::default();
            entry.kept = old.kept.iter().map(|kept| KeptFlow { stages, ..*kept }).collect();
        }
    }

    /// Notes the rate per weight of a demand, below its tier and above a bit that is 1 if it wants no more.
    pub(super) fn set_level(&mut self, id: u32) {
        let entry = self.entry(id);
        let rate = u128::from(entry.rate());
        let (members, class) = entry.class.map_or((1, 1), |class| {
            let class = &self.classes[class as usize];
            (class.weight, class.class.weight)
        });
        let weight = u64::from(class) * u64::from(entry.weight);
        let level = ((rate * u128::from(members)) << 8) / u128::from(weight);
        let level = level.min((1 << (LEVEL_BITS - 1)) - 1) as u64;
        let is_met = !entry
            .shares
            .iter()
            .any(|(_, stop)| matches!(stop, Stop::Resource(_) | Stop::Mark(_) | Stop::ClassCap(_)));
        let tier = self.tier_of(entry) as u64;
        let level = tier << LEVEL_BITS | level << 1 | u64::from(is_met);
        self.levels[id as usize] = level;
    }
}

fn add(sums: &mut StageRates, rates: &StageRates, with: fn(u128, u128) -> u128) {
    for (sum, rate) in sums.iter_mut().zip(rates) {
        *sum = with(*sum, *rate);
    }
}
