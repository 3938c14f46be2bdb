//! `terrace ls`: keys in order, streamed, so that a listing of any length starts immediately and
//! needs little RAM.

use super::{Access, finish_output, info_json, open};
use crate::{cli::LsArgs, failure::Outcome, key_text, settings::Settings};
use std::io::{self, BufWriter, Write};
use terrace::{ScanItem, ScanRange};

/// `terrace ls [PREFIX]`
pub fn list(args: &LsArgs, settings: Settings) -> Outcome {
    let prefix = args.prefix.as_deref().map(key_text::parse).transpose()?;
    let store = open(&settings, Access::Look)?;
    let range = prefix
        .filter(|prefix| !prefix.is_empty())
        .map_or_else(ScanRange::all, ScanRange::prefix);
    let mut out = BufWriter::with_capacity(64 << 10, io::stdout().lock());
    for item in store.scan(range)? {
        let item = match item {
            Ok(item) => item,
            Err(error) => {
                // The listed keys are right; print them before the error.
                finish_output(out.flush())?;
                return Err(error.into());
            }
        };
        if let Err(error) = write_item(&mut out, args, &item) {
            return finish_output(Err(error));
        }
    }
    finish_output(out.flush())
}

fn write_item(out: &mut impl Write, args: &LsArgs, item: &ScanItem) -> io::Result<()> {
    if args.json {
        writeln!(out, "{}", info_json(&item.key, &item.info))
    } else if args.long {
        let key = key_text::escape(&item.key);
        writeln!(
            out,
            "{:>12}  {:>14}  {:<6}  {key}",
            item.info.version.0,
            item.info.length,
            item.info.home.to_string()
        )
    } else {
        writeln!(out, "{}", key_text::escape(&item.key))
    }
}
