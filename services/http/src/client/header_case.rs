//! Case of header names in requests, for servers that compare names with case against RFC 9110.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use hyper::http::Extensions;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;

/// Size of the pipe through which names are read, in bytes.
const PIPE_BYTES: usize = 4 << 10;

/// Spelling of header names in requests.
///
/// hyper writes a name in another case than its own only as a proxy does, where it has read that spelling before: it
/// keeps them in an extension of the request without a constructor. The names are thus read once from a pipe.
#[derive(Debug, Clone, Default)]
pub struct HeaderCase {
    extensions: Extensions,
}

impl HeaderCase {
    /// Creates the spelling of these names; other names are written in title case.
    pub async fn of(names: &[&str]) -> Self {
        let (mut writer, reader) = tokio::io::duplex(PIPE_BYTES);
        let lines: String = names.iter().map(|name| format!("{name}: x\r\n")).collect();
        let text = format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n");
        let read = Arc::new(Mutex::new(Extensions::new()));
        let service = service_fn(|request: Request<_>| {
            let extensions = request.extensions().clone();
            *read.lock().unwrap_or_else(PoisonError::into_inner) = extensions;
            async { Ok::<_, Infallible>(Response::new(Body::empty())) }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        let serve =
            builder.preserve_header_case(true).serve_connection(TokioIo::new(reader), service);
        let (written, _) = tokio::join!(writer.write_all(text.as_bytes()), serve);
        debug_assert!(written.is_ok(), "the pipe holds the names");
        let extensions = read.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Self { extensions }
    }

    /// Writes the names of a request in this spelling.
    pub fn apply(&self, request: &mut Request<Body>) {
        request.extensions_mut().extend(self.extensions.clone());
    }
}
