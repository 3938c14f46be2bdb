//! The report as one self-contained HTML file: sections of text, tables and charts.

use super::chart::Chart;
use crate::Outcome;
use std::{fmt::Write as _, path::Path};

/// A part of a report.
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    /// A paragraph.
    Text(String),
    /// A table.
    Table {
        /// Above it.
        caption: String,
        /// Column heads.
        head: Vec<String>,
        /// Cells; the first of a row names it.
        rows: Vec<Vec<String>>,
    },
    /// A chart, and the name of its files.
    Chart(String, Chart),
}

/// A section of a report.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// Heading.
    pub title: String,
    /// What is in it.
    pub blocks: Vec<Block>,
}

/// A column of a table: head, and text of a row's cell.
pub type Column<'a, R> = (&'a str, &'a dyn Fn(&R) -> String);

/// A figure for a cell, or a dash if it is absent.
pub fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
}

impl Section {
    /// An empty section.
    pub fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            blocks: Vec::new(),
        }
    }

    /// Adds a paragraph.
    pub fn text(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Text(text.into()));
    }

    /// Adds a table, unless it has no rows.
    pub fn table(&mut self, caption: &str, head: &[&str], rows: Vec<Vec<String>>) {
        if !rows.is_empty() {
            let head = head.iter().map(|&cell| cell.to_owned()).collect();
            self.blocks.push(Block::Table {
                caption: caption.to_owned(),
                head,
                rows,
            });
        }
    }

    /// Adds a table with a row for each of `rows`.
    pub fn columns<R>(&mut self, caption: &str, rows: impl IntoIterator<Item = R>, columns: &[Column<'_, R>]) {
        let cells = |row| columns.iter().map(|(_, cell)| cell(&row)).collect();
        let head: Vec<&str> = columns.iter().map(|column| column.0).collect();
        self.table(caption, &head, rows.into_iter().map(cells).collect());
    }

    /// Adds a chart, unless it has no points. `name` is the name of its files.
    pub fn chart(&mut self, name: &str, chart: Chart) {
        if !chart.is_empty() {
            self.blocks.push(Block::Chart(name.to_owned(), chart));
        }
    }
}

impl Section {
    /// As Markdown for a terminal: text and tables, without charts.
    pub fn markdown(&self) -> String {
        let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let mut markdown = format!("\n## {}\n", self.title);
        for block in &self.blocks {
            match block {
                Block::Text(text) => markdown += &format!("\n{text}\n"),
                Block::Table { caption, head, rows } => {
                    markdown += &format!("\n{caption}\n\n{}|{}\n", row(head), "---|".repeat(head.len()));
                    rows.iter().for_each(|cells| markdown += &row(cells));
                }
                Block::Chart(..) => {}
            }
        }
        markdown
    }
}

/// Escapes text for HTML.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            _ => escaped.push(character),
        }
    }
    escaped
}

const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#282828;background:#fff}\
h1,h2{line-height:1.2}h2{margin-top:3rem;border-bottom:1px solid #ccc}\
table{border-collapse:collapse;margin:1rem 0;font-size:.9rem;display:block;overflow-x:auto}\
caption{text-align:left;font-weight:600;padding:.3rem 0}\
th,td{padding:.2rem .6rem;border-bottom:1px solid #ddd;text-align:right;vertical-align:top}\
th:first-child,td:first-child{text-align:left}\
figure{margin:1rem 0}svg{max-width:100%;height:auto}nav a{margin-right:1rem}";

fn table(html: &mut String, caption: &str, head: &[String], rows: &[Vec<String>]) -> std::fmt::Result {
    write!(html, "<table><caption>{}</caption>\n<tr>", escape(caption))?;
    for cell in head {
        write!(html, "<th scope=\"col\">{}</th>", escape(cell))?;
    }
    for row in rows {
        html.push_str("</tr>\n<tr>");
        for cell in row {
            write!(html, "<td>{}</td>", escape(cell))?;
        }
    }
    html.push_str("</tr>\n</table>\n");
    Ok(())
}

/// The page.
pub fn html(title: &str, sections: &[Section]) -> Outcome<String> {
    let mut html = String::new();
    writeln!(
        html,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{0}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{0}</h1>\n<nav>",
        escape(title)
    )?;
    for (number, section) in sections.iter().enumerate() {
        writeln!(html, "<a href=\"#s{number}\">{}</a>", escape(&section.title))?;
    }
    html.push_str("</nav>\n");
    for (number, section) in sections.iter().enumerate() {
        writeln!(html, "<section id=\"s{number}\">\n<h2>{}</h2>", escape(&section.title))?;
        for block in &section.blocks {
            match block {
                Block::Text(text) => writeln!(html, "<p>{}</p>", escape(text))?,
                Block::Table { caption, head, rows } => table(&mut html, caption, head, rows)?,
                Block::Chart(name, chart) => {
                    let svg = chart.svg()?;
                    let label = format!("<svg role=\"img\" aria-label=\"{}\" ", escape(&chart.title));
                    let svg = svg.trim().replacen("<svg ", &label, 1);
                    writeln!(html, "<figure id=\"{}\">{svg}</figure>", escape(name))?;
                }
            }
        }
        html.push_str("</section>\n");
    }
    html.push_str("</body>\n</html>\n");
    Ok(html)
}

/// Writes every chart as SVG into a directory.
pub fn write_charts(directory: &Path, sections: &[Section]) -> Outcome {
    std::fs::create_dir_all(directory)?;
    for block in sections.iter().flat_map(|section| &section.blocks) {
        if let Block::Chart(name, chart) = block {
            std::fs::write(directory.join(format!("{name}.svg")), chart.svg()?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_terminal_gets_text_and_tables() {
        let mut section = Section::new("One");
        section.text("said");
        section.columns(
            "Numbers",
            [("a", 1)],
            &[("", &|row| row.0.to_owned()), ("n", &|row| row.1.to_string())],
        );
        let expected = "\n## One\n\nsaid\n\nNumbers\n\n|  | n |\n|---|---|\n| a | 1 |\n";
        assert_eq!(section.markdown(), expected);
    }

    #[test]
    fn text_from_results_cannot_become_markup() {
        let mut section = Section::new("<script>one</script>");
        section.text("a < b & \"c\"");
        section.table("<i>", &["<b>"], vec![vec!["</table>".to_owned()]]);
        section.table("empty", &["x"], vec![]);
        let page = html("<title>", &[section]).unwrap();
        for bad in ["<script>", "<i>", "<b>", "empty"] {
            assert!(!page.contains(bad), "{bad}");
        }
        assert_eq!(page.matches("</table>").count(), 1);
        assert!(page.contains("a &lt; b &amp; &quot;c&quot;"));
    }
}
