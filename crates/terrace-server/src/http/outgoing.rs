//! A connection that is closed if its client does not receive what is sent.
//!
//! Bytes for a client are held until the connection ends, and hyper does not poll the body of an
//! answer while the operating system accepts nothing. So the connection itself ends when no bytes
//! were accepted for a while.
//!
//! A client that is answered before its whole request was read, as on a full store, still sends the
//! rest. If the connection were closed then, the operating system would reset it, and the client
//! could lose the answer. So bytes after the last answer are read and discarded for a while.

use super::{connections::Sending, traffic::Traffic};
use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

/// How long bytes after the last answer are discarded: time to receive the answer.
const LINGER_TIME_MAX: Duration = Duration::from_secs(2);
/// Bytes that are discarded at a time, on the stack.
const LINGER_STEP_BYTES: usize = 8 << 10;
/// Most steps before other tasks run.
const LINGER_STEPS: usize = 32;

/// A stream that fails when none of its written bytes is accepted for too long.
#[derive(Debug)]
pub struct Outgoing<S> {
    stream: S,
    /// Notified when all bytes were accepted.
    sending: Option<Sending>,
    /// Counts bytes.
    traffic: Option<Arc<Traffic>>,
    patience: Duration,
    /// Runs only while bytes wait; created when that happens first.
    deadline: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
    linger_max: Duration,
    /// Runs once everything was written.
    lingers: Option<Pin<Box<Sleep>>>,
}

impl<S> Outgoing<S> {
    /// A stream whose peer has this long to accept bytes.
    pub const fn new(stream: S, patience: Duration) -> Self {
        Self {
            stream,
            sending: None,
            traffic: None,
            patience,
            deadline: None,
            is_waiting: false,
            linger_max: LINGER_TIME_MAX,
            lingers: None,
        }
    }

    /// Also notifies when all bytes were accepted.
    pub fn telling(self, sending: Sending) -> Self {
        Self {
            sending: Some(sending),
            ..self
        }
    }

    /// Also counts bytes.
    pub fn counted_by(self, traffic: Option<Arc<Traffic>>) -> Self {
        Self { traffic, ..self }
    }

    fn count(&self, bytes: usize) {
        if let Some(traffic) = &self.traffic {
            traffic.count(bytes);
        }
    }

    /// Handles an attempt to write. Fails if all attempts failed for too long.
    fn written(&mut self, attempt: Poll<io::Result<usize>>, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Some(sending) = &self.sending
            && sending.tried(attempt.is_ready())
        {
            context.waker().wake_by_ref();
        }
        if attempt.is_ready() {
            self.is_waiting = false;
            if let Poll::Ready(Ok(bytes)) = &attempt {
                self.count(*bytes);
            }
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

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Outgoing<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(attempt, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(attempt, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper calls this when it has written all bytes, and TLS writes its rest first.
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        if let Some(sending) = &self.sending {
            sending.all_sent();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingers.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        }
        self.poll_linger(context).map(Ok)
    }
}

impl<S: AsyncRead + Unpin> Outgoing<S> {
    /// Discards incoming bytes until the client has closed its end or the time is over. A client
    /// that sends nothing at the end has received its answer.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut bytes = [std::mem::MaybeUninit::uninit(); LINGER_STEP_BYTES];
        for _ in 0..LINGER_STEPS {
            let mut buffer = ReadBuf::uninit(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => match &mut self.lingers {
                    None => return Poll::Ready(()),
                    Some(end) => return end.as_mut().poll(context),
                },
            }
            let end = || Box::pin(tokio::time::sleep(self.linger_max));
            if self.lingers.get_or_insert_with(end).as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Outgoing<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if outcome.is_ready() {
            self.count(buffer.filled().len() - before);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::future::poll_fn;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        time::sleep,
    };

    const PATIENCE: Duration = Duration::from_millis(100);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_closed() {
        let (stream, _client) = duplex(16);
        let mut stream = Outgoing::new(stream, PATIENCE);
        let started = Instant::now();
        let error = stream.write_all(&[0; 17]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() >= PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_a_little_has_the_whole_time_again() {
        let (stream, mut client) = duplex(16);
        let mut stream = Outgoing::new(stream, Duration::from_secs(3600));
        let mut until = Instant::now();
        stream.write_all(&[0; 16]).await.unwrap();
        for _ in 0..3 {
            // The buffer is full.
            let mut writing = Box::pin(stream.write_all(&[0; 16]));
            assert!(poll_fn(|context| Poll::Ready(writing.as_mut().poll(context).is_pending())).await);
            drop(writing);
            let ends = stream.deadline.as_ref().unwrap().deadline();
            assert!(ends > until, "the time before does not count");
            until = ends;
            client.read_exact(&mut [0; 16]).await.unwrap();
            stream.write_all(&[0; 16]).await.unwrap();
            sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_client_with_nothing_to_read_is_kept() {
        let (stream, mut client) = duplex(16);
        let mut stream = Outgoing::new(stream, Duration::from_millis(1));
        stream.write_all(&[0; 16]).await.unwrap();
        sleep(Duration::from_millis(10)).await;
        client.read_exact(&mut [0; 16]).await.unwrap();
        stream.write_all(b"x").await.unwrap();
        assert_eq!(client.read(&mut [0; 2]).await.unwrap(), 1);
    }

    /// Regression: a client that was still sending its value when the store was full got a reset
    /// connection and not the answer.
    #[tokio::test]
    async fn what_comes_after_the_answer_is_thrown_away() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = tokio::net::TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let answering = tokio::spawn(async move {
            let mut stream = Outgoing::new(stream, PATIENCE);
            // The time that the client needs here on a busy machine.
            stream.linger_max = Duration::from_secs(120);
            // Its head was read; the rest is not, and more follows.
            stream.read_exact(&mut [0; 4]).await.unwrap();
            stream.write_all(b"full").await.unwrap();
            stream.shutdown().await.unwrap();
        });
        // More than the operating system buffers for a connection.
        client.write_all(&vec![b'x'; 32 << 20]).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"full");
        drop(client);
        answering.await.unwrap();
    }

    #[tokio::test]
    async fn lingering_ends_after_a_while_or_at_once_if_nothing_is_sent() {
        let (stream, client) = duplex(16);
        let mut quiet = Outgoing::new(stream, PATIENCE);
        // Otherwise it would not end.
        quiet.linger_max = Duration::from_secs(3600);
        quiet.shutdown().await.unwrap();
        drop(client);
        let started = Instant::now();
        let (stream, mut client) = duplex(16);
        client.write_all(b"some and more").await.unwrap();
        let sending = tokio::spawn(async move { while client.write_all(b"more").await.is_ok() {} });
        let mut stream = Outgoing::new(stream, PATIENCE);
        stream.linger_max = PATIENCE;
        stream.read_exact(&mut [0; 4]).await.unwrap();
        stream.shutdown().await.unwrap();
        drop(stream);
        sending.await.unwrap();
        assert!(started.elapsed() >= PATIENCE);
    }
}
