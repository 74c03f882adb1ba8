//! Ratios of paired costs, and whether they show a loss.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::bench::contest::median;

/// A figure of a row: the costs of both sides in each round.
#[derive(Debug, Clone)]
pub(super) struct Figure {
    pub(super) row: &'static str,
    /// Quantity with its unit.
    pub(super) name: &'static str,
    /// True for a rate, of which more is better.
    pub(super) is_rate: bool,
    /// Part by which the lower quartile of the ratios may exceed 1.
    pub(super) tolerance: f64,
    /// Values before and now, a pair for each round.
    pub(super) pairs: Vec<[f64; 2]>,
    /// True if another measurement of a lost figure showed no loss.
    pub(super) is_acquitted: bool,
}

impl Figure {
    /// Cost now over cost before in each round, sorted; above 1 is slower.
    fn ratios(&self) -> Vec<f64> {
        let ratio = |[before, now]: &[f64; 2]| {
            if self.is_rate { before / now } else { now / before }
        };
        let mut ratios: Vec<f64> = self.pairs.iter().map(ratio).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    pub(super) fn is_lost(&self) -> bool {
        !self.is_acquitted && quantile(&self.ratios(), 0.25) > 1.0 + self.tolerance
    }

    /// Adds another measurement of the same row: a figure stays lost only if both are.
    pub(super) fn repeat(&mut self, again: Self) {
        self.is_acquitted = self.is_acquitted || !self.is_lost() || !again.is_lost();
        self.pairs.extend(again.pairs);
    }

    /// Medians before and now.
    fn medians(&self) -> [f64; 2] {
        [0, 1].map(|side| median(self.pairs.iter().map(|pair| pair[side])).unwrap_or(f64::NAN))
    }

    pub(super) fn to_json(&self) -> Value {
        let ratios = self.ratios();
        let [before, now] = self.medians();
        json!({
            "row": self.row,
            "figure": self.name,
            "is_rate": self.is_rate,
            "before": before,
            "now": now,
            "cost_ratio": quantile(&ratios, 0.5),
            "quartiles": [quantile(&ratios, 0.25), quantile(&ratios, 0.75)],
            "extremes": [quantile(&ratios, 0.0), quantile(&ratios, 1.0)],
            "tolerance": self.tolerance,
            "rounds": self.pairs.len(),
            "lost": self.is_lost(),
        })
    }
}

/// Quantile of sorted values by linear interpolation.
fn quantile(sorted: &[f64], at: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = at * last as f64;
    let below = place as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}

/// Table of all figures in Markdown.
pub(super) fn table(figures: &[Figure]) -> String {
    let mut text = "| row | figure | before | now | cost ratio | quartiles | extremes | rounds | lost above | |\n\
                    |---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for figure in figures {
        let ratios = figure.ratios();
        let [before, now] = figure.medians();
        let at = |part| quantile(&ratios, part);
        let _ = writeln!(
            text,
            "| {} | {} | {before:.4} | {now:.4} | {:.3} | {:.3}–{:.3} | {:.3}–{:.3} | {} | {:.2} | {} |",
            figure.row,
            figure.name,
            at(0.5),
            at(0.25),
            at(0.75),
            at(0.0),
            at(1.0),
            figure.pairs.len(),
            1.0 + figure.tolerance,
            if figure.is_lost() { "**lost**" } else { "kept" },
        );
    }
    text + "\nCost ratio: the median of now / before (of before / now for a rate) over the rounds: above 1 is slower. Lost: \
            the lower quartile is above 1 plus the tolerance, in a first and in a second measurement.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(is_rate: bool, pairs: &[[f64; 2]]) -> Figure {
        Figure {
            row: "row",
            name: "figure",
            is_rate,
            tolerance: 0.03,
            pairs: pairs.to_vec(),
            is_acquitted: false,
        }
    }

    #[test]
    fn equal_costs_with_noise_are_kept() {
        let pairs = [[1.0, 1.1], [1.1, 1.0], [1.0, 1.02], [1.0, 1.05], [1.05, 1.0], [1.0, 1.3]];
        assert!(!figure(false, &pairs).is_lost());
    }

    #[test]
    fn higher_cost_is_lost() {
        let pairs = [[1.0, 1.1], [1.0, 1.08], [1.0, 1.02], [1.0, 1.06], [1.0, 1.07], [1.0, 1.3]];
        assert!(figure(false, &pairs).is_lost());
        assert!(!figure(true, &pairs).is_lost());
    }

    #[test]
    fn lower_rate_is_lost() {
        assert!(figure(true, &[[100.0, 90.0], [101.0, 91.0], [99.0, 89.0]]).is_lost());
    }

    #[test]
    fn second_measurement_acquits_a_figure() {
        let slow = figure(false, &[[1.0, 1.2], [1.0, 1.2]]);
        let mut first = slow.clone();
        first.repeat(figure(false, &[[1.0, 1.0], [1.0, 1.0]]));
        assert!(!first.is_lost());
        let mut first = slow.clone();
        first.repeat(slow);
        assert!(first.is_lost());
    }

    #[test]
    fn quantiles_are_interpolated() {
        let sorted = [1.0, 2.0, 3.0, 4.0];
        assert_eq!([0.0, 0.25, 0.5, 1.0].map(|at| quantile(&sorted, at)), [1.0, 1.75, 2.5, 4.0]);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
