//! Load balancing over paths by trial allocation.
//!
//! [`super::routes`] counts the users of links, which is quick but ignores weights, marks and deadlines. Here other
//! paths are tried with the allocation itself, first for the runs with the lowest shares. A path is kept if the lowest
//! share per weight, up to the mark of its class, grows by a tenth or more; if equal, the next lowest, and so on; and
//! if all are equal, by the shares above the marks.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use penstock_allocation::{Problem, allocate};

use super::routes::RouteChoice;
use super::{Planner, RunView};

/// Most trial allocations in one round times the number of runs.
const TRIAL_RUNS_MAX: usize = 20_000;

/// Most trial allocations in one round.
const TRIALS_MAX: usize = 200;

/// A share exceeds another from this percentage of it on.
const CLEARLY_MORE_PERCENT: u128 = 110;

/// Rate of a run per weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Level {
    tier: u8,
    /// Part up to the mark of its class; the part above counts only when all are equal up to the marks.
    to_mark: u128,
    all: u128,
}

/// Resources of each path of a run that is up, with the index of the path, by run.
pub(super) type Alternatives = BTreeMap<usize, Vec<(usize, Vec<String>)>>;

/// Returns the number of trial allocations for this many runs.
fn trials(runs: usize) -> usize {
    (TRIAL_RUNS_MAX / runs.max(1)).min(TRIALS_MAX)
}

/// True if there are few enough runs for trials.
pub(super) fn allows_trials(runs: usize) -> bool {
    trials(runs) > 1
}

/// Returns runs that may change path; none if there are too many for trials.
pub(super) fn movable(chosen: &[RouteChoice]) -> impl Iterator<Item = usize> {
    let all = if allows_trials(chosen.len()) { chosen } else { &[] };
    let movable =
        |(at, one): (usize, &RouteChoice)| (one.at.is_some() && one.paths.len() > 1).then_some(at);
    all.iter().enumerate().filter_map(movable)
}

impl Planner {
    /// Changes paths where that is fairer, both in `chosen` and in the problem.
    pub(super) fn balance(
        &self,
        runs: &[&RunView],
        others: &Alternatives,
        chosen: &mut [RouteChoice],
        problem: &mut Problem,
    ) {
        let mut trials = trials(runs.len());
        if others.is_empty() {
            return;
        }
        let weights = self.weights(runs);
        let Some(mut levels) = self.levels(runs, &weights, problem) else { return };
        let mut order: Vec<usize> = others.keys().copied().collect();
        'again: loop {
            order.sort_by_key(|at| (levels[*at], *at));
            for at in &order {
                let before = chosen[*at].at;
                for (index, taken) in others[at].iter().filter(|(index, _)| Some(*index) != before)
                {
                    trials -= 1;
                    if trials == 0 {
                        return;
                    }
                    let paths =
                        std::mem::replace(&mut problem.demands[*at].paths, vec![taken.clone()]);
                    let tried = self.levels(runs, &weights, problem);
                    if let Some(tried) = tried.filter(|tried| fairer(tried, &levels)) {
                        chosen[*at].at = Some(*index);
                        levels = tried;
                        continue 'again;
                    }
                    problem.demands[*at].paths = paths;
                }
            }
            return;
        }
    }

    /// Returns the weight of each run as a fraction: run and class weight over the weight of all runs of the class.
    fn weights(&self, runs: &[&RunView]) -> Vec<(u128, u128)> {
        let own = |run: &RunView| u128::from(run.weight());
        let mut of_class: HashMap<&str, u128> = HashMap::new();
        for run in runs {
            *of_class.entry(&run.class).or_default() += own(run);
        }
        let weight = |run: &&RunView| {
            let class = self.class(&run.class).map_or(1, |class| class.weight);
            (u128::from(class.max(1)) * own(run), of_class[run.class.as_str()])
        };
        runs.iter().map(weight).collect()
    }

    fn levels(
        &self,
        runs: &[&RunView],
        weights: &[(u128, u128)],
        problem: &Problem,
    ) -> Option<Vec<Level>> {
        let allotments = allocate(problem).ok()?.allotments;
        let levels = runs.iter().zip(weights).zip(allotments).map(|((run, weight), allotment)| {
            let class = self.class(&run.class);
            let all = u128::from(allotment.rate.0) * weight.1 / weight.0;
            let mark = class.and_then(|class| class.mark_bps).map_or(u128::MAX, |mark| {
                u128::from(mark) / u128::from(class.map_or(1, |class| class.weight.max(1)))
            });
            Level { tier: class.map_or(0, |class| class.tier), to_mark: all.min(mark), all }
        });
        Some(levels.collect())
    }
}

/// True if new shares are fairer than old ones: compares by tier and in ascending order, up to the marks first, and
/// decides at the first clear difference.
fn fairer(new: &[Level], old: &[Level]) -> bool {
    let compared = |of: fn(&Level) -> u128| {
        let sorted = |levels: &[Level]| {
            let mut sorted: Vec<(u8, u128)> =
                levels.iter().map(|level| (level.tier, of(level))).collect();
            sorted.sort_unstable();
            sorted
        };
        let more = |one: u128, other: u128| one * 100 > other * CLEARLY_MORE_PERCENT;
        let pairs = sorted(new).into_iter().zip(sorted(old));
        let verdicts = pairs.map(|((_, new), (_, old))| more(new, old).cmp(&more(old, new)));
        verdicts.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    };
    compared(|level| level.to_mark).then_with(|| compared(|level| level.all)).is_gt()
}
