//! Connected components of a problem, found by breadth-first search over shared resources and classes.

use std::ops::Range;

use super::Allocator;

/// A connected component, as ranges of the lists in [`Components`].
#[derive(Debug, Clone)]
pub(super) struct Component {
    pub(super) resources: Range<usize>,
    pub(super) classes: Range<usize>,
    pub(super) demands: Range<usize>,
}

/// The components found so far.
pub(super) struct Components {
    pub(super) resources: Vec<u32>,
    pub(super) classes: Vec<u32>,
    pub(super) demands: Vec<u32>,
    seen_resources: Vec<bool>,
    seen_classes: Vec<bool>,
    seen_demands: Vec<bool>,
    /// Index of each resource within its component.
    pub(super) resource_indices: Vec<u32>,
    pub(super) class_indices: Vec<u32>,
}

impl Components {
    pub(super) fn new(all: &Allocator) -> Self {
        Self {
            resources: Vec::new(),
            classes: Vec::new(),
            demands: Vec::new(),
            seen_resources: vec![false; all.resources.len()],
            seen_classes: vec![false; all.classes.len()],
            seen_demands: vec![false; all.demands.len()],
            resource_indices: vec![0; all.resources.len()],
            class_indices: vec![0; all.classes.len()],
        }
    }

    /// Returns the component of a demand; none if an earlier call returned it.
    pub(super) fn of(&mut self, all: &Allocator, first: u32) -> Option<Component> {
        self.search(all, first, |_, _| false)
    }

    /// Returns the given demands with their resources and classes, as if they were a component.
    pub(super) fn part(&mut self, all: &Allocator, demands: Vec<u32>) -> Component {
        for id in &demands {
            let entry = all.entry(*id);
            if let Some(class) = entry.class
                && !std::mem::replace(&mut self.seen_classes[class as usize], true)
            {
                self.classes.push(class);
            }
            for resource in entry.paths.iter().flatten() {
                if !std::mem::replace(&mut self.seen_resources[*resource as usize], true) {
                    self.resources.push(*resource);
                }
            }
        }
        self.demands = demands;
        Component {
            resources: 0..self.resources.len(),
            classes: 0..self.classes.len(),
            demands: 0..self.demands.len(),
        }
    }

    pub(super) fn has_seen(&self, demand: u32) -> bool {
        self.seen_demands[demand as usize]
    }

    /// As [`Self::of`], but none as soon as `is_enough` for the number of demands found and one of them.
    pub(super) fn search(
        &mut self,
        all: &Allocator,
        first: u32,
        mut is_enough: impl FnMut(usize, u32) -> bool,
    ) -> Option<Component> {
        if std::mem::replace(&mut self.seen_demands[first as usize], true) {
            return None;
        }
        let starts = (self.resources.len(), self.classes.len(), self.demands.len());
        self.demands.push(first);
        let mut next = starts.2;
        while let Some(id) = self.demands.get(next) {
            next += 1;
            let id = *id;
            if is_enough(self.demands.len() - starts.2, id) {
                return None;
            }
            let entry = all.entry(id);
            if let Some(class) = entry.class
                && !std::mem::replace(&mut self.seen_classes[class as usize], true)
            {
                self.classes.push(class);
                self.visit(&all.classes[class as usize].demands);
            }
            for resource in entry.paths.iter().flatten() {
                if !std::mem::replace(&mut self.seen_resources[*resource as usize], true) {
                    self.resources.push(*resource);
                    self.visit(&all.resources[*resource as usize].demands);
                }
            }
        }
        Some(Component {
            resources: starts.0..self.resources.len(),
            classes: starts.1..self.classes.len(),
            demands: starts.2..self.demands.len(),
        })
    }

    fn visit(&mut self, demands: &[u32]) {
        for demand in demands {
            if !std::mem::replace(&mut self.seen_demands[*demand as usize], true) {
                self.demands.push(*demand);
            }
        }
    }
}
