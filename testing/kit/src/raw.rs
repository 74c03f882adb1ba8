//! Exchanges over TCP byte by byte: requests that are malformed or incomplete on purpose, and servers that answer with
//! damaged responses. Well-formed requests go through `http`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Time limit of each read from a connection.
pub const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects to `address`; reads fail after [`READ_TIMEOUT`] without data.
///
/// # Panics
/// When no server accepts.
#[track_caller]
pub fn connect(address: impl ToSocketAddrs) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
    stream
}

/// Repeats `call` for as long as it is interrupted: a system call with a time limit fails with EINTR after the process
/// was stopped, where one without is continued (signal(7)).
///
/// # Errors
/// Those of `call` besides the interruption.
pub fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Sends `request` and returns all bytes until the server closes or the time limit passes.
///
/// # Panics
/// When no server accepts. A connection that breaks later ends the response.
#[track_caller]
pub fn exchange(address: impl ToSocketAddrs, request: &[u8]) -> String {
    let mut stream = connect(address);
    // The server may refuse and close before it has read everything.
    let _ = stream.write_all(request);
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    String::from_utf8_lossy(&response).into_owned()
}

/// Returns the body of a GET of HTTP/1.0, whose responses are never chunked.
///
/// # Errors
/// When no server accepts, or its answer has no status of success.
pub fn get(address: impl ToSocketAddrs, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    match response.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => Ok(body.to_owned()),
        _ => Err(io::Error::other(format!("{path}: {response}"))),
    }
}

/// A response of HTTP, read from a raw connection.
#[derive(Debug)]
pub struct RawResponse {
    /// Code of the status line.
    pub status: u16,
    /// Names and values in their order.
    pub headers: Vec<(String, String)>,
    /// Body without the framing of chunks.
    pub body: Vec<u8>,
}

impl RawResponse {
    /// Returns the first header of this name, in any case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// Reads one response with its body, and leaves the connection at the next.
///
/// # Panics
/// When the response is malformed or incomplete.
#[track_caller]
pub fn read_response(reader: &mut impl BufRead) -> RawResponse {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("a status: {line:?}"));
    let status = status.parse().unwrap();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
            None => break,
        }
    }
    let mut response = RawResponse { status, headers, body: Vec::new() };
    if status == 204 || status == 304 || status == 100 {
        return response;
    }
    if response.header("transfer-encoding").is_some() {
        loop {
            line.clear();
            reader.read_line(&mut line).unwrap();
            let count = usize::from_str_radix(line.trim(), 16).expect("a chunk's length");
            let mut chunk = vec![0; count + 2];
            reader.read_exact(&mut chunk).unwrap();
            response.body.extend_from_slice(&chunk[..count]);
            if count == 0 {
                return response;
            }
        }
    }
    let count = response.header("content-length").map_or(0, |text| text.parse().unwrap());
    response.body = vec![0; count];
    reader.read_exact(&mut response.body).unwrap();
    response
}

/// A request as a scripted server received it.
#[derive(Debug)]
pub struct ReceivedRequest {
    /// Request line and headers.
    pub head: String,
    /// As many bytes as the header `Content-Length` states.
    pub body: Vec<u8>,
}

/// Accepts a connection, reads one request, and answers it with the bytes that `answer` returns for it.
///
/// # Panics
/// When no connection arrives, or the body is incomplete. A client that closes early is none.
pub fn serve_once<B: AsRef<[u8]>>(
    listener: &TcpListener,
    answer: impl FnOnce(&ReceivedRequest) -> B,
) -> ReceivedRequest {
    let (stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(stream);
    let request = read_request(&mut reader);
    let _ = reader.get_mut().write_all(answer(&request).as_ref());
    request
}

/// Reads one request with its body; a closed connection ends it.
fn read_request(reader: &mut impl BufRead) -> ReceivedRequest {
    let (mut head, mut bytes, mut line) = (String::new(), 0, String::new());
    while reader.read_line(&mut line).unwrap_or(0) > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            bytes = value.trim().parse().unwrap();
        }
        head += &line;
        line.clear();
    }
    let mut body = vec![0; bytes];
    reader.read_exact(&mut body).unwrap();
    ReceivedRequest { head, body }
}

/// Ports that the kernel gives to no client by default.
const SERVER_PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Returns a port of TCP on 127.0.0.1 that is free now and that no client gets: a server may take it, and take it again.
///
/// # Panics
/// When the system has none.
#[must_use]
pub fn free_port() -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(61);
    for _ in SERVER_PORTS {
        let number = begin.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed));
        let offset = number % u32::from(SERVER_PORTS.end - SERVER_PORTS.start);
        let port = SERVER_PORTS.start + u16::try_from(offset).expect("below the end");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port of {SERVER_PORTS:?} is free");
}
