//! Charts as SVG: groups of bars, or lines over named positions. The same chart always gives the
//! same bytes.

use super::statistics::Summary;
use crate::Outcome;
use plotters::{
    coord::ranged1d::{DefaultFormatting, KeyPointHint},
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::ops::Range;

/// The library rounds coordinates to integers, so charts are drawn large: dashes stay straight.
const WIDTH: u32 = 1840;
const HEIGHT: u32 = 880;
const LEGEND_WIDTH: u32 = 480;
const MARGIN: i32 = 8;
const TEXT: RGBColor = RGBColor(40, 40, 40);

/// Colours that are distinguishable with colour blindness (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(110, 110, 110),
    RGBColor(240, 228, 66),
];

/// Style of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Bars, beside those of other series.
    Bar,
    /// Bars in a pale colour: published figures, or another drive.
    PaleBar,
    /// A line with points.
    Line,
    /// A dashed line: published figures, or a prediction.
    Dashed,
}

/// A series of values.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// For the legend.
    name: String,
    /// Index of the colour, the same in every chart.
    colour: usize,
    mark: Mark,
    /// Positions and values, those without a deviation without an error bar.
    points: Vec<(usize, Summary)>,
}

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// Below the positions.
    x_label: String,
    /// Beside the values.
    y_label: String,
    /// Names of the positions.
    positions: Vec<String>,
    series: Vec<Series>,
}

impl Series {
    /// A series with a value at each position that has one.
    pub fn new<V: Into<Option<Summary>>>(
        name: impl Into<String>,
        (colour, mark): (usize, Mark),
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        let values = values.into_iter().enumerate();
        Self {
            name: name.into(),
            colour,
            mark,
            points: values
                .filter_map(|(position, value)| Some((position, value.into()?)))
                .collect(),
        }
    }

    /// The same, of values that were measured once.
    pub fn exact<V: Into<Option<f64>>>(
        name: impl Into<String>,
        look: (usize, Mark),
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        let values = values.into_iter().map(|value| value.into().map(Summary::exact));
        Self::new(name, look, values)
    }

    fn colour(&self) -> RGBColor {
        let RGBColor(red, green, blue) = COLOURS[self.colour % COLOURS.len()];
        let pale = |part: u8| part / 3 + 150;
        match self.mark {
            Mark::PaleBar => RGBColor(pale(red), pale(green), pale(blue)),
            _ => RGBColor(red, green, blue),
        }
    }

    fn is_bar(&self) -> bool {
        matches!(self.mark, Mark::Bar | Mark::PaleBar)
    }
}

fn text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&TEXT)
}

/// A number short enough for an axis.
fn axis_number(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        _ if magnitude < 1e-12 => "0".to_owned(),
        _ if magnitude >= 1e6 => format!("{} M", value / 1e6),
        _ if magnitude >= 1e4 => format!("{} k", value / 1e3),
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

/// Ticks of an axis from 0: round numbers, at most eight, the last at or above the highest value.
fn axis_marks(highest: f64) -> Vec<f64> {
    if !(highest.is_finite() && highest > 0.0) {
        return vec![0.0, 1.0];
    }
    let power = 10.0_f64.powf((highest / 7.0).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    let step = steps
        .into_iter()
        .find(|step| highest / step <= 7.0)
        .unwrap_or(10.0 * power);
    let count = (highest * 1.02 / step).ceil() as usize;
    (0..=count).map(|number| number as f64 * step).collect()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

/// An axis with our ticks instead of the library's.
struct Axis {
    range: Range<f64>,
    marks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            Vec::new()
        } else {
            self.marks.clone()
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl Chart {
    /// A chart of these series, except those without values.
    pub fn new<P: ToString>(
        title: &str,
        x_label: &str,
        y_label: &str,
        positions: impl IntoIterator<Item = P>,
        series: impl IntoIterator<Item = Series>,
    ) -> Self {
        let series = series.into_iter().filter(|series| !series.points.is_empty());
        Self {
            title: title.to_owned(),
            x_label: x_label.to_owned(),
            y_label: y_label.to_owned(),
            positions: positions.into_iter().map(|position| position.to_string()).collect(),
            series: series.collect(),
        }
    }

    /// Whether there is nothing to draw.
    pub const fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// The chart as SVG.
    pub fn svg(&self) -> Outcome<String> {
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
            let drawn = self.draw(&root);
            drawn.map_err(|error| format!("chart \"{}\" cannot be drawn: {error}", self.title))?;
        }
        Ok(svg)
    }

    fn draw(&self, root: &Area<'_>) -> Outcome {
        root.fill(&WHITE)?;
        let (left, right) = root.split_horizontally(WIDTH - LEGEND_WIDTH);
        let finite = self
            .series
            .iter()
            .flat_map(|series| &series.points)
            .filter(|(_, value)| value.mean.is_finite());
        let highest = finite
            .map(|(_, value)| value.mean + value.deviation)
            .fold(0.0, f64::max);
        let marks = axis_marks(highest);
        let top = marks.last().copied().unwrap_or(1.0);
        let positions: Vec<f64> = (0..self.positions.len()).map(|position| position as f64).collect();
        let mut plot = ChartBuilder::on(&left)
            .caption(&self.title, text(38))
            .margin(24)
            .x_label_area_size(96)
            .y_label_area_size(150)
            .build_cartesian_2d(
                Axis {
                    range: -0.5..self.positions.len() as f64 - 0.5,
                    marks: positions,
                },
                Axis { range: 0.0..top, marks },
            )?;
        plot.configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(225, 225, 225).stroke_width(2))
            .axis_style(TEXT.stroke_width(2))
            .label_style(text(30))
            .axis_desc_style(text(32))
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .x_label_formatter(&|x| self.positions.get(x.round() as usize).cloned().unwrap_or_default())
            .y_label_formatter(&|y| axis_number(*y))
            .draw()?;
        self.draw_series(&mut plot)?;
        self.draw_legend(&right)?;
        root.present()?;
        Ok(())
    }

    fn draw_series(&self, plot: &mut Plot<'_, '_>) -> Outcome {
        let bars = self.series.iter().filter(|series| series.is_bar()).count().max(1) as f64;
        let width = 0.84 / bars;
        let mut bar = 0.0;
        for series in &self.series {
            let colour = series.colour();
            let finite = series.points.iter().filter(|(_, value)| value.mean.is_finite());
            let points: Vec<(f64, &Summary)> = finite.map(|(at, value)| (*at as f64, value)).collect();
            let mut shift = 0.0;
            if series.is_bar() {
                shift = (bar + 0.5) * width - 0.42;
                bar += 1.0;
                plot.draw_series(points.iter().map(|(at, value)| {
                    let middle = at + shift;
                    let corners = [(middle - width * 0.47, 0.0), (middle + width * 0.47, value.mean)];
                    Rectangle::new(corners, colour.filled())
                }))?;
            } else {
                let line = points.iter().map(|(at, value)| (*at, value.mean));
                if series.mark == Mark::Dashed {
                    plot.draw_series(DashedLineSeries::new(line.clone(), 12, 10, colour.stroke_width(4)))?;
                } else {
                    plot.draw_series(LineSeries::new(line.clone(), colour.stroke_width(4)))?;
                    plot.draw_series(line.map(|point| Circle::new(point, 8, colour.filled())))?;
                }
            }
            let errors = points.iter().filter(|(_, value)| value.deviation > 0.0);
            plot.draw_series(errors.map(|(at, value)| {
                let low = (value.mean - value.deviation).max(0.0);
                let ends = [(at + shift, low), (at + shift, value.mean + value.deviation)];
                PathElement::new(ends, TEXT.stroke_width(2))
            }))?;
        }
        Ok(())
    }

    fn draw_legend(&self, area: &Area<'_>) -> Outcome {
        for (row, series) in self.series.iter().enumerate() {
            let y = 104 + 44 * row as i32;
            let colour = series.colour();
            match series.mark {
                Mark::Bar | Mark::PaleBar => {
                    area.draw(&Rectangle::new(
                        [(MARGIN, y - 12), (MARGIN + 44, y + 12)],
                        colour.filled(),
                    ))?;
                }
                Mark::Line => {
                    area.draw(&PathElement::new(
                        [(MARGIN, y), (MARGIN + 44, y)],
                        colour.stroke_width(4),
                    ))?;
                    area.draw(&Circle::new((MARGIN + 22, y), 8, colour.filled()))?;
                }
                Mark::Dashed => {
                    for start in [MARGIN, MARGIN + 16, MARGIN + 32] {
                        area.draw(&PathElement::new([(start, y), (start + 10, y)], colour.stroke_width(4)))?;
                    }
                }
            }
            let style = text(30).pos(Pos::new(HPos::Left, VPos::Center));
            area.draw(&Text::new(series.name.clone(), (MARGIN + 60, y), style))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn chart() -> Chart {
        let series = |name: &str, look, value: f64| {
            let values = (1..4).map(|times| Summary {
                mean: value * f64::from(times),
                deviation: value / 8.0,
                count: 2,
            });
            Series::new(name, look, values)
        };
        let series = [
            series("bars", (0, Mark::Bar), 100.0),
            series("pale", (0, Mark::PaleBar), 90.0),
            series("line", (1, Mark::Line), 110.0),
            series("dashed", (2, Mark::Dashed), 80.0),
        ];
        Chart::new("Figure <1>: a & b", "ratio", "objects/s", ["1", "2", "4"], series)
    }

    #[test]
    fn svg_has_names_and_values_and_is_the_same_again() {
        let svg = chart().svg().unwrap();
        for part in [
            "Figure &lt;1&gt;: a &amp; b",
            "objects/s",
            "ratio",
            "dashed",
            "350",
            "<circle",
            "<rect",
        ] {
            assert!(svg.contains(part), "{part} is missing in {svg}");
        }
        assert_eq!(svg, chart().svg().unwrap());
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn odd_values_are_left_out() {
        let mut odd = chart();
        odd.series[0].points[1].1.mean = f64::NAN;
        odd.series[2].points[0].1.mean = f64::INFINITY;
        let svg = odd.svg().unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        odd.series.clear();
        odd.svg().unwrap();
    }

    #[test]
    fn marks_are_round_and_reach_the_highest() {
        assert_eq!(axis_marks(330.0), [0.0, 50.0, 100.0, 150.0, 200.0, 250.0, 300.0, 350.0]);
        assert_eq!(axis_marks(0.0), [0.0, 1.0]);
        assert_eq!(axis_marks(f64::NAN), [0.0, 1.0]);
        for highest in [0.013, 1.0, 9.99, 42.0, 1234.5, 7e8] {
            let marks = axis_marks(highest);
            assert!(
                *marks.last().unwrap() >= highest && marks.len() <= 10,
                "{highest}: {marks:?}"
            );
        }
    }

    #[test]
    fn axis_numbers_are_short() {
        assert_eq!(axis_number(0.0), "0");
        assert_eq!(axis_number(2500.0), "2500");
        assert_eq!(axis_number(25_000.0), "25 k");
        assert_eq!(axis_number(0.1 + 0.2), "0.3");
        assert_eq!(axis_number(2_500_000.0), "2.5 M");
    }
}
