//! A chart of rows, as SVG: for each row the figures of each server, rates next to latencies. Both
//! axes are logarithmic, so equal distances are equal ratios.

use super::report::Row;
use crate::failure::{Failure, Outcome};
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::{ops::Range, path::Path};

/// Width of the names of rows.
const NAMES_WIDTH: i32 = 230;
/// Width of each of the two panels.
const PANEL_WIDTH: i32 = 560;
/// Height of a row.
const ROW_HEIGHT: i32 = 24;
/// Above the rows: the names of servers, and the titles of the panels.
const HEAD_HEIGHT: i32 = 76;
/// Below them: the numbers of the axes.
const FOOT_HEIGHT: i32 = 40;
/// Next to each panel.
const GAP: i32 = 24;
/// They differ in hue and in lightness, so that servers can be distinguished in print as well
/// (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(110, 110, 110),
];
const TEXT: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// Draws the latest of the rows with the same parameters of the same server.
///
/// # Errors
/// Errors of the operating system, naming the file.
pub fn write(path: &Path, rows: &[Row]) -> Outcome {
    let fail = |error: &dyn std::fmt::Display| Failure::error(format!("drawing {}: {error}", path.display()));
    let svg = svg(rows).map_err(|error| fail(&error))?;
    std::fs::write(path, svg).map_err(|error| fail(&error))
}

/// The servers' figures in one row.
struct Line<'a> {
    name: String,
    /// With the number of the server.
    results: Vec<(usize, &'a Row)>,
}

/// The servers by name, in the order in which they come first, and the
/// lines by the size of objects.
fn lines(rows: &[Row]) -> (Vec<&str>, Vec<Line<'_>>) {
    let mut servers: Vec<&str> = Vec::new();
    let mut lines: Vec<Line<'_>> = Vec::new();
    for row in rows.iter().filter(|row| row.count > 0) {
        let known = servers.iter().position(|name| *name == row.name);
        let server = known.unwrap_or_else(|| {
            servers.push(&row.name);
            servers.len() - 1
        });
        let same = lines.iter_mut().find(|line| line.results[0].1.asks_the_same(row));
        match same {
            Some(line) => {
                line.results.retain(|(other, _)| *other != server);
                line.results.push((server, row));
            }
            None => lines.push(Line {
                name: row.title(),
                results: vec![(server, row)],
            }),
        }
    }
    lines.sort_by_key(|line| line.results[0].1.object_bytes);
    for line in &mut lines {
        line.results.sort_by_key(|(server, _)| *server);
    }
    (servers, lines)
}

fn svg(rows: &[Row]) -> std::result::Result<String, Box<dyn std::error::Error>> {
    let (servers, lines) = lines(rows);
    let width = NAMES_WIDTH + 2 * (PANEL_WIDTH + 2 * GAP);
    let height = HEAD_HEIGHT + lines.len() as i32 * ROW_HEIGHT + FOOT_HEIGHT;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width as u32, height as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        draw_legend(&area, &servers)?;
        let names = "operation, object, connections";
        area.draw(&Text::new(
            names,
            (NAMES_WIDTH, HEAD_HEIGHT - 20),
            text(15, HPos::Right),
        ))?;
        for (number, line) in lines.iter().enumerate() {
            let at = (NAMES_WIDTH, middle(number));
            area.draw(&Text::new(line.name.clone(), at, text(15, HPos::Right)))?;
        }
        let rates = |row: &Row| (row.per_second, row.per_second);
        draw_panel(&area, NAMES_WIDTH + GAP, "requests a second", &lines, rates)?;
        let latencies = |row: &Row| (row.percentile_ms(50.0), row.percentile_ms(99.0));
        let left = NAMES_WIDTH + PANEL_WIDTH + 3 * GAP;
        draw_panel(
            &area,
            left,
            "latency in ms: median to 99th percentile",
            &lines,
            latencies,
        )?;
        area.present()?;
    }
    Ok(svg)
}

/// Where a line is.
const fn middle(number: usize) -> i32 {
    HEAD_HEIGHT + number as i32 * ROW_HEIGHT + ROW_HEIGHT / 2
}

fn text(size: u32, at: HPos) -> TextStyle<'static> {
    let font = ("sans-serif", size).into_font().color(&TEXT);
    font.pos(Pos::new(at, VPos::Center))
}

fn colour(server: usize) -> RGBColor {
    COLOURS[server % COLOURS.len()]
}

fn draw_legend(area: &Area<'_>, servers: &[&str]) -> Drawn {
    let width = (2 * PANEL_WIDTH) / servers.len().max(1) as i32;
    for (number, name) in servers.iter().enumerate() {
        let x = NAMES_WIDTH + GAP + number as i32 * width;
        area.draw(&Circle::new((x + 6, 20), 6, colour(number).filled()))?;
        area.draw(&Text::new((*name).to_owned(), (x + 20, 20), text(17, HPos::Left)))?;
    }
    Ok(())
}

/// Draws a value of each result, from its low to its high one.
fn draw_panel(
    area: &Area<'_>,
    left: i32,
    title: &str,
    lines: &[Line<'_>],
    values: impl Fn(&Row) -> (f64, f64),
) -> Drawn {
    let results = || lines.iter().flat_map(|line| &line.results);
    let all = results().flat_map(|(_, row)| <[f64; 2]>::from(values(row)));
    let powers = powers_around(all);
    let span = f64::from(powers.end - powers.start);
    let x = |value: f64| {
        let share = (value.max(f64::MIN_POSITIVE).log10() - f64::from(powers.start)) / span;
        left + (share.clamp(0.0, 1.0) * f64::from(PANEL_WIDTH)).round() as i32
    };
    let (top, bottom) = (HEAD_HEIGHT, middle(lines.len()) - ROW_HEIGHT / 2);
    area.draw(&Text::new(title.to_owned(), (left, top - 20), text(15, HPos::Left)))?;
    for power in powers.start..=powers.end {
        let value = 10.0_f64.powi(power);
        area.draw(&PathElement::new([(x(value), top), (x(value), bottom)], GRID))?;
        area.draw(&Text::new(
            number(value),
            (x(value), bottom + 16),
            text(14, HPos::Center),
        ))?;
    }
    for (number, line) in lines.iter().enumerate() {
        let rule = [(left, middle(number)), (left + PANEL_WIDTH, middle(number))];
        area.draw(&PathElement::new(rule, GRID))?;
        let count = line.results.len() as i32;
        for (place, (server, row)) in line.results.iter().enumerate() {
            // Side by side, so that equal ones are all visible.
            let y = middle(number) + (2 * place as i32 - count + 1) * 3;
            let (low, high) = values(row);
            let style = colour(*server);
            area.draw(&PathElement::new([(x(low), y), (x(high), y)], style.stroke_width(2)))?;
            area.draw(&Circle::new((x(low), y), 4, style.filled()))?;
        }
    }
    Ok(())
}

/// Powers of ten from at most the lowest value to at least the highest.
fn powers_around(values: impl Iterator<Item = f64>) -> Range<i32> {
    let logs: Vec<f64> = values.filter(|value| *value > 0.0).map(f64::log10).collect();
    let lowest = logs.iter().copied().fold(f64::INFINITY, f64::min).floor();
    let highest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max).ceil();
    if !lowest.is_finite() {
        return 0..1;
    }
    let start = lowest as i32;
    start..(highest as i32).max(start + 1)
}

/// A power of ten in few characters.
fn number(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{} M", value / 1e6),
        _ if value >= 1e3 => format!("{} k", value / 1e3),
        _ => format!("{value}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{super::report::tests::row, *};

    #[test]
    fn each_row_is_drawn_once_with_the_latest_of_each_server() {
        let mut cold = row("ours <1>", 30.0);
        cold.cold = true;
        let rows = [
            row("theirs", 400.0),
            row("theirs", 4_000.0),
            row("ours <1>", 40_000.0),
            cold,
        ];
        let (servers, lines) = lines(&rows);
        assert_eq!(servers, ["theirs", "ours <1>"]);
        let drawn = |line: &Line<'_>| -> Vec<(usize, f64)> {
            let results = line.results.iter();
            results.map(|(server, row)| (*server, row.per_second)).collect()
        };
        assert_eq!(lines[0].name, "get 4 KiB, 32");
        assert_eq!(drawn(&lines[0]), [(0, 4_000.0), (1, 40_000.0)]);
        assert_eq!(lines[1].name, "get 4 KiB, 32, cold");
        assert_eq!(drawn(&lines[1]), [(1, 30.0)]);
        let drawn = svg(&rows).unwrap();
        assert_eq!(drawn, svg(&rows).unwrap());
        assert!(drawn.contains("ours &lt;1&gt;") && drawn.contains("100 k"), "{drawn}");
        // In each panel one circle a result, and one for each server above.
        assert_eq!(drawn.matches("<circle").count(), 2 * 3 + 2);
    }

    #[test]
    fn axes_end_with_powers_of_ten() {
        assert_eq!(powers_around([250.0, 31_000.0].into_iter()), 2..5);
        assert_eq!(powers_around([0.05, 0.07].into_iter()), -2..-1);
        assert_eq!(powers_around([100.0].into_iter()), 2..3);
        assert_eq!(powers_around([0.0].into_iter()), 0..1);
        assert!(svg(&[]).unwrap().ends_with("</svg>\n"), "no rows are no error");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let wrong = write(Path::new("/no such place/rows.svg"), &[]).unwrap_err();
        assert!(wrong.message.contains("/no such place/rows.svg"), "{}", wrong.message);
    }
}
