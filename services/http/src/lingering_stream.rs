//! The end of a connection whose client still sends.
//!
//! A socket that is closed while received bytes are unread resets its connection: the client fails to send, and may miss
//! the response. [`LingeringStream`] ends the sending direction first, and discards what arrives until the client closes,
//! too (RFC 9112 section 9.6).

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// Limits of the wait for a client.
#[derive(Debug, Clone, Copy)]
struct LingerLimits {
    whole: Duration,
    /// Longest silence of the client.
    silence: Duration,
}

const LINGER_LIMITS: LingerLimits =
    LingerLimits { whole: Duration::from_secs(30), silence: Duration::from_secs(2) };

/// Bytes discarded at once.
const DISCARD_BYTES: usize = 16 << 10;

/// A connection whose last response may overtake the body of its request.
pub(crate) struct LingeringStream<S> {
    stream: S,
    /// Set while a body may be unread.
    lingers: Arc<AtomicBool>,
    limits: LingerLimits,
    closing: Option<Closing>,
}

/// A connection whose sending direction has ended.
struct Closing {
    end: Instant,
    silence: Pin<Box<Sleep>>,
}

impl<S> LingeringStream<S> {
    /// Wraps `stream`, which lingers at its end if `lingers` is set then.
    pub(crate) fn new(stream: S, lingers: Arc<AtomicBool>) -> Self {
        Self { stream, lingers, limits: LINGER_LIMITS, closing: None }
    }
}

impl<S: AsyncRead + Unpin> LingeringStream<S> {
    /// Ready once the client has closed, or its time is over.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (now, limits) = (Instant::now(), self.limits);
        let closing = self.closing.get_or_insert_with(|| Closing {
            end: now + limits.whole,
            silence: Box::pin(sleep_until(now + limits.silence)),
        });
        let mut discarded = [0; DISCARD_BYTES];
        loop {
            let mut buffer = ReadBuf::new(&mut discarded);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    let end = closing.end.min(Instant::now() + limits.silence);
                    closing.silence.as_mut().reset(end);
                    if Instant::now() >= closing.end {
                        return Poll::Ready(());
                    }
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return closing.silence.as_mut().poll(cx),
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LingeringStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closing.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        }
        if self.lingers.load(Ordering::Relaxed) {
            ready!(self.poll_discard(cx));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn lingering<S>(stream: S, lingers: bool) -> LingeringStream<S> {
        let limits =
            LingerLimits { whole: Duration::from_millis(200), silence: Duration::from_millis(100) };
        let lingers = Arc::new(AtomicBool::new(lingers));
        LingeringStream { limits, ..LingeringStream::new(stream, lingers) }
    }

    #[tokio::test]
    async fn close_waits_for_silent_client() {
        for lingers in [false, true] {
            let (near, mut far) = tokio::io::duplex(64);
            let mut stream = lingering(near, lingers);
            let begin = Instant::now();
            stream.shutdown().await.unwrap();
            assert_eq!(begin.elapsed() >= stream.limits.silence, lingers);
            assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn rest_of_body_is_discarded() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut stream = lingering(near, true);
        let client = async move {
            // More than the pipe holds: the stream has to read it.
            far.write_all(&[0; 1000]).await.unwrap();
            assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
        };
        let (closed, ()) = tokio::join!(stream.shutdown(), client);
        closed.unwrap();
    }

    #[tokio::test]
    async fn endless_body_ends_the_wait() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut stream = lingering(near, true);
        let begin = Instant::now();
        let send = async { while far.write_all(b"more").await.is_ok() {} };
        tokio::select! {
            () = send => panic!("the client cannot send"),
            closed = stream.shutdown() => closed.unwrap(),
        }
        assert!(begin.elapsed() >= stream.limits.whole);
    }
}
