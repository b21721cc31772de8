//! Plots as SVG: lines and points on two axes, linear or logarithmic, with ticks and a legend.
//!
//! ```text
//!   Plot::new("freshness over bandwidth", Axis::linear("reads a day"), Axis::linear("freshness").from(0.0).to(1.0))
//!       .line("uniform", points).dashed("optimum", points).scatter("pages", points)
//!       .write("freshness.svg")
//! ```
//!
//! Made for `benches/plots/`: plain text, the same bytes for the same points (so that a plot changes only when its figures do), no
//! fonts or scripts. Colours follow the reader's light or dark scheme. A point that has no place (not finite, or not above 0 on a
//! logarithmic axis) is left out, and breaks its line.

use std::fmt::Write as _;
use std::path::Path;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 74.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;
/// Right of the axes without a legend, and what a legend's sample and gaps take.
const RIGHT: f64 = 24.0;
const LEGEND_SAMPLE: f64 = 44.0;
const LETTER: f64 = 6.7;
const LEGEND_LINE: f64 = 20.0;
/// Ticks that are aimed at on an axis.
const TICKS: f64 = 7.0;
/// Colours of the series, on light and on dark ground.
const COLOURS: [(&str, &str); 8] = [
    ("#0b62a4", "#58a6ff"),
    ("#c8430b", "#ff9a5c"),
    ("#1a7f37", "#4ac26b"),
    ("#8b3fa8", "#d2a8ff"),
    ("#9a6700", "#e3b341"),
    ("#0e7c86", "#56d4dd"),
    ("#b3246b", "#ff7bbd"),
    ("#57606a", "#b1bac4"),
];

/// How values lie on an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scale {
    Linear,
    Log,
}

/// One axis: what it shows, and from where to where.
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    label: String,
    scale: Scale,
    from: Option<f64>,
    to: Option<f64>,
}

impl Axis {
    /// A linear axis, as long as the points need.
    pub fn linear(label: &str) -> Axis {
        Axis { label: label.to_owned(), scale: Scale::Linear, from: None, to: None }
    }

    /// A logarithmic axis, as long as the points need.
    pub fn log(label: &str) -> Axis {
        Axis { scale: Scale::Log, ..Axis::linear(label) }
    }

    /// Where it begins, whatever the points are.
    #[must_use]
    pub fn from(self, from: f64) -> Axis {
        Axis { from: Some(from), ..self }
    }

    /// Where it ends, whatever the points are.
    #[must_use]
    pub fn to(self, to: f64) -> Axis {
        Axis { to: Some(to), ..self }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mark {
    Line,
    Dashed,
    Scatter,
}

#[derive(Clone, PartialEq, Debug)]
struct Series {
    name: String,
    mark: Mark,
    points: Vec<(f64, f64)>,
}

/// A plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Plot {
    title: String,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
}

impl Plot {
    /// A plot without any series.
    pub fn new(title: &str, x: Axis, y: Axis) -> Plot {
        Plot { title: title.to_owned(), x, y, series: Vec::new() }
    }

    /// Adds a line through points, in their order.
    #[must_use]
    pub fn line(self, name: &str, points: Vec<(f64, f64)>) -> Plot {
        self.with(name, Mark::Line, points)
    }

    /// Adds a dashed line: a limit, an optimum, a claim.
    #[must_use]
    pub fn dashed(self, name: &str, points: Vec<(f64, f64)>) -> Plot {
        self.with(name, Mark::Dashed, points)
    }

    /// Adds points that no line joins.
    #[must_use]
    pub fn scatter(self, name: &str, points: Vec<(f64, f64)>) -> Plot {
        self.with(name, Mark::Scatter, points)
    }

    fn with(mut self, name: &str, mark: Mark, points: Vec<(f64, f64)>) -> Plot {
        self.series.push(Series { name: name.to_owned(), mark, points });
        self
    }

    /// Writes it to a file, whose folder is made if need be.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: impl AsRef<Path>) -> std::io::Result<()> {
        let path = path.as_ref();
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, self.svg())
    }

    /// The whole picture.
    pub fn svg(&self) -> String {
        let longest = self.series.iter().map(|series| series.name.chars().count()).max().unwrap_or(0);
        let legend = if longest == 0 { RIGHT } else { LEGEND_SAMPLE + longest as f64 * LETTER + 8.0 };
        let points = || self.series.iter().flat_map(|series| &series.points).copied();
        let x = Range::of(&self.x, points().map(|point| point.0), LEFT, WIDTH - legend);
        let y = Range::of(&self.y, points().map(|point| point.1), HEIGHT - BOTTOM, TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"12\">\n"
        );
        style(&mut svg);
        let _ = writeln!(svg, "<title>{}</title>", escape(&self.title));
        let _ = writeln!(svg, "<rect class=\"ground\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>");
        let _ = writeln!(
            svg,
            "<text class=\"ink\" x=\"{LEFT}\" y=\"24\" font-size=\"15\" font-weight=\"600\">{}</text>",
            escape(&self.title)
        );
        axes(&mut svg, self, &x, &y);
        for (number, series) in self.series.iter().enumerate() {
            draw(&mut svg, number % COLOURS.len(), series, &x, &y);
        }
        for (number, series) in self.series.iter().enumerate().filter(|(_, series)| !series.name.is_empty()) {
            let at = TOP + 10.0 + number as f64 * LEGEND_LINE;
            let from = WIDTH - legend + 12.0;
            let sample = Series {
                name: String::new(),
                mark: series.mark,
                points: match series.mark {
                    Mark::Scatter => vec![(from + 11.0, at)],
                    _ => vec![(from, at), (from + 22.0, at)],
                },
            };
            draw(&mut svg, number % COLOURS.len(), &sample, &Range::as_is(), &Range::as_is());
            let _ = writeln!(
                svg,
                "<text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                from + 29.0,
                at + 4.0,
                escape(&series.name)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// From values to places on the picture.
struct Range {
    scale: Scale,
    /// On a logarithmic axis decimal logarithms.
    low: f64,
    high: f64,
    at_low: f64,
    at_high: f64,
}

impl Range {
    fn of(axis: &Axis, values: impl Iterator<Item = f64>, at_low: f64, at_high: f64) -> Range {
        let inner = |value: f64| match axis.scale {
            Scale::Linear => value,
            Scale::Log => value.log10(),
        };
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.map(inner).filter(|value| value.is_finite()) {
            low = low.min(value);
            high = high.max(value);
        }
        let given = |bound: Option<f64>| bound.map(inner).filter(|bound| bound.is_finite());
        if low > high {
            // Nothing to show: the given ends, or any.
            low = given(axis.from).unwrap_or(0.0);
            high = given(axis.to).unwrap_or(low + 1.0);
        }
        let room = (high - low) * 0.03;
        low = given(axis.from).unwrap_or(low - room);
        high = given(axis.to).unwrap_or(high + room);
        if high - low <= low.abs() * 1e-12 {
            (low, high) = (low - 0.5, high + 0.5);
        }
        Range { scale: axis.scale, low, high, at_low, at_high }
    }

    /// Values are places.
    fn as_is() -> Range {
        Range { scale: Scale::Linear, low: 0.0, high: 1.0, at_low: 0.0, at_high: 1.0 }
    }

    /// The place of a value; `None` where it has none. Values beyond the ends lie beyond the axis, and are cut off there.
    fn place(&self, value: f64) -> Option<f64> {
        let inner = match self.scale {
            Scale::Linear => value,
            Scale::Log => value.log10(),
        };
        let share = (inner - self.low) / (self.high - self.low);
        inner.is_finite().then_some(self.at_low + share * (self.at_high - self.at_low))
    }

    /// Values that get a line, and what is written there.
    fn ticks(&self) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Linear => {
                let step = round_step((self.high - self.low) / TICKS);
                let (first, last) = ((self.low / step - 1e-6).ceil(), (self.high / step + 1e-6).floor());
                let numbers = (0..=(last - first).max(0.0) as u64).map(|n| (first + n as f64) * step);
                numbers.map(|value| (value, number(value, step))).collect()
            }
            Scale::Log => {
                let (first, last) = (self.low.floor() as i32, self.high.ceil() as i32);
                let every = ((self.high - self.low) / 10.0).ceil().max(1.0) as i32;
                let within = if self.high - self.low < 2.5 { &[1.0, 2.0, 5.0][..] } else { &[1.0] };
                let mut ticks = Vec::new();
                for decade in (first..=last).filter(|decade| decade.rem_euclid(every) == 0) {
                    for digit in within {
                        let value = digit * 10f64.powi(decade);
                        let at = value.log10();
                        if at >= self.low - 1e-9 && at <= self.high + 1e-9 {
                            ticks.push((value, number(value, value)));
                        }
                    }
                }
                ticks
            }
        }
    }
}

/// 1, 2 or 5 times a power of ten, next above.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|step| *step >= least * 0.999)
        .unwrap_or(10.0 * power)
}

/// A value with as many digits as tell it from its neighbours.
fn number(value: f64, step: f64) -> String {
    if value == 0.0 || value.abs() < step * 1e-6 {
        return "0".to_owned();
    }
    let (size, digits) = (value.abs(), (-step.log10() - 1e-9).ceil().max(0.0) as usize);
    let (scaled, unit) = match size {
        _ if size >= 1e15 || digits > 6 => return format!("{value:e}"),
        _ if size >= 1e9 => (value / 1e9, " G"),
        _ if size >= 1e6 => (value / 1e6, " M"),
        _ if size >= 1e4 => (value / 1e3, " k"),
        _ => return format!("{value:.digits$}"),
    };
    let text = format!("{scaled:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn style(svg: &mut String) {
    svg.push_str("<style>\n.ground{fill:#ffffff}.ink{fill:#1f2328}.faint{fill:#59636e}.grid{stroke:#d1d9e0}.frame{stroke:#818b98;fill:none}\n");
    for (number, (light, _)) in COLOURS.iter().enumerate() {
        let _ = write!(svg, ".l{number}{{stroke:{light};fill:none}}.p{number}{{fill:{light}}}");
    }
    svg.push_str("\n@media (prefers-color-scheme: dark){\n.ground{fill:#0d1117}.ink{fill:#e6edf3}.faint{fill:#9198a1}.grid{stroke:#2b323b}.frame{stroke:#656c76}\n");
    for (number, (_, dark)) in COLOURS.iter().enumerate() {
        let _ = write!(svg, ".l{number}{{stroke:{dark}}}.p{number}{{fill:{dark}}}");
    }
    svg.push_str("}\n</style>\n");
}

fn axes(svg: &mut String, plot: &Plot, x: &Range, y: &Range) {
    let (left, right, low, high) = (x.at_low, x.at_high, y.at_low, y.at_high);
    for (value, text) in x.ticks() {
        let Some(at) = x.place(value) else { continue };
        let _ = writeln!(svg, "<path class=\"grid\" d=\"M{at:.1} {low:.1}V{high:.1}\"/>");
        let _ = writeln!(
            svg,
            "<text class=\"faint\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
            low + 17.0
        );
    }
    for (value, text) in y.ticks() {
        let Some(at) = y.place(value) else { continue };
        let _ = writeln!(svg, "<path class=\"grid\" d=\"M{left:.1} {at:.1}H{right:.1}\"/>");
        let _ = writeln!(
            svg,
            "<text class=\"faint\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            left - 7.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<path class=\"frame\" d=\"M{left:.1} {high:.1}V{low:.1}H{right:.1}\"/>\n\
         <clipPath id=\"within\"><rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/></clipPath>",
        left - 3.0,
        high - 3.0,
        right - left + 6.0,
        low - high + 6.0
    );
    let _ = writeln!(
        svg,
        "<text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        (left + right) / 2.0,
        low + 40.0,
        escape(&plot.x.label)
    );
    let middle = (low + high) / 2.0;
    let _ = writeln!(
        svg,
        "<text class=\"ink\" transform=\"translate(18 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        escape(&plot.y.label)
    );
}

fn draw(svg: &mut String, colour: usize, series: &Series, x: &Range, y: &Range) {
    let place = |&(a, b): &(f64, f64)| Some((x.place(a)?, y.place(b)?));
    // A legend's sample has no axes to be cut off at.
    let within = if series.name.is_empty() { "" } else { " clip-path=\"url(#within)\"" };
    if series.mark == Mark::Scatter {
        let _ = writeln!(svg, "<g class=\"p{colour}\" fill-opacity=\"0.55\"{within}>");
        for (a, b) in series.points.iter().filter_map(place) {
            let _ = writeln!(svg, "<circle cx=\"{a:.1}\" cy=\"{b:.1}\" r=\"2.4\"/>");
        }
        svg.push_str("</g>\n");
        return;
    }
    let mut path = String::new();
    let mut pen_down = false;
    for point in &series.points {
        match place(point) {
            Some((a, b)) => {
                let _ = write!(path, "{}{a:.1} {b:.1}", if pen_down { 'L' } else { 'M' });
                pen_down = true;
            }
            None => pen_down = false,
        }
    }
    let dashes = if series.mark == Mark::Dashed { " stroke-dasharray=\"6 4\"" } else { "" };
    let _ = writeln!(
        svg,
        "<path class=\"l{colour}\" stroke-width=\"1.9\" stroke-linejoin=\"round\"{dashes}{within} d=\"{path}\"/>"
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_where_the_axes_say() {
        let plot =
            Plot::new("a < b", Axis::log("x").from(1.0).to(100.0), Axis::linear("y").from(0.0).to(1.0))
                .line("one & two", vec![(1.0, 0.0), (10.0, 0.5), (100.0, 1.0)]);
        let svg = plot.svg();
        let right = WIDTH - (LEGEND_SAMPLE + 9.0 * LETTER + 8.0);
        let (middle, low, half) = ((LEFT + right) / 2.0, HEIGHT - BOTTOM, (HEIGHT - BOTTOM + TOP) / 2.0);
        let path = format!("M{LEFT:.1} {low:.1}L{middle:.1} {half:.1}L{right:.1} {TOP:.1}");
        assert!(svg.contains(&path), "{path} is not in {svg}");
        assert!(svg.contains("a &lt; b") && svg.contains(">one &amp; two<") && !svg.contains("a < b"));
        assert!(svg.contains("prefers-color-scheme: dark"));
        assert_eq!(svg, plot.svg());
    }

    #[test]
    fn a_point_without_a_place_breaks_the_line() {
        let points = vec![(1.0, 1.0), (2.0, 10.0), (3.0, 0.0), (4.0, f64::NAN), (5.0, 10.0), (6.0, 1.0)];
        let line = Plot::new("", Axis::linear(""), Axis::log("")).line("a", points.clone()).svg();
        let path = line.lines().find(|line| line.starts_with("<path class=\"l0\"")).unwrap();
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 2), "{path}");
        let scatter = Plot::new("", Axis::linear(""), Axis::log("")).scatter("a", points).svg();
        // Four points, and the sample in the legend.
        assert_eq!(scatter.matches("<circle").count(), 5);
    }

    fn texts(axis: &Axis, values: &[f64]) -> Vec<String> {
        Range::of(axis, values.iter().copied(), 0.0, 1.0).ticks().into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round_numbers_within_the_axis() {
        let linear = Axis::linear("");
        assert_eq!(texts(&linear.clone().from(0.0).to(1.0), &[]), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(
            texts(&linear.clone().from(0.0).to(30_000.0), &[]),
            ["0", "5000", "10 k", "15 k", "20 k", "25 k", "30 k"]
        );
        assert_eq!(texts(&linear.clone().from(-1.0).to(1.0), &[]), ["-1.0", "-0.5", "0", "0.5", "1.0"]);
        assert_eq!(texts(&Axis::log("").from(0.001).to(10.0), &[]), ["0.001", "0.01", "0.1", "1", "10"]);
        assert_eq!(texts(&Axis::log("").from(1.0).to(20.0), &[]), ["1", "2", "5", "10", "20"]);
        assert_eq!(texts(&Axis::log("").from(1e5).to(1e7), &[])[0], "100 k");
        // One value, or none: an axis all the same.
        assert!(!texts(&linear, &[5.0]).is_empty() && !texts(&linear, &[]).is_empty());
        assert!(!texts(&Axis::log(""), &[0.0]).is_empty());
    }
}
