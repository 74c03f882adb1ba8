//! Ways chosen by what comes of them: a transfer goes another way when the shares of all are fairer then.
//!
//! [`super::route`] counts users of links, which is quick and knows nothing of weights, marks and deadlines. Here a few
//! changes are tried with the allocation itself, for those first that have least. One is kept where the smallest
//! share for its weight, as far as the mark of its class, grows by a tenth or more; where that stays, the next larger
//! one, and so on; and where all stay, with what is above the marks.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use penstock_allocation::{Problem, allocate};

use super::route::Chosen;
use super::{Planner, RunView};

/// Of so many transfers all in all the shares are worked out anew in one round, at most.
const WORK_MAX: usize = 20_000;

/// Allocations in one round, at most.
const TRIES_MAX: usize = 200;

/// One share is more than another when it is so many hundredths of it.
const MORE: u128 = 110;

/// A share for its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Level {
    tier: u8,
    /// As far as the mark of its class: what is above counts only where nobody lacks anything below.
    to_mark: u128,
    all: u128,
}

/// By run: what it takes on each of its ways that are up, with the place of that way among its ways.
pub(super) type Others = BTreeMap<usize, Vec<(usize, Vec<String>)>>;

/// Allocations that may be tried for so many runs.
fn tries(runs: usize) -> usize {
    (WORK_MAX / runs.max(1)).min(TRIES_MAX)
}

/// Whether there are few enough runs to try anything.
pub(super) fn is_tried(runs: usize) -> bool {
    tries(runs) > 1
}

/// Runs that may go another way now; none where there are too many runs to try any.
pub(super) fn movable(chosen: &[Chosen]) -> impl Iterator<Item = usize> {
    let all = if is_tried(chosen.len()) { chosen } else { &[] };
    let movable =
        |(at, one): (usize, &Chosen)| (one.at.is_some() && one.is_one_of_several()).then_some(at);
    all.iter().enumerate().filter_map(movable)
}

impl Planner {
    /// Changes ways where that is fairer, in what was chosen and in the problem.
    pub(super) fn balance(
        &self,
        runs: &[&RunView],
        others: &Others,
        chosen: &mut [Chosen],
        problem: &mut Problem,
    ) {
        let mut tries = tries(runs.len());
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
                for (way, taken) in others[at].iter().filter(|(way, _)| Some(*way) != before) {
                    tries -= 1;
                    if tries == 0 {
                        return;
                    }
                    let paths =
                        std::mem::replace(&mut problem.demands[*at].paths, vec![taken.clone()]);
                    let tried = self.levels(runs, &weights, problem);
                    if let Some(tried) = tried.filter(|tried| fairer(tried, &levels)) {
                        chosen[*at].at = Some(*way);
                        levels = tried;
                        continue 'again;
                    }
                    problem.demands[*at].paths = paths;
                }
            }
            return;
        }
    }

    /// What each run has of its class's weight: weight of the run and of the class over that of all runs of the class.
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

/// Whether shares are fairer than others: the first of them that differ much, by tier and from the smallest on, below the
/// marks, and where these do not, with what is above.
fn fairer(new: &[Level], old: &[Level]) -> bool {
    let compared = |of: fn(&Level) -> u128| {
        let sorted = |levels: &[Level]| {
            let mut sorted: Vec<(u8, u128)> =
                levels.iter().map(|level| (level.tier, of(level))).collect();
            sorted.sort_unstable();
            sorted
        };
        let more = |one: u128, other: u128| one * 100 > other * MORE;
        let pairs = sorted(new).into_iter().zip(sorted(old));
        let verdicts = pairs.map(|((_, new), (_, old))| more(new, old).cmp(&more(old, new)));
        verdicts.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    };
    compared(|level| level.to_mark).then_with(|| compared(|level| level.all)).is_gt()
}
