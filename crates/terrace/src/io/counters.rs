//! Requests to a disk, counted by it and the files it opened.
//!
//! They are statistics: relaxed, exact in their sums, but not a snapshot of one moment. A request
//! is counted when it is made, its bytes when it succeeded.

use crate::metrics::counted;

counted! {
    /// Requests to a disk.
    #[derive(PartialEq, Eq)]
    pub struct DiskCounters {}
    /// The counters.
    pub(super) struct Counters {
        /// Read requests.
        reads,
        /// Bytes read.
        bytes_read,
        /// Write requests.
        writes,
        /// Bytes written.
        bytes_written,
        /// Data and directory syncs.
        syncs,
    }
}
