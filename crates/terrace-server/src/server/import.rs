//! An import beside a server.

use crate::{
    cli::{ImportTuning, ServeArgs},
    failure::{Failure, Outcome},
    http::ImportWatch,
    output::tell,
    signals::Stop,
};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    thread::{self, JoinHandle},
};
use terrace::Store;
use terrace_images::{self as import, ImportOptions, Resolution, TerminalBar};

/// An import that has not begun.
pub struct Import {
    dir: PathBuf,
    options: ImportOptions,
    watch: Arc<ImportWatch>,
}

impl Import {
    /// The one in the arguments, which are checked.
    ///
    /// # Errors
    /// As [`options`] and [`check_directory`].
    pub fn of(args: &ServeArgs) -> Outcome<Option<Self>> {
        refuse_unnamed(args)?;
        let options = options(&args.tuning)?;
        let Some(dir) = &args.import else { return Ok(None) };
        check_directory(dir)?;
        Ok(Some(Self {
            dir: dir.clone(),
            options,
            watch: Arc::default(),
        }))
    }

    /// Its counters.
    pub fn watch(&self) -> Arc<ImportWatch> {
        Arc::clone(&self.watch)
    }

    /// Imports on a thread of its own, with the progress bar, and prints the last line.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn begin(self, store: Store, stop: &Stop) -> Outcome<JoinHandle<()>> {
        let (watch, stop) = (self.watch, Arc::clone(stop.flag()));
        watch.running.store(true, Ordering::Relaxed);
        let work = move || {
            let bar = TerminalBar::start(Arc::clone(&watch.progress));
            let result = import::import(&self.dir, &store, &self.options, &watch.progress, &stop);
            drop(bar);
            let error = match result {
                Ok(report) => {
                    tell(&report);
                    match report.outcome {
                        import::Outcome::StoreFailed(error) => Some(error.to_string()),
                        import::Outcome::Finished | import::Outcome::Stopped => None,
                    }
                }
                Err(error) => {
                    tell(format_args!("error: {error}"));
                    Some(error.to_string())
                }
            };
            if let Some(error) = error {
                // Set once, here.
                let _ = watch.error.set(error);
            }
            watch.running.store(false, Ordering::Relaxed);
        };
        thread::Builder::new()
            .name("import".to_owned())
            .spawn(work)
            .map_err(|error| Failure::io("starting the import", &error))
    }
}

/// A directory without a flag is ambiguous.
fn refuse_unnamed(args: &ServeArgs) -> Outcome {
    if let Some(dir) = &args.unnamed {
        let dir = dir.display();
        return Err(Failure::usage(format!(
            "is {dir} pictures, or the store? Write --import {dir} to import from it, --store {dir} to serve the store in it"
        )));
    }
    Ok(())
}

/// Checks the directory before a store is created.
///
/// # Errors
/// If it does not exist.
pub fn check_directory(dir: &Path) -> Outcome {
    match std::fs::metadata(dir) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::error(format!("cannot import from {}: {error}", dir.display()))),
    }
}

/// The options of an import.
///
/// # Errors
/// A usage failure if one is not valid.
pub fn options(tuning: &ImportTuning) -> Outcome<ImportOptions> {
    let mut options = ImportOptions::default();
    if let Some(quality) = tuning.quality {
        options.quality = quality;
    }
    if let Some(megapixels) = tuning.pixel_limit {
        options.pixel_limit = u64::from(megapixels) * 1_000_000;
    }
    if let Some(threads) = tuning.threads {
        options.threads = threads;
    }
    if !tuning.resolution.is_empty() {
        options.resolutions = tuning
            .resolution
            .iter()
            .map(|text| resolution(text))
            .collect::<Outcome<_>>()?;
    }
    options.validate()?;
    Ok(options)
}

/// `small=600x800`
fn resolution(text: &str) -> Outcome<Resolution> {
    let parsed = text.split_once('=').and_then(|(name, sides)| {
        let (width, height) = sides.split_once(['x', '×'])?;
        Some(Resolution::new(
            name,
            width.trim().parse().ok()?,
            height.trim().parse().ok()?,
        ))
    });
    parsed.ok_or_else(|| {
        Failure::usage(format!(
            "resolution `{text}`: write it as NAME=WIDTHxHEIGHT, like small=600x800"
        ))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn resolutions_are_read() {
        assert_eq!(resolution("small=600x800").unwrap(), Resolution::new("small", 600, 800));
        for text in ["small", "small=600", "small=x800", "small=600x800x1", "small=-1x2"] {
            assert!(resolution(text).is_err(), "{text}");
        }
    }
}
