//! Faults on command.

use super::model::Operation;
use super::random::Random;
use serde::{Deserialize, Serialize};

/// A fault. Faults of different kinds add up; one of the same kind replaces the other; `None` ends
/// all.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, clap::Subcommand)]
#[serde(rename_all = "kebab-case", tag = "fault")]
pub enum Fault {
    /// Flips one bit, once, in each of several places of the media that hold data. The host's page
    /// cache may hide it until the drive is mounted again.
    BitRot {
        /// Bits to flip.
        #[arg(long, default_value_t = 1)]
        count: u64,
    },
    /// Reads that touch the range fail with EIO.
    ReadErrors(Errors),
    /// Writes that touch the range fail with EIO; a failed write changes nothing.
    WriteErrors(Errors),
    /// Writes fail with ENOSPC.
    Full,
    /// Everything takes longer.
    Slow {
        /// How many times as long as in the model.
        #[arg(long)]
        factor: f64,
    },
    /// Ends all faults; flipped bits stay flipped.
    None,
}

/// Why a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// EIO.
    Input,
    /// ENOSPC.
    Full,
}

/// Which requests fail, of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, clap::Args)]
pub struct Errors {
    /// First byte of the range.
    #[arg(long, default_value_t = 0)]
    pub start: u64,
    /// Length of the range [default: all].
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    pub bytes: u64,
    /// Chance of each request to fail, from 0 to 1.
    #[arg(long, default_value_t = 1.0)]
    pub chance: f64,
}

impl Errors {
    fn hit(self, offset: u64, bytes: u64, random: &mut Random) -> bool {
        let end = self.start.saturating_add(self.bytes);
        offset < end && self.start < offset + bytes && random.happens(self.chance)
    }
}

/// The active faults.
#[derive(Debug, Default)]
pub struct Faults {
    read_errors: Option<Errors>,
    write_errors: Option<Errors>,
    is_full: bool,
}

impl Faults {
    /// Adds a fault, except bit rot and slowness, which are handled elsewhere.
    pub fn add(&mut self, fault: Fault) {
        match fault {
            Fault::ReadErrors(errors) => self.read_errors = Some(errors),
            Fault::WriteErrors(errors) => self.write_errors = Some(errors),
            Fault::Full => self.is_full = true,
            Fault::None => *self = Self::default(),
            Fault::BitRot { .. } | Fault::Slow { .. } => {}
        }
    }

    /// Whether this request fails.
    pub fn failure(&self, operation: Operation, offset: u64, bytes: u64, random: &mut Random) -> Option<Failure> {
        let errors = match operation {
            Operation::Read => self.read_errors,
            Operation::Write if self.is_full => return Some(Failure::Full),
            Operation::Write => self.write_errors,
            Operation::Flush => None,
        };
        errors
            .is_some_and(|errors| errors.hit(offset, bytes, random))
            .then_some(Failure::Input)
    }
}
