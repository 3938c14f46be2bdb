//! The `terrace` command: reads its arguments and settings, runs one command, and exits with a
//! documented code.
//!
//! Standard output has only results; all messages go to standard error.
/// A transfer allocates buffers of up to a MiB on one thread and frees them on another. The C
/// library's allocator keeps several times the memory in use then, in a heap per thread
/// (docs/s3.md, Tests); this one returns memory that is unused for some seconds.
    // clap prints its own errors and exits with code 2, or 0 after --help and --version.
/// Logs to standard error: warnings, more with `-v`, or what `TERRACE_LOG` or `RUST_LOG` asks for.
    // For a failed request the S3 library logs the signature that would have been right.
    // Colours only on a terminal, not in a file or a journal. https://no-color.org
fn main() -> std::process::ExitCode {
    terrace_server::run()
}
