//! The `terrace` command. All of it is in the library beside this file.

fn main() -> std::process::ExitCode {
    terrace_server::run()
}
