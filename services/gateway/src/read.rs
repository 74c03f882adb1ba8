//! `GET` and `HEAD`: files, parts of files, and listings of collections for people.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use penstock_http::ProblemDetails;
use penstock_mover::TransferDirection;
use penstock_scopes::PathAccess;
use penstock_sys::buffer::BufferPool;
use penstock_sys::fs::{self, Kind, Stat};

use crate::account::{ConnectionAccount, FileInTransfer, FileRequest};
use crate::conditions::{ReadCondition, Validators};
use crate::digest::{self, DigestField, WantedDigest};
use crate::dispatch::{DavRequest, Gateway, blocking};
use crate::error::{failed, refused};
use crate::properties;
use crate::range::{ByteRange, RANGES_MAX, RequestedRanges, requested};
use crate::read_ahead::{ChunkSource, ReadAhead};
use crate::third_party::{MoverOffer, OFFER_HEADER, is_offered, offer_for};

/// Bytes read and handed over at once.
pub(crate) const CHUNK_BYTES: usize = 512 << 10;

/// Chunks in the pool of a gateway. Reads beyond it, for many slow clients, allocate memory of their own.
pub(crate) const POOLED_CHUNKS_MAX: usize = 64;

/// Returns a separator for the parts of a `multipart/byteranges` body. It is random: a file cannot contain it by intent.
fn new_boundary() -> String {
    format!("penstock-{:032x}", u128::from_be_bytes(penstock_mover::random()))
}

/// A piece of a response body.
#[derive(Debug)]
enum BodyPiece {
    Text(String),
    Data(ByteRange),
}

/// Answers `GET` and `HEAD`.
pub(crate) async fn get(
    gateway: &Arc<Gateway>,
    request: &DavRequest,
) -> Result<Response, ProblemDetails> {
    let access = if request.method == Method::HEAD { PathAccess::Stat } else { PathAccess::Read };
    let Some(place) = gateway.place(request, access)? else {
        return properties::listing_page(gateway, request).await;
    };
    let shown = place.shown.clone();
    let looks = request.method == Method::HEAD;
    let opened = blocking(move || {
        let opened = open(&place)?;
        let is_offered =
            matches!(&opened, OpenedPath::File(_, stat) if looks && is_offered(&place, stat.size));
        Ok((opened, is_offered))
    });
    // The mover knows no redirects: a copy from or to a head node has to use HTTP.
    let redirects = gateway.head.as_ref().is_some_and(|head| head.available() > 0);
    let receives = match redirects {
        true => None,
        false => offer_for(gateway, request).await,
    };
    let (opened, is_offered) = match opened.await {
        Ok(opened) => opened,
        Err(error) => {
            let problem = failed(&shown, &error);
            let Some(offer) = receives else { return Err(problem) };
            // Where nothing is, the other agent may push.
            return Ok(([(OFFER_HEADER, offer.to_string())], problem).into_response());
        }
    };
    let (file, stat) = match opened {
        OpenedPath::File(file, stat) => (Arc::new(file), stat),
        OpenedPath::Collection => return properties::listing_page(gateway, request).await,
    };
    let validators = Validators::of(&stat);
    let mut headers = HeaderMap::new();
    let mut set = |name: HeaderName, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    };
    set(header::ACCEPT_RANGES, "bytes".to_owned());
    set(header::CONTENT_TYPE, "application/octet-stream".to_owned());
    set(header::ETAG, validators.etag.clone());
    set(header::LAST_MODIFIED, validators.last_modified());
    let sends = || MoverOffer::of(&gateway.agent).filter(|_| is_offered && !redirects);
    let is_push = request.headers.contains_key(OFFER_HEADER);
    let offer = if is_push { receives } else { sends() };
    if let Some(offer) = offer {
        set(OFFER_HEADER, offer.to_string());
    }
    if let Some((name, value)) = wanted_digest(gateway, request, &file).await? {
        set(name, value);
    }
    let use_ranges = match validators.evaluate_read(&request.headers)? {
        ReadCondition::NotModified => {
            return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
        }
        ReadCondition::Send { ranges } => ranges && request.method == Method::GET,
    };
    let range = request.header(header::RANGE).filter(|_| use_ranges);
    let size = stat.size;
    let whole = ByteRange { start: 0, bytes: size };
    let (status, pieces) = match requested(range, size) {
        RequestedRanges::Whole => (StatusCode::OK, vec![BodyPiece::Data(whole)]),
        refused @ (RequestedRanges::Unsatisfiable | RequestedRanges::Excessive) => {
            let reason = match refused {
                RequestedRanges::Excessive => format!(
                    "{shown}: the ranges are more than {RANGES_MAX} or ask for more than twice its {size} bytes: ask for fewer at once"
                ),
                _ => format!("{shown} has {size} bytes and none of this range"),
            };
            let problem = ProblemDetails::new(StatusCode::RANGE_NOT_SATISFIABLE, reason);
            let size = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
            return Ok((size, problem).into_response());
        }
        RequestedRanges::Parts(parts) if parts.len() == 1 => {
            headers.insert(header::CONTENT_RANGE, ascii(&parts[0].content_range(size)));
            (StatusCode::PARTIAL_CONTENT, vec![BodyPiece::Data(parts[0])])
        }
        RequestedRanges::Parts(parts) => {
            let boundary = new_boundary();
            let kind = format!("multipart/byteranges; boundary={boundary}");
            headers.insert(header::CONTENT_TYPE, ascii(&kind));
            (StatusCode::PARTIAL_CONTENT, multipart(&parts, size, &boundary))
        }
    };
    let length: u64 = pieces.iter().map(BodyPiece::bytes).sum();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    if request.method == Method::HEAD || length == 0 {
        return Ok((status, headers).into_response());
    }
    let mark = gateway.mark(request)?;
    let account = ConnectionAccount::begin(
        &request.connection,
        &gateway.agent,
        &FileRequest {
            caller: &request.caller,
            direction: TransferDirection::Send,
            shown: &shown,
            bytes: Some(length),
            mark,
        },
    )
    .await
    .map_err(refused)?;
    let demanded = request.headers.contains_key(header::IF_MATCH).then_some(validators);
    let reader =
        FileReader { file, buffers: gateway.buffers.clone(), pieces: pieces.into(), demanded };
    let body = body(reader, DownloadAccount { file: account, is_whole: status == StatusCode::OK });
    Ok((status, headers, body).into_response())
}

fn ascii(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("numbers and letters make a header")
}

/// A path opened for reading: a file, or a collection.
#[derive(Debug)]
pub(crate) enum OpenedPath {
    File(File, Stat),
    Collection,
}

/// Opens a path for reading; directories only where they are one.
pub(crate) fn open(place: &penstock_mover::ResolvedPath) -> io::Result<OpenedPath> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::OsStr::from_bytes(&place.path);
    if place.path.is_empty() {
        return Ok(OpenedPath::Collection);
    }
    let how = fs::Open { follow: true, ..fs::Open::reading() };
    match place.root.open_file(path, &how) {
        Ok(file) => {
            let stat = fs::stat_file(&file)?;
            Ok(OpenedPath::File(file, stat))
        }
        Err(error) => match place.root.stat_follow(path) {
            Ok(stat) if stat.kind == Kind::Directory => Ok(OpenedPath::Collection),
            _ => Err(error),
        },
    }
}

/// Returns the digest header that the client asked for.
async fn wanted_digest(
    gateway: &Arc<Gateway>,
    request: &DavRequest,
    file: &Arc<File>,
) -> Result<Option<(HeaderName, String)>, ProblemDetails> {
    let Some(wanted) = digest::wanted_by(&request.headers) else { return Ok(None) };
    let WantedDigest { algorithm, field } = wanted;
    let digest = gateway.digest(Arc::clone(file), algorithm).await;
    let digest = digest.map_err(|error| failed(&request.path.shown(), &error))?;
    let name = match field {
        DigestField::Digest => HeaderName::from_static("digest"),
        DigestField::ReprDigest => HeaderName::from_static("repr-digest"),
    };
    Ok(digest.map(|digest| (name, digest::header_value(wanted, &digest))))
}

impl BodyPiece {
    fn bytes(&self) -> u64 {
        match self {
            Self::Text(text) => text.len() as u64,
            Self::Data(range) => range.bytes,
        }
    }
}

fn multipart(parts: &[ByteRange], size: u64, boundary: &str) -> Vec<BodyPiece> {
    let mut pieces = Vec::with_capacity(2 * parts.len() + 1);
    for part in parts {
        pieces.push(BodyPiece::Text(format!(
            "\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Range: {}\r\n\r\n",
            part.content_range(size)
        )));
        pieces.push(BodyPiece::Data(*part));
    }
    pieces.push(BodyPiece::Text(format!("\r\n--{boundary}--\r\n")));
    pieces
}

/// Account of a body.
pub(crate) trait BodyAccount: Send + Sync + 'static {
    /// Counts a chunk before it is sent; returns the delay that the limits ask for.
    ///
    /// # Errors
    /// Once the transfer is cancelled.
    fn count(&self, bytes: usize) -> io::Result<Duration>;

    /// Ends with a body of `bytes`. Dropped before, the account is that of a body that broke off.
    fn finish(self, bytes: u64);
}

/// Account of a download.
#[derive(Debug)]
struct DownloadAccount {
    file: FileInTransfer,
    /// True for a whole file.
    is_whole: bool,
}

impl BodyAccount for DownloadAccount {
    fn count(&self, bytes: usize) -> io::Result<Duration> {
        self.file.count(bytes)
    }

    fn finish(self, bytes: u64) {
        match self.is_whole {
            true => self.file.finish(bytes),
            false => self.file.finish_part(),
        }
    }
}

/// Reads pieces of a file. A file that becomes shorter ends the connection before the announced length, and so does one that
/// changes where the client demands a state of it.
#[derive(Debug)]
struct FileReader {
    file: Arc<File>,
    buffers: BufferPool,
    pieces: VecDeque<BodyPiece>,
    /// State that the client demands by `If-Match`.
    demanded: Option<Validators>,
}

impl ChunkSource for FileReader {
    type Chunk = Bytes;

    fn next_chunk(&mut self) -> io::Result<Bytes> {
        match self.pieces.pop_front() {
            None => Ok(Bytes::new()),
            Some(BodyPiece::Text(text)) => Ok(text.into()),
            Some(BodyPiece::Data(range)) => {
                let count = CHUNK_BYTES.min(usize::try_from(range.bytes).unwrap_or(usize::MAX));
                let left = range.bytes - count as u64;
                if left > 0 {
                    let rest = ByteRange { start: range.start + count as u64, bytes: left };
                    self.pieces.push_front(BodyPiece::Data(rest));
                }
                let chunk = read_chunk(&self.file, &self.buffers, range.start, count)?;
                match &self.demanded {
                    // Another program writes the file in place: these bytes may be of either state.
                    Some(state) if Validators::of(&fs::stat_file(&self.file)?) != *state => {
                        Err(io::Error::other("the file changed while it was sent"))
                    }
                    _ => Ok(chunk),
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        self.pieces.is_empty()
    }
}

/// Streams a part of a file.
pub(crate) fn file_body(
    file: Arc<File>,
    buffers: BufferPool,
    range: ByteRange,
    account: impl BodyAccount,
) -> Body {
    let pieces = [BodyPiece::Data(range)].into();
    body(FileReader { file, buffers, pieces, demanded: None }, account)
}

/// Streams what `reader` reads.
fn body(reader: FileReader, account: impl BodyAccount) -> Body {
    let begun = (ReadAhead::new(reader), account, 0);
    Body::from_stream(stream::try_unfold(Some(begun), async |running| {
        let Some((mut chunks, account, moved)) = running else { return Ok(None) };
        let chunk = next_counted(&mut chunks, &account).await;
        let chunk =
            chunk.inspect_err(|error| tracing::debug!("a download ended early: {error}"))?;
        let Some(chunk) = chunk else { return Ok::<_, io::Error>(None) };
        let moved = moved + chunk.len() as u64;
        if !chunks.is_done() {
            return Ok(Some((chunk, Some((chunks, account, moved)))));
        }
        // A body whose length is known is not polled after its last chunk.
        account.finish(moved);
        Ok(Some((chunk, None)))
    }))
}

/// Returns the next chunk after the delay that `account` asks for.
async fn next_counted(
    chunks: &mut ReadAhead<FileReader>,
    account: &impl BodyAccount,
) -> io::Result<Option<Bytes>> {
    let chunk = chunks.next().await?;
    if let Some(chunk) = &chunk {
        let delay = account.count(chunk.len())?;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }
    Ok(chunk)
}

/// Reads `count` bytes into a buffer of the pool, else into new memory.
fn read_chunk(file: &File, buffers: &BufferPool, offset: u64, count: usize) -> io::Result<Bytes> {
    if let Some(mut buffer) = buffers.try_take() {
        fs::read_exact_at(file, &mut buffer[..count], offset)?;
        return Ok(Bytes::from_owner(buffer).slice(..count));
    }
    let mut buffer = vec![0; count];
    fs::read_exact_at(file, &mut buffer, offset)?;
    Ok(Bytes::from(buffer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multipart_body_names_each_range() {
        let parts = [ByteRange { start: 0, bytes: 2 }, ByteRange { start: 7, bytes: 1 }];
        let boundary = new_boundary();
        assert_ne!(boundary, new_boundary());
        let texts: Vec<String> = multipart(&parts, 10, &boundary)
            .iter()
            .map(|piece| match piece {
                BodyPiece::Text(text) => text.clone(),
                BodyPiece::Data(range) => "x".repeat(usize::try_from(range.bytes).unwrap()),
            })
            .collect();
        let expected = format!(
            "\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes 0-1/10\r\n\r\nxx\
             \r\n--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes 7-7/10\r\n\r\nx\
             \r\n--{boundary}--\r\n"
        );
        assert_eq!(texts.concat(), expected);
    }
}
