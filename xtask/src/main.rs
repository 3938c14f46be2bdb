//! Repository chores, run as `cargo xtask NAME`. Standard library only, so that it builds quickly.
//!
//! Exit codes: 0 no findings, 1 findings, 2 the chore could not run.

mod tidy;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy    check the house rules of style and layout";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::run(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
