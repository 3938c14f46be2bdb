//! `terrace serve`: a server, and what belongs to the whole process: signals, the allocator, what
//! is printed.

use super::{keys, print};
use crate::{
    cli::ServeArgs,
    failure::{Failure, Outcome},
    memory,
    output::tell,
    server::{self, Server, Surroundings},
    settings::Settings,
    signals::Stop,
};
use std::io::Write as _;

/// `terrace serve [--import DIR]`
pub fn serve(args: ServeArgs, settings: Settings) -> Outcome {
    let runtime = server::runtime()?;
    let stop = runtime.block_on(async { Stop::by_signals() })?;
    set_allocator();
    server::raise_file_limit();
    let surroundings = Surroundings {
        runtime,
        stop,
        show_first_key: &mut |id, secret| {
            let text = format!(
                "This access key may do everything over S3. Its secret is shown this once:\n{}",
                keys::credentials(id, secret)
            );
            let shown = std::io::stderr().write_all(text.as_bytes());
            shown.map_err(|error| Failure::io("writing the first access key to standard error", &error))
        },
    };
    let Some(server) = Server::open(args, settings, surroundings)? else {
        tell("stopped before the store was open");
        return Ok(());
    };
    announce(&server)?;
    server.run(|| tell("stopping; once more ends at once"))
}

/// Makes the allocator keep little freed memory, and none if memory is small.
fn set_allocator() {
    let set = if memory::keeps_freed(&memory::Bounds::of_this_process()) {
        memory::allocator::keep_briefly()
    } else {
        memory::allocator::keep_nothing()
    };
    if let Err(error) = set {
        tell(format_args!(
            "warning: the allocator keeps what is freed for some seconds: {error}"
        ));
    }
}

/// Prints the addresses in one write: a program that reads the first line may close the pipe after
/// it.
fn announce(server: &Server) -> Outcome {
    let scheme = if server.is_encrypted() { "https" } else { "http" };
    let (page, s3) = server.addresses();
    let s3 = s3.map(|address| format!("{scheme}://{address}/ (S3)\n"));
    print(&format!("{scheme}://{page}/\n{}", s3.unwrap_or_default()))?;
    if !page.ip().is_loopback() && !server.is_encrypted() {
        tell(format_args!(
            "warning: without TLS, hosts on the network path to {page} can read the page's password; see --tls-cert"
        ));
    }
    Ok(())
}
