//! `terrace serve`: a server, and what belongs to the whole process: signals, the allocator, what
//! is printed.

use super::{keys, print};
use crate::{
    cli::ServeArgs,
    failure::Outcome,
    memory,
    server::{self, Server, Surroundings},
    settings::Settings,
    signals::Stop,
};

/// `terrace serve [--import DIR]`
pub fn serve(args: ServeArgs, settings: Settings) -> Outcome {
    let runtime = server::runtime()?;
    let stop = runtime.block_on(async { Stop::by_signals() })?;
    set_allocator();
    let surroundings = Surroundings {
        runtime,
        stop,
        show_first_key: &mut |id, secret| {
            eprint!(
                "This access key may do everything over S3. Its secret is shown this once:\n{}",
                keys::credentials(id, secret)
            );
        },
    };
    let Some(server) = Server::open(args, settings, surroundings)? else {
        eprintln!("stopped before the store was open");
        return Ok(());
    };
    announce(&server)?;
    server.run(|| eprintln!("stopping; once more ends at once"))
}

/// Makes the allocator keep little freed memory, and none if memory is small.
fn set_allocator() {
    let set = if memory::keeps_freed(&memory::Bounds::of_this_process()) {
        memory::allocator::keep_briefly()
    } else {
        memory::allocator::keep_nothing()
    };
    if let Err(error) = set {
        eprintln!("warning: the allocator keeps what is freed for some seconds: {error}");
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
        eprintln!(
            "warning: without TLS, hosts on the network path to {page} can read the page's password; see --tls-cert"
        );
    }
    Ok(())
}
