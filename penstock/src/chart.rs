//! Plots of reports as SVG: axes with units, lines, steps and bars.

use std::fmt::Write as _;

const CHART_WIDTH: f64 = 760.0;
const PLOT_HEIGHT: f64 = 240.0;
const MARGIN_LEFT: f64 = 64.0;
const MARGIN_RIGHT: f64 = 24.0;
const LINE_HEIGHT: f64 = 18.0;
/// Least ratio between the ends of a logarithmic axis.
const LOG_RATIO_MIN: f64 = 8.0;
const FONT_SIZE: f64 = 12.0;
/// Mean width of a character in pixels.
const CHARACTER_WIDTH: f64 = 7.6;
/// Greatest length of a bar's name; longer ones are cut.
const BAR_NAME_CHARACTERS: usize = 36;
const COLOURS: [&str; 8] =
    ["#1b6ca8", "#d9822b", "#a82b2b", "#4d9221", "#8073ac", "#0f8b8d", "#c51b7d", "#777777"];

/// Style sheet of pages with charts.
pub(crate) const STYLE: &str = "\
:root{color-scheme:light dark}body{font:15px/1.45 sans-serif;max-width:52em;margin:2em auto;padding:0 1em}\
h1{font-size:1.4em;overflow-wrap:anywhere}h2{font-size:1.1em;margin:2em 0 .3em}svg{width:100%;height:auto}\
svg text{fill:currentColor;font-family:sans-serif}.axis{stroke:currentColor;stroke-opacity:.6}.grid{stroke:currentColor;stroke-opacity:.15}\
table{border-collapse:collapse;display:block;overflow-x:auto}td,th{padding:.15em .8em .15em 0;text-align:left;vertical-align:top}\
td.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}p.note{opacity:.75;margin:.3em 0}pre{white-space:pre-wrap}";

/// Quantity of an axis, which determines its units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// Seconds, shown as ns, us, ms or s.
    Seconds,
    /// Hours of a day.
    Hours,
    /// Bytes.
    Bytes,
    /// Bits per second.
    BitsPerSecond,
    /// 0 to 1, shown in percent.
    Share,
    /// A number without a unit.
    Number,
}

/// Label, quantity and scale of an axis.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Axis<'a> {
    pub(crate) label: &'a str,
    pub(crate) quantity: Quantity,
    pub(crate) is_log: bool,
}

impl<'a> Axis<'a> {
    pub(crate) const fn new(label: &'a str, quantity: Quantity) -> Self {
        Self { label, quantity, is_log: false }
    }

    pub(crate) const fn log(label: &'a str, quantity: Quantity) -> Self {
        Self { label, quantity, is_log: true }
    }
}

/// A line of a plot; its points are drawn in the given order.
#[derive(Debug, Clone)]
pub(crate) struct PlotLine {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    /// Set when a value holds until the next point.
    pub(crate) is_stepped: bool,
}

impl PlotLine {
    pub(crate) fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, is_stepped: false }
    }

    /// Empirical cumulative distribution of `values`, from 0 to 1.
    pub(crate) fn distribution(name: impl Into<String>, mut values: Vec<f64>) -> Self {
        const STEPS_MAX: usize = 1000;
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let stride = (count / STEPS_MAX).max(1);
        let mut points = Vec::new();
        if let Some(first) = values.first() {
            points.push((*first, 0.0));
        }
        for (at, value) in values.iter().enumerate() {
            let is_last_of_its_value = values.get(at + 1).is_none_or(|next| next > value);
            if at + 1 == count || (at % stride == 0 && is_last_of_its_value) {
                points.push((*value, (at + 1) as f64 / count as f64));
            }
        }
        Self { name: name.into(), points, is_stepped: true }
    }
}

/// A display unit.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Unit {
    name: &'static str,
    size: f64,
}

/// Returns the display unit for values up to `most`.
fn unit(quantity: Quantity, most: f64) -> Unit {
    let units: &[(&'static str, f64)] = match quantity {
        Quantity::Seconds => &[("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)],
        Quantity::Hours => &[("h", 1.0)],
        Quantity::Bytes => {
            &[("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12), ("PB", 1e15)]
        }
        Quantity::BitsPerSecond => {
            &[("b/s", 1.0), ("kb/s", 1e3), ("Mb/s", 1e6), ("Gb/s", 1e9), ("Tb/s", 1e12)]
        }
        Quantity::Share => &[("%", 0.01)],
        Quantity::Number => &[("", 1.0)],
    };
    let found = units.iter().rev().find(|(_, size)| most >= *size);
    let (name, size) = found.or(units.first()).copied().unwrap_or(("", 1.0));
    Unit { name, size }
}

/// Formats a number without insignificant digits.
fn digits(value: f64) -> String {
    if value != 0.0 && (value.abs() >= 1e6 || value.abs() < 1e-3) {
        return format!("{value:e}");
    }
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Formats a value with its unit.
pub(crate) fn with_unit(quantity: Quantity, value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let Unit { name, size } = unit(quantity, value.abs());
    let separator = if name.is_empty() { "" } else { " " };
    format!("{}{separator}{name}", digits(value / size))
}

/// Marks of an axis with positions as shares of its length, and its two ends.
struct Ticks {
    ends: (f64, f64),
    marks: Vec<(f64, String)>,
    label: String,
}

fn linear(axis: Axis<'_>, low: f64, high: f64, wanted: f64) -> Ticks {
    let Unit { name, size } = unit(axis.quantity, low.abs().max(high.abs()));
    let span = ((high - low) / size).max(1e-12);
    let step = match axis.quantity {
        Quantity::Hours => {
            let steps = [0.25, 0.5, 1.0, 2.0, 3.0, 6.0, 12.0, 24.0, 48.0];
            steps.into_iter().find(|step| span / step <= 9.0).unwrap_or(168.0)
        }
        _ => {
            let power = 10_f64.powf((span / wanted).log10().floor());
            let mut times = [1.0, 2.0, 5.0, 10.0].into_iter();
            power * times.find(|times| span / (power * times) <= wanted).unwrap_or(10.0)
        }
    };
    let (first, last) = ((low / size / step).floor(), (high / size / step - 1e-9).ceil());
    let last = last.max(first + 1.0);
    let count = (last - first).round() as usize;
    let marks = (0..=count).map(|at| {
        let value = (first + at as f64) * step;
        (at as f64 / count as f64, digits(value))
    });
    let label =
        if name.is_empty() { axis.label.to_owned() } else { format!("{} ({name})", axis.label) };
    Ticks { ends: (first * step * size, last * step * size), marks: marks.collect(), label }
}

/// Places marks at powers of ten, and at 2 and 5 times them if there are few.
fn logarithmic(axis: Axis<'_>, low: f64, high: f64) -> Ticks {
    let low = if low > 0.0 { low } else { high.max(1e-12) / 1e3 };
    let high = high.max(low);
    let decades = (high / low).log10();
    let digits: &[f64] = match decades {
        decades if decades < 1.5 => &[1.0, 2.0, 5.0],
        decades if decades < 3.0 => &[1.0, 3.0],
        _ => &[1.0],
    };
    let from = low.log10().floor() as i32;
    let until = high.log10().ceil() as i32;
    let all: Vec<f64> = (from..=until + 1)
        .flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)))
        .collect();
    let first = all.iter().rposition(|value| *value <= low * (1.0 + 1e-9)).unwrap_or(0);
    let last = all.iter().position(|value| *value >= high * (1.0 - 1e-9)).unwrap_or(all.len() - 1);
    let last = if last == first { (first + 1).min(all.len() - 1) } else { last };
    let ends = (all[first], all[last]);
    let stride = ((last - first) / 8).max(1);
    let marks = all[first..=last].iter().step_by(stride).map(|value| {
        let share = (value / ends.0).log10() / (ends.1 / ends.0).log10();
        (share, with_unit(axis.quantity, *value))
    });
    Ticks { ends, marks: marks.collect(), label: axis.label.to_owned() }
}

fn share_of(value: f64, ends: (f64, f64), is_log: bool) -> f64 {
    let share = if is_log {
        (value.max(ends.0) / ends.0).log10() / (ends.1 / ends.0).log10()
    } else {
        (value - ends.0) / (ends.1 - ends.0)
    };
    share.clamp(0.0, 1.0)
}

/// Escapes text for HTML and SVG.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Draws lines over two axes under a heading; the vertical axis begins at 0 unless it is logarithmic.
pub(crate) fn lines(title: &str, across: Axis<'_>, up: Axis<'_>, lines: &[PlotLine]) -> String {
    let all = || {
        lines.iter().flat_map(|line| &line.points).filter(|(x, y)| x.is_finite() && y.is_finite())
    };
    let (mut low, mut high) =
        ((f64::INFINITY, f64::INFINITY), (f64::NEG_INFINITY, f64::NEG_INFINITY));
    for (x, y) in all() {
        low = (low.0.min(*x), low.1.min(*y));
        high = (high.0.max(*x), high.1.max(*y));
    }
    if all().next().is_none() {
        return format!("<h2>{}</h2>\n<p class=\"note\">no data</p>\n", escaped(title));
    }
    // A logarithmic axis of less than a decade has too few marks.
    let is_log = across.is_log && high.0 / low.0 >= LOG_RATIO_MIN;
    let across = Axis { is_log, ..across };
    let ticks = |axis: Axis<'_>, low: f64, high: f64, wanted: f64| match axis.is_log {
        true => logarithmic(axis, low, high),
        false => linear(axis, low, high, wanted),
    };
    let x = ticks(across, low.0, high.0, 8.0);
    let y = ticks(up, if up.is_log { low.1 } else { low.1.min(0.0) }, high.1, 5.0);
    let (legend, legend_rows) = legend(lines);
    let top = LINE_HEIGHT * (legend_rows as f64 + 1.0) + 12.0;
    let bottom = top + PLOT_HEIGHT;
    let height = bottom + 46.0;
    let width = CHART_WIDTH - MARGIN_LEFT - MARGIN_RIGHT;
    let mut text = format!(
        "<h2>{}</h2>\n<svg viewBox=\"0 0 {CHART_WIDTH} {height}\" font-size=\"{FONT_SIZE}\" role=\"img\" aria-label=\"{}\">\n",
        escaped(title),
        escaped(title)
    );
    text += &legend;
    let _ = writeln!(text, "<text x=\"4\" y=\"{}\">{}</text>", top - 10.0, escaped(&y.label));
    for (share, label) in &y.marks {
        let at = bottom - share * PLOT_HEIGHT;
        let _ = writeln!(
            text,
            "<path class=\"grid\" d=\"M{MARGIN_LEFT} {at:.1}h{width}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            MARGIN_LEFT - 8.0,
            at + 4.0
        );
    }
    for (share, label) in &x.marks {
        let at = MARGIN_LEFT + share * width;
        let _ = writeln!(
            text,
            "<path class=\"axis\" d=\"M{at:.1} {bottom}v5\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            bottom + 18.0
        );
    }
    let _ = writeln!(
        text,
        "<path class=\"axis\" d=\"M{MARGIN_LEFT} {top}V{bottom}h{width}\" fill=\"none\"/><text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        MARGIN_LEFT + width / 2.0,
        bottom + 38.0,
        escaped(&x.label)
    );
    let place = |(px, py): &(f64, f64)| {
        let across = MARGIN_LEFT + share_of(*px, x.ends, across.is_log) * width;
        (across, bottom - share_of(*py, y.ends, up.is_log) * PLOT_HEIGHT)
    };
    for (number, line) in lines.iter().enumerate() {
        text += &path(number, line, place);
    }
    text + "</svg>\n"
}

fn path(number: usize, line: &PlotLine, place: impl Fn(&(f64, f64)) -> (f64, f64)) -> String {
    let colour = COLOURS[number % COLOURS.len()];
    let dashes = if number < COLOURS.len() { "" } else { " stroke-dasharray=\"5 3\"" };
    let mut d = String::new();
    let mut previous: Option<f64> = None;
    for point in &line.points {
        if !point.1.is_finite() {
            previous = None;
            continue;
        }
        let (x, y) = place(point);
        let _ = match previous {
            None => write!(d, "M{x:.1} {y:.1}"),
            Some(_) if line.is_stepped => write!(d, "H{x:.1}V{y:.1}"),
            Some(_) => write!(d, "L{x:.1} {y:.1}"),
        };
        previous = Some(y);
    }
    let dot = match line.points.as_slice() {
        [only] => {
            let (x, y) = place(only);
            format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>\n")
        }
        _ => String::new(),
    };
    format!(
        "<path d=\"{d}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" stroke-linejoin=\"round\"{dashes}/>\n{dot}"
    )
}

/// Legend above the plot, in as many rows as needed; empty for a single unnamed line.
fn legend(lines: &[PlotLine]) -> (String, usize) {
    if lines.iter().all(|line| line.name.is_empty()) {
        return (String::new(), 0);
    }
    let (mut text, mut x, mut row) = (String::new(), 4.0, 1_usize);
    for (number, line) in lines.iter().enumerate() {
        let wide = 30.0 + line.name.chars().count() as f64 * CHARACTER_WIDTH;
        if x > 4.0 && x + wide > CHART_WIDTH {
            (x, row) = (4.0, row + 1);
        }
        let y = row as f64 * LINE_HEIGHT - 4.0;
        let dashes = if number < COLOURS.len() { "" } else { " stroke-dasharray=\"5 3\"" };
        let _ = writeln!(
            text,
            "<path d=\"M{x:.1} {:.1}h14\" stroke=\"{}\" stroke-width=\"3\"{dashes}/><text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            y - 4.0,
            COLOURS[number % COLOURS.len()],
            x + 19.0,
            escaped(&line.name)
        );
        x += wide;
    }
    (text, row)
}

/// Draws shares from 0 to 1 as named bars in percent.
pub(crate) fn bars(title: &str, rows: &[(String, f64)]) -> String {
    const BAR_ROW_HEIGHT: f64 = 20.0;
    let cut = |name: &str| -> String {
        if name.chars().count() <= BAR_NAME_CHARACTERS {
            return name.to_owned();
        }
        name.chars().take(BAR_NAME_CHARACTERS - 1).chain(['…']).collect()
    };
    let longest = rows.iter().map(|(name, _)| cut(name).chars().count()).max().unwrap_or(0);
    let left = longest as f64 * CHARACTER_WIDTH + 14.0;
    let width = CHART_WIDTH - left - 60.0;
    let height = rows.len() as f64 * BAR_ROW_HEIGHT + 8.0;
    let mut text = format!(
        "<h2>{}</h2>\n<svg viewBox=\"0 0 {CHART_WIDTH} {height}\" font-size=\"{FONT_SIZE}\" role=\"img\" aria-label=\"{}\">\n",
        escaped(title),
        escaped(title)
    );
    for (row, (name, share)) in rows.iter().enumerate() {
        let y = row as f64 * BAR_ROW_HEIGHT + 4.0;
        let long = share.clamp(0.0, 1.0) * width;
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><path class=\"grid\" d=\"M{left:.1} {:.1}h{width:.1}\"/>\
             <rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{long:.1}\" height=\"14\" fill=\"{}\"/><text x=\"{:.1}\" y=\"{:.1}\">{:.1} %</text>",
            left - 8.0,
            y + 11.0,
            escaped(&cut(name)),
            y + 7.0,
            COLOURS[0],
            left + long + 6.0,
            y + 11.0,
            share * 100.0
        );
    }
    text + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axis_ends_near_largest_value() {
        for high in [0.003, 0.9, 1.0, 2.6, 11.0, 47.0, 5.1e9] {
            let axis = Axis::new("x", Quantity::Number);
            let ticks = linear(axis, 0.0, high, 5.0);
            assert!(ticks.ends.1 >= high * 0.999 && ticks.ends.1 < high * 1.7, "{high}");
            assert!((3..=7).contains(&ticks.marks.len()), "{high}: {:?}", ticks.marks);
        }
    }

    #[test]
    fn units_follow_the_largest_value() {
        let label = |quantity, high| linear(Axis::new("time", quantity), 0.0, high, 5.0).label;
        assert_eq!(label(Quantity::Seconds, 0.0123), "time (ms)");
        assert_eq!(label(Quantity::Seconds, 12.3), "time (s)");
        assert_eq!(label(Quantity::BitsPerSecond, 9.1e10), "time (Gb/s)");
        assert_eq!(label(Quantity::Number, 7.0), "time");
        assert_eq!(with_unit(Quantity::Bytes, 500_000.0), "500 kB");
        assert_eq!(with_unit(Quantity::Seconds, 2e-5), "20 us");
        assert_eq!(with_unit(Quantity::Share, 0.125), "12.5 %");
    }

    #[test]
    fn logarithmic_axes_have_marks_with_units() {
        let ticks = logarithmic(Axis::log("t", Quantity::Seconds), 3e-6, 4e-3);
        let labels: Vec<&str> = ticks.marks.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(labels, ["1 us", "10 us", "100 us", "1 ms", "10 ms"]);
        // A single value has an axis, too.
        let ticks = logarithmic(Axis::log("t", Quantity::Seconds), 6e-3, 6e-3);
        assert!(ticks.ends.0 < 6e-3 && ticks.ends.1 > 6e-3 && ticks.marks.len() >= 2);
    }

    #[test]
    fn distribution_steps_from_zero_to_one() {
        let line = PlotLine::distribution("", vec![3.0, 1.0, 3.0, 2.0]);
        assert_eq!(line.points, [(1.0, 0.0), (1.0, 0.25), (2.0, 0.5), (3.0, 1.0)]);
        let many = PlotLine::distribution("", (0..100_000).map(f64::from).collect());
        assert!(many.points.len() < 1200);
        assert_eq!(many.points.last(), Some(&(99_999.0, 1.0)));
        let plotted =
            lines("t", Axis::new("x", Quantity::Number), Axis::new("y", Quantity::Share), &[line]);
        assert!(plotted.contains('H') && !plotted.contains('L'), "{plotted}");
    }

    /// No name exceeds the picture's width.
    #[test]
    fn legends_wrap_within_the_picture() {
        let names = (0..12)
            .map(|n| PlotLine::new(format!("a class with a long name {n}"), vec![(0.0, 1.0)]));
        let (text, rows) = legend(&names.collect::<Vec<_>>());
        assert!(rows > 2);
        for part in text.split("<text x=\"").skip(1) {
            let x: f64 = part.split('"').next().unwrap().parse().unwrap();
            let name = part.split(['>', '<']).nth(1).unwrap();
            assert!(x + name.chars().count() as f64 * CHARACTER_WIDTH <= CHART_WIDTH, "{part}");
        }
    }

    #[test]
    fn nothing_to_plot_says_so() {
        let axis = Axis::new("x", Quantity::Number);
        assert!(lines("t", axis, axis, &[PlotLine::new("", Vec::new())]).contains("no data"));
    }
}
