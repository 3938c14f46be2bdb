//! The limit of open files: how many connections it has room for.
//!
//! Each connection is an open file, and so is each block and segment of the store. Without one the
//! store refuses what needs a new file, so connections must not have all of them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Part (1/n) of the limit that the connections of one of two listeners may have. The other half is
/// for the store.
const PART_OF_LISTENER: u64 = 4;
/// Connections that any limit has room for.
const CONNECTIONS_MIN: u32 = 16;

/// Raises the process's limit of open files to what it may be. Systems have a low one for programs
/// that wait with `select`.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // With the lower one it has fewer connections.
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open files stays");
    }
}

/// The default number of connections of a listener: this many, or fewer if the process may not have
/// that many open files.
pub fn connections_default(wanted: u32) -> u32 {
    within(wanted, getrlimit(Resource::Nofile).current)
}

fn within(wanted: u32, files: Option<u64>) -> u32 {
    let room = files.map_or(u64::MAX, |files| files / PART_OF_LISTENER);
    wanted.min(u32::try_from(room).unwrap_or(u32::MAX).max(CONNECTIONS_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the usual limit of 1024 files, 700 idle connections to each of two listeners left the
    /// store without any.
    #[test]
    fn half_of_the_files_are_left_to_the_store() {
        let of = |files| within(1024, files);
        assert_eq!([None, Some(1 << 20), Some(4096)].map(of), [1024; 3]);
        assert_eq!([Some(1024), Some(400), Some(20)].map(of), [256, 100, 16]);
    }
}
