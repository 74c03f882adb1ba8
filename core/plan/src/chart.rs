//! Draws the total rate of a plan as an SVG bar chart: a group per year, a bar per model.

use std::fmt::Write as _;

use penstock_topology::draw::escaped;
use penstock_units::BitRate;

use crate::{DemandPlan, forecast};

const MARGIN_LEFT: f64 = 76.0;
const MARGIN_RIGHT: f64 = 20.0;
const MARGIN_TOP: f64 = 56.0;
const PLOT_HEIGHT: f64 = 300.0;
const WIDTH_MIN: f64 = 480.0;
const BAR_WIDTH_MIN: f64 = 26.0;
const BAR_WIDTH_MAX: f64 = 90.0;
const GROUP_GAP: f64 = 30.0;
/// Mean width in pixels of a character of the title and of other text.
const TITLE_CHARACTER_WIDTH: f64 = 8.6;
const CHARACTER_WIDTH: f64 = 7.0;
const LEGEND_ROW_HEIGHT: f64 = 20.0;
/// Horizontal grid lines, without the axis.
const GRID_LINES_MAX: u64 = 6;
/// Colours of the models, distinct in print and for colour-blind readers.
const COLOURS: [&str; 6] = ["#2a6fb0", "#e08214", "#4d9221", "#8073ac", "#c51b7d", "#777777"];

const STYLE: &str = "text{font:12px sans-serif;fill:#24303c}.back{fill:#fff}.title{font-size:15px;font-weight:bold}\
.grid{stroke:#d5dde5}.right{text-anchor:end}.middle{text-anchor:middle}.small{font-size:10px}\
@media(prefers-color-scheme:dark){text{fill:#d7e1eb}.back{fill:#10161d}.grid{stroke:#2c3a48}}";

/// Draws the given years of a plan as a complete SVG document.
#[must_use]
pub fn svg(plan: &DemandPlan, years: &[u16]) -> String {
    let title = plan.title.as_deref().unwrap_or(&plan.name);
    let (count, models) = (years.len().max(1) as f64, plan.models.len().max(1) as f64);
    let bar = (((WIDTH_MIN - MARGIN_LEFT - MARGIN_RIGHT) / count - GROUP_GAP) / models)
        .clamp(BAR_WIDTH_MIN, BAR_WIDTH_MAX);
    let group = models * bar + GROUP_GAP;
    let width = (MARGIN_LEFT + count * group + MARGIN_RIGHT)
        .max(32.0 + title.chars().count() as f64 * TITLE_CHARACTER_WIDTH);
    // A long title widens the gaps, not the bars.
    let group = (width - MARGIN_LEFT - MARGIN_RIGHT) / count;
    let gap = group - models * bar;
    let rate = |model: usize, year: u16| forecast::total(plan, &plan.models[model], year);
    let rates =
        years.iter().flat_map(|year| (0..plan.models.len()).map(|model| rate(model, *year)));
    let (step, lines) = scale(rates.max().unwrap_or_default());
    let most = step as f64 * lines as f64;
    let bottom = MARGIN_TOP + PLOT_HEIGHT;
    let (legend, legend_rows) = legend(plan, width, bottom + 44.0);
    let height = bottom + 40.0 + legend_rows as f64 * LEGEND_ROW_HEIGHT;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height}\" width=\"{width:.0}\" height=\"{height}\" role=\"img\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n<rect class=\"back\" width=\"{width:.0}\" height=\"{height}\"/>\n\
         <text class=\"title\" x=\"16\" y=\"28\">{title}</text>\n",
        title = escaped(title),
    );
    for line in 0..=lines {
        let y = bottom - PLOT_HEIGHT * line as f64 / lines as f64;
        let label = if line == 0 { "0".to_owned() } else { BitRate(step * line).to_string() };
        let _ = writeln!(
            text,
            "<path class=\"grid\" d=\"M{MARGIN_LEFT} {y:.1}H{:.1}\"/><text class=\"right\" x=\"{}\" y=\"{:.1}\">{label}</text>",
            width - MARGIN_RIGHT,
            MARGIN_LEFT - 8.0,
            y + 4.0
        );
    }
    for (index, year) in years.iter().enumerate() {
        let left = MARGIN_LEFT + gap / 2.0 + index as f64 * group;
        for (model, terms) in plan.models.iter().enumerate() {
            let rate = rate(model, *year);
            let height = PLOT_HEIGHT * rate.0 as f64 / most;
            let (x, y) = (left + model as f64 * bar, bottom - height);
            let _ = writeln!(
                text,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{}\"><title>{}, {year}: {rate}</title></rect>",
                bar - 3.0,
                COLOURS[model % COLOURS.len()],
                escaped(&terms.name),
            );
        }
        let middle = left + models * bar / 2.0;
        let _ = writeln!(
            text,
            "<text class=\"middle\" x=\"{middle:.1}\" y=\"{}\">{year}</text>",
            bottom + 18.0
        );
    }
    text + &legend + "</svg>\n"
}

/// Formats the legend below `top`; returns it with its number of rows.
fn legend(plan: &DemandPlan, width: f64, top: f64) -> (String, usize) {
    let (mut text, mut x, mut row) = (String::new(), MARGIN_LEFT, 0_usize);
    for (model, terms) in plan.models.iter().enumerate() {
        let wide = 40.0 + terms.name.chars().count() as f64 * CHARACTER_WIDTH;
        if x > MARGIN_LEFT && x + wide > width {
            (x, row) = (MARGIN_LEFT, row + 1);
        }
        let y = top + row as f64 * LEGEND_ROW_HEIGHT;
        let _ = writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            y - 10.0,
            COLOURS[model % COLOURS.len()],
            x + 18.0,
            escaped(&terms.name)
        );
        x += wide;
    }
    (text, row + 1)
}

/// The step between grid lines, 1, 2 or 5 times a power of ten, and the number of lines that covers `most`.
fn scale(most: BitRate) -> (u64, u64) {
    let mut power = 1_u64;
    loop {
        for times in [1, 2, 5] {
            let step = power.saturating_mul(times);
            if step.saturating_mul(GRID_LINES_MAX) >= most.0 {
                return (step, most.0.div_ceil(step).max(1));
            }
        }
        power = power.saturating_mul(10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The highest bar fills more than two thirds of the height.
    #[test]
    fn scale_fits_the_highest_bar() {
        for most in [1, 3, 7, 999, 1_200_000_000_000, 2_600_000_000_000, 51_600_000_000_001] {
            let (step, lines) = scale(BitRate(most));
            assert!(step * lines >= most && lines <= GRID_LINES_MAX, "{most}");
            assert!(
                most as f64 > 0.66 * (step * lines) as f64 || lines == 1,
                "{most}: {step} {lines}"
            );
        }
        assert_eq!(scale(BitRate(0)), (1, 1));
    }
}
