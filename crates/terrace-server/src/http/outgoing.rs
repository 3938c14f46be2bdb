//! A connection whose client must take what it is sent.
//!
//! What waits for a client is his until the connection ends, and hyper does not look at the body of an answer while the
//! operating system takes nothing. So the connection itself ends when nothing was taken for a while.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

/// A stream that fails when nothing of what is written to it is taken for too long.
#[derive(Debug)]
pub struct Outgoing<S> {
    stream: S,
    patience: Duration,
    /// Runs only while something waits to be taken; made when that happens first.
    deadline: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl<S> Outgoing<S> {
    /// Gives the other end so long to take something.
    pub const fn new(stream: S, patience: Duration) -> Self {
        Self {
            stream,
            patience,
            deadline: None,
            is_waiting: false,
        }
    }

    /// An attempt to write was made. Fails if there were none but vain ones for too long.
    fn attempted<T>(&mut self, attempt: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if attempt.is_ready() {
            self.is_waiting = false;
            return attempt;
        }
        let patience = self.patience;
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        if !self.is_waiting {
            self.is_waiting = true;
            deadline.as_mut().reset(Instant::now() + patience);
        }
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client takes nothing of its answer",
        )))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Outgoing<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.attempted(attempt, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.attempted(attempt, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Outgoing<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        time::sleep,
    };

    const PATIENCE: Duration = Duration::from_millis(100);

    #[tokio::test]
    async fn who_takes_nothing_is_given_up() {
        let (stream, _client) = duplex(16);
        let mut stream = Outgoing::new(stream, PATIENCE);
        let started = Instant::now();
        let error = stream.write_all(&[0; 17]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() >= PATIENCE);
    }

    #[tokio::test]
    async fn who_takes_a_little_now_and_then_gets_all() {
        let (stream, mut client) = duplex(16);
        let mut stream = Outgoing::new(stream, PATIENCE);
        let taken = tokio::spawn(async move {
            let mut taken = 0;
            while taken < 160 {
                sleep(PATIENCE / 4).await;
                taken += client.read(&mut [0; 16]).await.unwrap();
            }
            client
        });
        let started = Instant::now();
        stream.write_all(&[0; 160]).await.unwrap();
        assert!(started.elapsed() > PATIENCE, "all in all it took longer");
        let mut client = taken.await.unwrap();
        // Silence of who has nothing to take is no fault of his.
        sleep(2 * PATIENCE).await;
        stream.write_all(b"x").await.unwrap();
        assert_eq!(client.read(&mut [0; 2]).await.unwrap(), 1);
    }
}
