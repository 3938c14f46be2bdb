//! `terrace top`: a live view of a store that a server has open.

mod terminal;
mod view;

use super::print;
use crate::{
    admin,
    cli::TopArgs,
    failure::{Code, Failure, Outcome},
    settings::Settings,
};
use serde_json::Value;
use std::{
    io::{self, IsTerminal as _},
    path::Path,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};
use terminal::Terminal;
use view::{Line, lines};

/// Width of the plain text.
const PLAIN_WIDTH: usize = 100;

/// The figures of a store at a time.
struct Sample {
    stats: Value,
    at: Instant,
}

/// `terrace top`
pub fn top(args: &TopArgs, settings: &Settings) -> Outcome {
    let flash_dir = &settings.options.flash_dir;
    let interval = args.interval.map_or(Duration::from_secs(1), |span| span.0);
    if interval < Duration::from_millis(100) {
        return Err(Failure::new(Code::Usage, "--interval must be at least 100ms"));
    }
    let first = sample(flash_dir)?;
    if args.plain || args.count.is_some() || !io::stdout().is_terminal() {
        return print_samples(flash_dir, first, interval, args.count);
    }
    let terminal = Terminal::open().map_err(|error| Failure::io("taking over the terminal", &error))?;
    draw_until_quit(&terminal, flash_dir, first, interval)
}

fn sample(flash_dir: &Path) -> Outcome<Sample> {
    match admin::ask(flash_dir, &admin::STATS, &(), &AtomicBool::new(false), |_, _| ())? {
        Some(stats) => Ok(Sample {
            stats,
            at: Instant::now(),
        }),
        None => Err(Failure::new(
            Code::Error,
            format!(
                "no server has the store in {} open; start `terrace serve`, or see `terrace stat` for a store at rest",
                flash_dir.display()
            ),
        )),
    }
}

fn view_of(before: &Sample, after: &Sample, width: usize) -> Vec<Line> {
    lines(&before.stats, &after.stats, (after.at - before.at).as_secs_f64(), width)
}

fn print_samples(flash_dir: &Path, first: Sample, interval: Duration, count: Option<u64>) -> Outcome {
    let mut before = first;
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0 {
        std::thread::sleep(interval);
        let after = sample(flash_dir)?;
        let mut text: String = view_of(&before, &after, PLAIN_WIDTH)
            .iter()
            .map(|line| format!("{}\n", line.text()))
            .collect();
        left -= 1;
        if left > 0 {
            text.push('\n');
        }
        print(&text)?;
        before = after;
    }
    Ok(())
}

fn draw_until_quit(terminal: &Terminal, flash_dir: &Path, first: Sample, interval: Duration) -> Outcome {
    let fail = |error: io::Error| Failure::io("drawing on the terminal", &error);
    let (mut before, mut after) = (None, first);
    loop {
        let until = after.at + interval;
        loop {
            let width = usize::from(terminal.size().0);
            let shown = view_of(before.as_ref().unwrap_or(&after), &after, width);
            terminal.draw(&shown).map_err(fail)?;
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                break;
            };
            if terminal.is_left(left).map_err(fail)? {
                return Ok(());
            }
        }
        before = Some(std::mem::replace(&mut after, sample(flash_dir)?));
    }
}
