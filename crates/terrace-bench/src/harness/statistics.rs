//! Mean, standard deviation, and linear regression.

use serde::{Deserialize, Serialize};

/// Mean and sample standard deviation of several runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation; 0 for fewer than two.
    pub deviation: f64,
    /// Number of values.
    pub count: usize,
}

impl Summary {
    /// Of one value.
    pub const fn exact(mean: f64) -> Self {
        Self {
            mean,
            deviation: 0.0,
            count: 1,
        }
    }

    /// Of these values; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = (squares / (count - 1).max(1) as f64).sqrt();
        Some(Self { mean, deviation, count })
    }
}

/// `y = slope · x + intercept`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// Change of y per x.
    pub slope: f64,
    /// y at 0.
    pub intercept: f64,
    /// Share of the variance that the line explains.
    pub r_squared: f64,
}

/// Ordinary least squares. `None` without two different x.
pub fn regress(points: &[(f64, f64)]) -> Option<Line> {
    let count = points.len() as f64;
    let mean_x = points.iter().map(|point| point.0).sum::<f64>() / count;
    let mean_y = points.iter().map(|point| point.1).sum::<f64>() / count;
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for (x, y) in points {
        xx += (x - mean_x).powi(2);
        xy += (x - mean_x) * (y - mean_y);
        yy += (y - mean_y).powi(2);
    }
    if points.is_empty() || xx <= 0.0 {
        return None;
    }
    let slope = xy / xx;
    Some(Line {
        slope,
        intercept: mean_y - slope * mean_x,
        r_squared: if yy > 0.0 { xy * xy / (xx * yy) } else { 1.0 },
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn summary_is_of_a_sample() {
        let summary = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert!((summary.mean - 5.0).abs() < 1e-12);
        assert!((summary.deviation - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert!(Summary::of(&[3.0]).unwrap().deviation.abs() < 1e-12);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn a_line_is_found_through_noise() {
        let points: Vec<(f64, f64)> = (0..100)
            .map(|x| {
                (
                    f64::from(x),
                    3.0 * f64::from(x) + 7.0 + if x % 2 == 0 { 0.5 } else { -0.5 },
                )
            })
            .collect();
        let line = regress(&points).unwrap();
        assert!(
            (line.slope - 3.0).abs() < 0.01 && (line.intercept - 7.0).abs() < 0.1,
            "{line:?}"
        );
        assert!(line.r_squared > 0.999);
    }

    #[test]
    fn one_x_makes_no_line() {
        assert_eq!(regress(&[(1.0, 2.0), (1.0, 3.0)]), None);
        assert_eq!(regress(&[]), None);
    }
}
