//! Problem documents for requests whose head cannot be parsed or names no host, and the time limit of a head.
//!
//! hyper answers these itself, before a route sees a request: 400, 414 or 431 without a body.
//! [`ProblemStream`] replaces this answer by one with a problem document. Errors of routes always have a body, so that
//! they pass unchanged.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::Request;
use axum::http::{StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::head_scanner::HeadScanner;
use crate::{HEAD_BYTES_MAX, ProblemDetails};

/// Refuses requests without a Host header or with two (RFC 9112 section 3.2).
pub(crate) async fn check_host(request: Request, next: Next) -> Response {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    let text = match hosts {
        0 if request.version() == Version::HTTP_11 => "the request has no Host header",
        0 | 1 => return next.run(request).await,
        _ => "the request has several Host headers",
    };
    ProblemDetails::bad_request(format!("{text}: send one")).into_response()
}

/// A connection under hyper that damages heads which hyper would repair ([`HeadScanner`]), ends where a head does not arrive
/// in time, and writes problem documents in place of hyper's empty errors.
///
/// It takes whatever looks like such an error for one: not for servers whose bodies clients choose, such as files.
pub(crate) struct ProblemStream<S> {
    stream: S,
    heads: HeadScanner,
    /// Longest time from the first wait within a head to its end.
    head_limit: Duration,
    /// End of the time for the head with this number.
    head_end: Option<(u64, Pin<Box<Sleep>>)>,
    is_active: bool,
    /// Response that replaces what hyper wrote, and the count of its bytes that are sent.
    replacement: Vec<u8>,
    sent: usize,
}

impl<S> ProblemStream<S> {
    /// Wraps `stream`, whose responses pass unchanged unless `is_active`.
    pub(crate) fn new(stream: S, head_limit: Duration, is_active: bool) -> Self {
        let heads = HeadScanner::default();
        let (replacement, sent) = (Vec::new(), 0);
        Self { stream, heads, head_limit, head_end: None, is_active, replacement, sent }
    }

    /// Returns the connection, to end it.
    pub(crate) fn into_inner(self) -> S {
        self.stream
    }

    /// Ready if the head that has begun must have arrived by now. hyper's own limit also counts the idle time before it.
    fn poll_head_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(head) = self.heads.unfinished_head() else { return Poll::Pending };
        let (begun, end) =
            self.head_end.get_or_insert_with(|| (head, Box::pin(sleep(self.head_limit))));
        if *begun != head {
            (*begun, *end) = (head, Box::pin(sleep(self.head_limit)));
        }
        end.as_mut().poll(cx)
    }
}

impl<S: AsyncWrite + Unpin> ProblemStream<S> {
    fn poll_replacement(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.replacement.len() {
            let rest = &self.replacement[self.sent..];
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Returns the problem document for `response` if it is an error of hyper, which has no body.
fn replacement(response: &[u8]) -> Option<Vec<u8>> {
    let status = response.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    if !matches!(status, b"400" | b"414" | b"431") || !response.ends_with(b"\r\n\r\n") {
        return None;
    }
    let head = std::str::from_utf8(response).ok()?.to_ascii_lowercase();
    if !head.contains("\r\ncontent-length: 0\r\n") {
        return None;
    }
    let problem = match status {
        b"400" => ProblemDetails::bad_request(
            "the request is malformed: send a request of HTTP/1.1, over TLS unless this is a loopback address, and # in a path as %23",
        ),
        b"414" => {
            ProblemDetails::new(StatusCode::URI_TOO_LONG, "the URL is too long: shorten its query")
        }
        _ => ProblemDetails::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            format!(
                "the request line and headers are longer than {HEAD_BYTES_MAX} bytes: shorten them"
            ),
        ),
    };
    Some(problem.raw_response())
}

impl<S: AsyncRead + Unpin> AsyncRead for ProblemStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if Pin::new(&mut self.stream).poll_read(cx, buffer)?.is_pending() {
            // No byte is the end of the connection.
            return self.poll_head_end(cx).map(Ok);
        }
        self.heads.scan(&mut buffer.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ProblemStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_replacement(cx))?;
        if let Some(replacement) = Some(bytes).filter(|_| self.is_active).and_then(replacement) {
            (self.replacement, self.sent) = (replacement, 0);
            // A rest is written by the flush that follows.
            if let Poll::Ready(Err(error)) = self.poll_replacement(cx) {
                return Poll::Ready(Err(error));
            }
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut filled = slices.iter().filter(|slice| !slice.is_empty());
        // An error without a body is one slice.
        if let (Some(only), None) = (filled.next(), filled.next()) {
            return self.poll_write(cx, only);
        }
        ready!(self.poll_replacement(cx))?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_replacement(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_replacement(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::HEADER_TIMEOUT;

    async fn written(parts: &[&[u8]]) -> String {
        // Smaller than a replacement, so that it is written in parts.
        let (near, mut far) = tokio::io::duplex(64);
        let mut stream = ProblemStream::new(near, HEADER_TIMEOUT, true);
        let write = async {
            for part in parts {
                stream.write_all(part).await.unwrap();
            }
            stream.shutdown().await.unwrap();
        };
        let mut text = String::new();
        let (_, read) = tokio::join!(write, far.read_to_string(&mut text));
        read.unwrap();
        text
    }

    #[tokio::test]
    async fn empty_errors_get_problem_documents() {
        for (status, words) in
            [("400 Bad Request", "malformed"), ("431 Request Header Fields Too Large", "longer")]
        {
            let empty =
                format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            let text = written(&[empty.as_bytes()]).await;
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{head}");
            assert!(crate::error_text(body.as_bytes()).unwrap().contains(words), "{body}");
        }
    }

    #[tokio::test]
    async fn other_responses_pass_unchanged() {
        let plain = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let error = "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(written(&[plain.as_bytes(), error.as_bytes()]).await, [plain, error].concat());
    }
}
