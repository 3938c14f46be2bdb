//! A server in the process of its caller.

use super::{Server, Surroundings, runtime};
use crate::{
    cli::{self, Cli, Command},
    failure::{Failure, Outcome},
    settings,
    signals::Stop,
};
use clap::FromArgMatches as _;
use std::{
    ffi::OsString,
    net::SocketAddr,
    thread::{self, JoinHandle},
};
use terrace::Clock;

/// A server in the caller's process, for tests: what `terrace serve` runs, except that it handles
/// no signals, logs nothing and takes its time from a given clock. A process may have several.
///
/// The clock must not be behind the system's: the library for S3 also compares the ends of
/// presigned URLs and of forms' policies with that.
///
/// Dropping it stops it too, without reporting errors.
#[derive(Debug)]
pub struct Serving {
    page: SocketAddr,
    s3: Option<SocketAddr>,
    first_key: Option<(String, String)>,
    stop: Stop,
    thread: Option<JoinHandle<Outcome>>,
}

impl Serving {
    /// Starts a server with the command line and the environment that the program would have.
    /// Without a store in them, its data are in the working directory.
    ///
    /// # Errors
    /// The message that the program would print.
    pub fn start<A: Into<OsString>, V: Into<OsString>>(
        arguments: impl IntoIterator<Item = A>,
        variables: impl IntoIterator<Item = (V, V)>,
        clock: Clock,
    ) -> Result<Self, String> {
        let arguments = arguments.into_iter().map(Into::into);
        let arguments = [OsString::from("terrace"), OsString::from("serve")]
            .into_iter()
            .chain(arguments);
        let matches = cli::command()
            .try_get_matches_from(arguments)
            .map_err(|error| error.to_string())?;
        let cli = Cli::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self::of(cli, variables, clock).map_err(|failure| failure.to_string())
    }

    fn of(cli: Cli, variables: impl Iterator<Item = (OsString, OsString)>, clock: Clock) -> Outcome<Self> {
        let Command::Serve(args) = cli.command else {
            return Err(Failure::usage("this is no server"));
        };
        let layer = settings::gather(cli.layer, cli.config, variables, &mut |_| {})?;
        let mut settings = layer.resolve()?;
        settings.options.clock = clock;
        let (stop, mut first_key) = (Stop::default(), None);
        let surroundings = Surroundings {
            runtime: runtime()?,
            stop: stop.clone(),
            show_first_key: &mut |id, secret| {
                first_key = Some((id.to_owned(), secret.to_owned()));
                Ok(())
            },
        };
        let server = Server::open(*args, settings, surroundings)?.ok_or_else(|| Failure::error("it was stopped"))?;
        let (page, s3) = server.addresses();
        let thread = thread::Builder::new()
            .name("server".to_owned())
            .spawn(move || server.run(|| {}))
            .map_err(|error| Failure::io("starting threads", &error))?;
        Ok(Self {
            page,
            s3,
            first_key,
            stop,
            thread: Some(thread),
        })
    }

    /// The page's address.
    #[must_use]
    pub const fn page(&self) -> SocketAddr {
        self.page
    }

    /// The address of S3, if it is served.
    #[must_use]
    pub const fn s3(&self) -> Option<SocketAddr> {
        self.s3
    }

    /// ID and secret of the access key that it made, if the store had none.
    #[must_use]
    pub fn first_key(&self) -> Option<(&str, &str)> {
        self.first_key
            .as_ref()
            .map(|(id, secret)| (id.as_str(), secret.as_str()))
    }

    /// Stops it as SIGTERM stops the program, and waits until its store is closed.
    ///
    /// # Errors
    /// The message that the program would print.
    pub fn stop(mut self) -> Result<(), String> {
        self.end().map_err(|failure| failure.to_string())
    }

    fn end(&mut self) -> Outcome {
        self.stop.stop();
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(Failure::error("the server panicked")),
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // The outcome is returned by `stop` alone.
        let _ = self.end();
    }
}
