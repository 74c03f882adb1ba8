//! A rate over time as a step function: a search tree of changes, each node with the sum of its subtree's changes and
//! the largest and smallest prefix sum.
//!
//! A treap (Seidel and Aragon 1996). Priorities are hashes of the instants, so the shape is independent of insertion
//! order and the expected depth is O(log n).

use std::ops::Range;

use penstock_random::Random;

/// A step function of time, zero before the first change.
#[derive(Debug, Clone, Default)]
pub(crate) struct Profile {
    nodes: Vec<TreapNode>,
    free: Vec<u32>,
    root: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
struct TreapNode {
    second: u64,
    /// Bits per second, never zero.
    change: i64,
    left: Option<u32>,
    right: Option<u32>,
    /// Sum of the subtree's changes.
    sum: i64,
    /// Largest and smallest sum of the subtree's first changes, at least one of them.
    most: i64,
    least: i64,
}

impl Profile {
    /// Adds `change` from an instant on.
    pub(crate) fn add(&mut self, second: u64, change: i64) {
        if change == 0 {
            return;
        }
        let (before, rest) = self.split(self.root, second);
        let (here, after) = self.split(rest, second + 1);
        let change = change + here.map_or(0, |node| self.nodes[node as usize].change);
        if let Some(node) = here {
            self.free.push(node);
        }
        let here = (change != 0).then(|| self.leaf(second, change));
        let first = self.merge(before, here);
        self.root = self.merge(first, after);
    }

    /// Returns the maximum over an interval.
    pub(crate) fn most(&self, seconds: Range<u64>) -> i64 {
        let mut most = self.at(seconds.start);
        self.walk(self.root, 0, &seconds, &mut most);
        most
    }

    /// Returns the value at an instant.
    fn at(&self, second: u64) -> i64 {
        let (mut node, mut sum) = (self.root, 0);
        while let Some(id) = node {
            let TreapNode { second: here, change, left, right, .. } = self.nodes[id as usize];
            if here <= second {
                sum += self.sum(left) + change;
                node = right;
            } else {
                node = left;
            }
        }
        sum
    }

    /// Raises `most` to the maximum over the changes inside the interval.
    fn walk(&self, node: Option<u32>, before: i64, seconds: &Range<u64>, most: &mut i64) {
        let Some(id) = node else { return };
        let one = self.nodes[id as usize];
        if before + one.most <= *most {
            return;
        }
        let here = before + self.sum(one.left) + one.change;
        if one.second > seconds.start {
            self.walk(one.left, before, seconds, most);
        }
        if one.second > seconds.start && one.second < seconds.end {
            *most = here.max(*most);
        }
        if one.second < seconds.end {
            self.walk(one.right, here, seconds, most);
        }
    }

    /// Returns the first instant at or after `from` with a value above `limit`.
    pub(crate) fn first_above(&self, from: u64, limit: i64) -> Option<u64> {
        if self.at(from) > limit {
            return Some(from);
        }
        self.first(self.root, 0, from, &|node| node.most, &|rate| rate > limit)
    }

    /// Returns the first instant at or after `from` with a value of at most `limit`.
    pub(crate) fn first_at_most(&self, from: u64, limit: i64) -> Option<u64> {
        if self.at(from) <= limit {
            return Some(from);
        }
        self.first(self.root, 0, from, &|node| node.least, &|rate| rate <= limit)
    }

    /// Returns the first change after an instant to a wanted value; skips subtrees whose extreme is not wanted.
    fn first(
        &self,
        node: Option<u32>,
        before: i64,
        after: u64,
        extreme: &dyn Fn(&TreapNode) -> i64,
        wanted: &dyn Fn(i64) -> bool,
    ) -> Option<u64> {
        let one = self.nodes[node? as usize];
        if !wanted(before + extreme(&one)) {
            return None;
        }
        let here = before + self.sum(one.left) + one.change;
        if one.second > after {
            let left = self.first(one.left, before, after, extreme, wanted);
            if left.is_some() {
                return left;
            }
            if wanted(here) {
                return Some(one.second);
            }
        }
        self.first(one.right, here, after, extreme, wanted)
    }

    /// Returns each change as its instant and the value from then on.
    pub(crate) fn steps(&self) -> Vec<(u64, i64)> {
        let mut steps = Vec::with_capacity(self.nodes.len() - self.free.len());
        let (mut waiting, mut node, mut rate) = (Vec::new(), self.root, 0);
        loop {
            while let Some(id) = node {
                waiting.push(id);
                node = self.nodes[id as usize].left;
            }
            let Some(id) = waiting.pop() else { return steps };
            let one = &self.nodes[id as usize];
            rate += one.change;
            steps.push((one.second, rate));
            node = one.right;
        }
    }

    fn sum(&self, node: Option<u32>) -> i64 {
        node.map_or(0, |node| self.nodes[node as usize].sum)
    }

    fn leaf(&mut self, second: u64, change: i64) -> u32 {
        let node = TreapNode {
            second,
            change,
            left: None,
            right: None,
            sum: change,
            most: change,
            least: change,
        };
        match self.free.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        }
    }

    fn update(&mut self, id: u32) {
        let one = self.nodes[id as usize];
        let here = self.sum(one.left) + one.change;
        let (mut most, mut least) = (here, here);
        if let Some(left) = one.left {
            let left = &self.nodes[left as usize];
            (most, least) = (most.max(left.most), least.min(left.least));
        }
        if let Some(right) = one.right {
            let right = &self.nodes[right as usize];
            (most, least) = (most.max(here + right.most), least.min(here + right.least));
        }
        let sum = here + self.sum(one.right);
        let node = &mut self.nodes[id as usize];
        (node.sum, node.most, node.least) = (sum, most, least);
    }

    /// Splits a subtree into the changes before an instant and the rest.
    fn split(&mut self, node: Option<u32>, second: u64) -> (Option<u32>, Option<u32>) {
        let Some(id) = node else { return (None, None) };
        let one = self.nodes[id as usize];
        if one.second < second {
            let (middle, after) = self.split(one.right, second);
            self.nodes[id as usize].right = middle;
            self.update(id);
            (Some(id), after)
        } else {
            let (before, middle) = self.split(one.left, second);
            self.nodes[id as usize].left = middle;
            self.update(id);
            (before, Some(id))
        }
    }

    /// Joins two trees; all of the first is before all of the second.
    fn merge(&mut self, first: Option<u32>, second: Option<u32>) -> Option<u32> {
        let (Some(a), Some(b)) = (first, second) else { return first.or(second) };
        let priority = |id: u32| Random::new(self.nodes[id as usize].second).next_bits();
        if priority(a) >= priority(b) {
            let right = self.merge(self.nodes[a as usize].right, second);
            self.nodes[a as usize].right = right;
            self.update(a);
            first
        } else {
            let left = self.merge(first, self.nodes[b as usize].left);
            self.nodes[b as usize].left = left;
            self.update(b);
            second
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn reservation_profile_equals_list_model(
            changes in prop::collection::vec((0..40_u64, -5..5_i64), 0..60),
            from in 0..45_u64,
            long in 1..20_u64,
            limit in -10..10_i64,
        ) {
            let mut profile = Profile::default();
            let mut rates = vec![0; 100];
            for (second, change) in changes {
                profile.add(second, change);
                rates[second as usize..].iter_mut().for_each(|rate| *rate += change);
            }
            let seconds = from..from + long;
            let most = rates[from as usize..seconds.end as usize].iter().max();
            prop_assert_eq!(Some(&profile.most(seconds)), most);
            let first = |wanted: &dyn Fn(i64) -> bool| {
                (from..100).find(|second| wanted(rates[*second as usize]))
            };
            prop_assert_eq!(profile.first_above(from, limit), first(&|rate| rate > limit));
            prop_assert_eq!(profile.first_at_most(from, limit), first(&|rate| rate <= limit));
            let mut steps = Vec::new();
            let mut before = 0;
            for (second, rate) in (0..).zip(&rates) {
                if *rate != before {
                    steps.push((second, *rate));
                }
                before = *rate;
            }
            prop_assert_eq!(profile.steps(), steps);
        }
    }

    #[test]
    fn reservation_tree_depth_is_logarithmic() {
        let mut profile = Profile::default();
        (0..100_000).for_each(|second| profile.add(second, 1));
        let mut deepest = 0;
        let mut waiting: Vec<_> = profile.root.map(|root| (root, 1)).into_iter().collect();
        while let Some((id, depth)) = waiting.pop() {
            deepest = deepest.max(depth);
            let TreapNode { left, right, .. } = profile.nodes[id as usize];
            waiting.extend(left.into_iter().chain(right).map(|child| (child, depth + 1)));
        }
        // Of 100,000 nodes drawn by chance 17 levels are the least and some 40 are usual.
        assert!(deepest < 60, "{deepest}");
    }
}
