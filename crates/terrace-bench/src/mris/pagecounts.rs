//! Request counts of Wikipedia (the files `pagecounts-YYYYMMDD-HHMMSS`, plain or gzip), by size,
//! for figure 8.
//!
//! A line is `project title count bytes`: the number of requests of a page in an hour, and the
//! bytes sent for it. The input is not trusted: malformed lines are counted and skipped, the length
//! of a line is limited, and sums saturate. A file with broken compression is read up to the error.

use crate::Outcome;
use flate2::bufread::MultiGzDecoder;
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

/// Sizes are rounded up to powers of two, from 1 byte to this exponent: 256 MB. Larger ones are
/// counted there too.
pub const EXPONENT_MAX: usize = 28;

/// Longest line; titles have at most 255 characters, percent-encoded.
const LINE_BYTES_MAX: usize = 16 << 10;

/// Requests of one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// How many.
    pub requests: u64,
    /// Bytes sent for them.
    pub bytes: u64,
}

/// Image requests by size.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// By exponent: bin e has sizes over 2^(e-1) up to 2^e bytes.
    pub bins: [Bin; EXPONENT_MAX + 1],
    /// Lines read.
    pub lines: u64,
    /// Lines of pages that are not images.
    pub other_lines: u64,
    /// Malformed lines.
    pub hostile_lines: u64,
    /// Files with broken compression, with the errors.
    pub broken_files: Vec<String>,
}

/// The shares of figure 8, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    /// Requests over 4 up to 64 KB.
    pub between_4k_and_64k: f64,
    /// Requests up to 128 KB.
    pub up_to_128k: f64,
    /// Bytes of those up to 128 KB.
    pub up_to_128k_traffic: f64,
}

fn is_image(title: &[u8]) -> bool {
    let suffix = title.len().checked_sub(4).and_then(|start| title.get(start..));
    suffix.is_some_and(|suffix| {
        [b".jpg", b".png", b".gif"]
            .iter()
            .any(|kind| suffix.eq_ignore_ascii_case(*kind))
    })
}

/// Title, count and bytes.
fn parse(line: &[u8]) -> Option<(&[u8], u64, u64)> {
    let mut fields = line.split(|&byte| byte == b' ');
    let (project, title, count, bytes) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let number = |field: &[u8]| -> Option<u64> {
        // `parse` alone would accept a sign.
        let digits = !field.is_empty() && field.iter().all(u8::is_ascii_digit);
        digits.then(|| std::str::from_utf8(field).ok()?.parse().ok()).flatten()
    };
    let (count, bytes) = (number(count)?, number(bytes)?);
    let whole = fields.next().is_none() && !project.is_empty() && !title.is_empty() && count > 0;
    whole.then_some((title, count, bytes))
}

impl Counts {
    /// Counts a line, without its end.
    pub fn add_line(&mut self, line: &[u8]) {
        self.lines += 1;
        match parse(line) {
            None => self.hostile_lines += 1,
            Some((title, _, _)) if !is_image(title) => self.other_lines += 1,
            Some((_, count, bytes)) => self.add(count, bytes),
        }
    }

    fn add(&mut self, count: u64, bytes: u64) {
        let size = bytes.div_ceil(count).max(1);
        let exponent = size.checked_next_power_of_two().map_or(64, u64::trailing_zeros) as usize;
        let bin = &mut self.bins[exponent.min(EXPONENT_MAX)];
        bin.requests = bin.requests.saturating_add(count);
        bin.bytes = bin.bytes.saturating_add(bytes);
    }

    /// Counts the lines of a text.
    pub fn read(&mut self, mut reader: impl BufRead) -> io::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = (&mut reader).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
            if length == 0 {
                return Ok(());
            }
            if line.ends_with(b"\n") {
                line.pop();
                line.pop_if(|byte| *byte == b'\r');
                self.add_line(&line);
            } else if length < LINE_BYTES_MAX {
                self.add_line(&line);
            } else {
                reader.skip_until(b'\n')?;
                self.lines += 1;
                self.hostile_lines += 1;
            }
        }
    }

    /// Counts the lines of a file, plain or gzip by its first bytes.
    ///
    /// # Errors
    /// If the file cannot be opened or read. Broken compression is recorded instead.
    pub fn read_file(&mut self, path: &Path) -> Outcome {
        let named = |error: io::Error| format!("{}: {error}", path.display());
        let mut reader = BufReader::with_capacity(256 << 10, File::open(path).map_err(named)?);
        if !reader.fill_buf().map_err(named)?.starts_with(&[0x1f, 0x8b]) {
            return Ok(self.read(reader).map_err(named)?);
        }
        if let Err(error) = self.read(BufReader::with_capacity(256 << 10, MultiGzDecoder::new(reader))) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            self.broken_files.push(format!("{name}: {error}"));
        }
        Ok(())
    }

    /// Requests of images.
    pub fn requests(&self) -> u64 {
        self.bins.iter().fold(0, |sum, bin| sum.saturating_add(bin.requests))
    }

    /// The shares that the paper gives; `None` without requests.
    pub fn shares(&self) -> Option<Shares> {
        let sum = |bins: &[Bin], what: fn(&Bin) -> u64| bins.iter().map(|bin| what(bin) as f64).sum::<f64>();
        let requests = |bin: &Bin| bin.requests;
        let bytes = |bin: &Bin| bin.bytes;
        let percent = |part: f64, whole: f64| if whole > 0.0 { 100.0 * part / whole } else { 0.0 };
        let all = sum(&self.bins, requests);
        (all > 0.0).then(|| Shares {
            between_4k_and_64k: percent(sum(&self.bins[13..=16], requests), all),
            up_to_128k: percent(sum(&self.bins[..=17], requests), all),
            up_to_128k_traffic: percent(sum(&self.bins[..=17], bytes), sum(&self.bins, bytes)),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

    fn bin(requests: u64, bytes: u64) -> Bin {
        Bin { requests, bytes }
    }

    fn counted(text: &[u8]) -> Counts {
        let mut counts = Counts::default();
        counts.read(text).unwrap();
        counts
    }

    #[test]
    fn images_are_counted_by_the_size_of_a_request() {
        let counts = counted(
            b"en File:Sunset.jpg 2 16384\nde Datei:A.PNG 1 8193\nen Main_Page 242332 4737756101\ncommons.m x.gif 3 3",
        );
        assert_eq!((counts.lines, counts.other_lines, counts.hostile_lines), (4, 1, 0));
        assert_eq!(counts.bins[13], bin(2, 16384));
        assert_eq!(counts.bins[14], bin(1, 8193));
        assert_eq!(counts.bins[0], bin(3, 3));
        assert_eq!(counts.requests(), 6);
    }

    #[test]
    fn hostile_lines_are_counted_and_skipped() {
        let hostile: [&[u8]; 11] = [
            b"",
            b"en",
            b"en x.jpg 1",
            b"en x.jpg 0 10",
            b"en x.jpg -1 10",
            b"en x.jpg +1 10",
            b"en x.jpg 1 10 more",
            b"en x.jpg 1 99999999999999999999",
            b"en  1 10",
            b"en x.jpg 1e3 10",
            b"\xff\xfe\x00 \x00 \x00",
        ];
        for line in hostile {
            let counts = counted(&[line, b"\nen y.png 1 5000\r\n"].concat());
            assert_eq!(
                (counts.hostile_lines, counts.requests()),
                (1, 1),
                "{}",
                String::from_utf8_lossy(line)
            );
        }
    }

    #[test]
    fn a_line_without_end_takes_no_memory() {
        let long = io::repeat(b'x').take(64 << 20).chain(&b"\nen y.png 1 5000\n"[..]);
        let mut counts = Counts::default();
        counts.read(BufReader::new(long)).unwrap();
        assert_eq!((counts.lines, counts.hostile_lines, counts.requests()), (2, 1, 1));
    }

    #[test]
    fn sums_stop_at_their_largest_value() {
        let counts = counted(b"a b.jpg 1 18446744073709551615\na b.jpg 1 18446744073709551615\na c.jpg 18446744073709551615 1\na d.jpg 18446744073709551615 1\n");
        assert_eq!(counts.bins[EXPONENT_MAX], bin(2, u64::MAX));
        assert_eq!(counts.bins[0], bin(u64::MAX, 2));
        assert_eq!(counts.requests(), u64::MAX);
        assert!(counts.shares().unwrap().up_to_128k > 99.0);
    }

    #[test]
    fn gzip_files_are_read_as_far_as_they_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pagecounts-20120101-000000.gz");
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        for number in 0..20_000 {
            writeln!(encoder, "en File:{number:x}.jpg 1 {}", 5000 + number).unwrap();
        }
        let whole = encoder.finish().unwrap();
        std::fs::write(&path, &whole).unwrap();
        let mut counts = Counts::default();
        counts.read_file(&path).unwrap();
        assert_eq!((counts.requests(), counts.broken_files.len()), (20_000, 0));
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let mut counts = Counts::default();
        counts.read_file(&path).unwrap();
        assert!(counts.requests() > 1000 && counts.requests() < 20_000);
        assert!(
            counts.broken_files[0].starts_with("pagecounts-20120101"),
            "{:?}",
            counts.broken_files
        );
        assert!(counts.read_file(&directory.path().join("absent")).is_err());
    }
}
