//! The `terrace` command. All code is in the library of this crate.

fn main() -> std::process::ExitCode {
    terrace_server::run()
}
