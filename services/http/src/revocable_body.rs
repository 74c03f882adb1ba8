//! Bodies of endless answers, which end with the rights of their client.
//!
//! A token is checked when a request arrives. A stream of events outlives its request: without a further check a client
//! whose token has expired or was revoked would follow it for ever.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header;
use axum::response::Response;
use hyper::body::Frame;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Time between two checks of a client's rights.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Check of a client's rights under way; false once it has none any more.
pub type RightsCheck = Pin<Box<dyn Future<Output = bool> + Send>>;

struct RevocableBody<F> {
    body: Body,
    timer: Interval,
    begin: F,
    running: Option<RightsCheck>,
    is_over: bool,
}

impl<F> fmt::Debug for RevocableBody<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RevocableBody").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

/// Ends the body of `response`, if it is a stream of events, once a check that `begin` begins finds no rights.
pub fn revocable<F>(response: Response, begin: F) -> Response
where
    F: FnMut() -> RightsCheck + Send + Unpin + 'static,
{
    checked_every(CHECK_INTERVAL, response, begin)
}

fn checked_every<F>(interval: Duration, response: Response, begin: F) -> Response
where
    F: FnMut() -> RightsCheck + Send + Unpin + 'static,
{
    let kind = response.headers().get(header::CONTENT_TYPE);
    if !kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
        return response;
    }
    let mut timer = interval_at(Instant::now() + interval, interval);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    response
        .map(|body| Body::new(RevocableBody { body, timer, begin, running: None, is_over: false }))
}

impl<F: FnMut() -> RightsCheck + Unpin> RevocableBody<F> {
    /// Advances the checks; ready once one has found no rights.
    fn poll_revoked(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.is_over {
            if self.running.is_none() {
                ready!(self.timer.poll_tick(cx));
                self.running = Some((self.begin)());
            }
            if let Some(check) = &mut self.running {
                self.is_over = !ready!(check.as_mut().poll(cx));
                self.running = None;
            }
        }
        Poll::Ready(())
    }
}

impl<F: FnMut() -> RightsCheck + Unpin> HttpBody for RevocableBody<F> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.poll_revoked(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => Pin::new(&mut self.body).poll_frame(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::response::IntoResponse;
    use http_body_util::BodyExt;

    use super::*;

    /// A body with one frame, after which it is silent.
    struct SilentBody(Option<Bytes>);

    impl HttpBody for SilentBody {
        type Data = Bytes;
        type Error = axum::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
            match self.0.take() {
                Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                None => Poll::Pending,
            }
        }
    }

    fn response(kind: &'static str) -> Response {
        let body = Body::new(SilentBody(Some(Bytes::from_static(b"one"))));
        ([(header::CONTENT_TYPE, kind)], body).into_response()
    }

    #[tokio::test]
    async fn silent_stream_ends_without_rights() {
        let checks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&checks);
        let (begun, interval) = (Instant::now(), Duration::from_millis(5));
        let streamed = checked_every(interval, response("text/event-stream"), move || {
            let number = counted.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move { number < 4 })
        });
        let body = streamed.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "one");
        assert_eq!(checks.load(Ordering::Relaxed), 5);
        assert!(begun.elapsed() >= 5 * interval);
    }

    #[tokio::test]
    async fn other_bodies_are_not_checked() {
        let plain = "text".into_response();
        let same = revocable(plain, || Box::pin(async { unreachable!("no stream of events") }));
        assert_eq!(same.into_body().collect().await.unwrap().to_bytes(), "text");
    }
}
