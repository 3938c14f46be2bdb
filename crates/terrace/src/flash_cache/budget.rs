//! How many bytes of copies and of values that come back may be written in a day.

use std::time::Instant;

/// How much may be written to flash: the device wears.
#[derive(Debug)]
pub struct Budget {
    per_day: Option<u64>,
    left_bytes: f64,
    earned_at: Instant,
}

impl Budget {
    pub fn new(per_day: Option<u64>) -> Self {
        #[allow(clippy::cast_precision_loss)]
        Self {
            per_day,
            // The first hour's share is there at once.
            left_bytes: per_day.map_or(0.0, |bytes| bytes as f64 / 24.0),
            earned_at: Instant::now(),
        }
    }

    /// What is not used in a day is lost.
    #[allow(clippy::cast_precision_loss)]
    pub fn earn(&mut self) {
        if let Some(per_day) = self.per_day {
            let per_day = per_day as f64;
            self.left_bytes += per_day * self.earned_at.elapsed().as_secs_f64() / 86_400.0;
            self.left_bytes = self.left_bytes.min(per_day);
            self.earned_at = Instant::now();
        }
    }

    #[allow(clippy::cast_precision_loss)]
    pub fn spend(&mut self, bytes: u64) -> bool {
        if self.per_day.is_none() {
            return true;
        }
        let may = self.left_bytes >= bytes as f64;
        if may {
            self.left_bytes -= bytes as f64;
        }
        may
    }
}
