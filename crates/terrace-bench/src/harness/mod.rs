//! The harness of the evaluations: workloads, drivers, results, charts, the report.
//!
//! In the order of use: [`workload`] says what to do, [`setup`], [`place`] and [`emulated`] where;
//! [`driver`] does it and [`latency`] keeps the times; [`results`] keeps each run as a file, with
//! [`host`]; [`report`] makes a page of the files, with [`page`], [`chart`] and [`target`]. A run
//! that fails leaves no result.

pub mod chart;
pub mod driver;
pub mod emulated;
pub mod fio;
pub mod host;
pub mod latency;
pub mod page;
pub mod place;
pub mod progress;
pub mod report;
pub mod results;
pub mod run;
pub mod setup;
pub mod statistics;
pub mod target;
pub mod values;
pub mod workload;
