//! A picture of what a plan comes to: bars of each year, one for each model, as SVG.

use std::fmt::Write as _;

use penstock_topology::draw::escaped;
use penstock_units::BitRate;

use crate::{Plan, forecast};

const LEFT: f64 = 76.0;
const TOP: f64 = 56.0;
const HEIGHT: f64 = 300.0;
const BAR: f64 = 26.0;
const GAP: f64 = 30.0;
/// Of models, told apart in print and by those who see fewer colours.
const COLOURS: [&str; 6] = ["#2a6fb0", "#e08214", "#4d9221", "#8073ac", "#c51b7d", "#777777"];

const STYLE: &str = "text{font:12px sans-serif;fill:#24303c}.back{fill:#fff}.title{font-size:15px;font-weight:bold}\
.grid{stroke:#d5dde5}.right{text-anchor:end}.middle{text-anchor:middle}.small{font-size:10px}\
@media(prefers-color-scheme:dark){text{fill:#d7e1eb}.back{fill:#10161d}.grid{stroke:#2c3a48}}";

/// A whole SVG document.
#[must_use]
pub fn svg(plan: &Plan) -> String {
    let years: Vec<u16> = plan.years.clone().collect();
    let group = plan.models.len() as f64 * BAR + GAP;
    let width = (LEFT + years.len() as f64 * group + 20.0).max(480.0);
    let bottom = TOP + HEIGHT;
    let rate = |model: usize, year: u16| forecast::total(plan, &plan.models[model], year);
    let rates =
        years.iter().flat_map(|year| (0..plan.models.len()).map(|model| rate(model, *year)));
    let step = step(rates.max().unwrap_or_default());
    let most = step as f64 * 5.0;
    let title = plan.title.as_deref().unwrap_or(&plan.name);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {full}\" width=\"{width}\" height=\"{full}\" role=\"img\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n<rect class=\"back\" width=\"{width}\" height=\"{full}\"/>\n\
         <text class=\"title\" x=\"16\" y=\"28\">{title}</text>\n",
        full = bottom + 60.0,
        title = escaped(title),
    );
    for line in 0..=5 {
        let y = bottom - HEIGHT * f64::from(line) / 5.0;
        let label = if line == 0 {
            "0".to_owned()
        } else {
            BitRate(step * u64::from(line as u32)).to_string()
        };
        let _ = writeln!(
            text,
            "<path class=\"grid\" d=\"M{LEFT} {y}H{}\"/><text class=\"right\" x=\"{}\" y=\"{}\">{label}</text>",
            width - 12.0,
            LEFT - 8.0,
            y + 4.0
        );
    }
    for (place, year) in years.iter().enumerate() {
        let left = LEFT + GAP / 2.0 + place as f64 * group;
        for (model, terms) in plan.models.iter().enumerate() {
            let rate = rate(model, *year);
            let height = HEIGHT * rate.0 as f64 / most;
            let (x, y) = (left + model as f64 * BAR, bottom - height);
            let _ = writeln!(
                text,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{}\" height=\"{height:.1}\" fill=\"{}\"><title>{}, {year}: {rate}</title></rect>",
                BAR - 3.0,
                COLOURS[model % COLOURS.len()],
                escaped(&terms.name),
            );
        }
        let middle = left + (group - GAP) / 2.0;
        let _ = writeln!(
            text,
            "<text class=\"middle\" x=\"{middle:.1}\" y=\"{}\">{year}</text>",
            bottom + 18.0
        );
    }
    let mut x = LEFT;
    for (model, terms) in plan.models.iter().enumerate() {
        let y = bottom + 44.0;
        let _ = writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{:.1}\" y=\"{y}\">{}</text>",
            y - 10.0,
            COLOURS[model % COLOURS.len()],
            x + 18.0,
            escaped(&terms.name)
        );
        x += 40.0 + terms.name.chars().count() as f64 * 7.5;
    }
    text + "</svg>\n"
}

/// Of five lines: 1, 2 or 5 times a power of ten, the last line not below the most.
fn step(most: BitRate) -> u64 {
    let mut power = 1_u64;
    loop {
        for times in [1, 2, 5] {
            let step = power.saturating_mul(times);
            if step.saturating_mul(5) >= most.0 {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}
