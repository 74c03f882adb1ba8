//! `PROPFIND` and `PROPPATCH` (RFC 4918), and listings for web browsers.
//!
//! Every answer has the same properties, whatever the request names: clients read those that they know. Listings are
//! streamed, a chunk at a time, so that their size is not limited.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use penstock_http::ProblemDetails;
use penstock_mover::{ResolvedPath, is_temporary_name};
use penstock_scopes::PathAccess;
use penstock_sys::fs::{Dir, Entries, Kind, Stat};
use quick_xml::events::Event;
use quick_xml::name::ResolveResult;
use quick_xml::reader::NsReader;

use crate::conditions::Validators;
use crate::dispatch::{DavRequest, Gateway, blocking};
use crate::error::failed;
use crate::namespace::stat;
use crate::read_ahead::{ChunkSource, ReadAhead};
use crate::url_path::encode;

/// Longest body of a request.
const BODY_BYTES_MAX: usize = 64 << 10;

/// Text of a listing that is handed over at once.
const CHUNK_BYTES: usize = 32 << 10;

const XML: &str = "text/xml; charset=\"utf-8\"";
const HEAD: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\" xmlns:L=\"LCGDM:\">\n";
const TAIL: &str = "</D:multistatus>\n";

/// Reads the body of a request, which must be well-formed XML if there is any.
async fn read_body(body: Body) -> Result<Bytes, ProblemDetails> {
    let bytes = axum::body::to_bytes(body, BODY_BYTES_MAX).await;
    bytes.map_err(|_| {
        ProblemDetails::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body of the request is longer than {BODY_BYTES_MAX} bytes"),
        )
    })
}

/// Name of an element: namespace, if any, and local name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ElementName {
    namespace: Option<String>,
    local: String,
}

/// Reads the names of the elements with their depth, the root at 0.
pub(crate) fn elements(body: &[u8]) -> Result<Vec<(usize, ElementName)>, ProblemDetails> {
    let invalid = |error: &dyn std::fmt::Display| {
        ProblemDetails::bad_request(format!("the body is no valid XML: {error}"))
    };
    let mut reader = NsReader::from_reader(body);
    let (mut all, mut depth) = (Vec::new(), 0_usize);
    loop {
        let (namespace, event) = reader.read_resolved_event().map_err(|error| invalid(&error))?;
        let begins = match &event {
            Event::Start(element) | Event::Empty(element) => {
                let namespace = match namespace {
                    ResolveResult::Bound(name) => {
                        Some(String::from_utf8_lossy(name.as_ref()).into_owned())
                    }
                    ResolveResult::Unbound => None,
                    ResolveResult::Unknown(_) => {
                        return Err(invalid(&"a prefix without a namespace"));
                    }
                };
                let local = String::from_utf8_lossy(element.local_name().as_ref()).into_owned();
                Some(ElementName { namespace, local })
            }
            _ => None,
        };
        all.extend(begins.map(|name| (depth, name)));
        match event {
            Event::Start(_) => depth += 1,
            Event::End(_) => depth = depth.saturating_sub(1),
            // An entity may expand without bound.
            Event::DocType(_) => return Err(invalid(&"a document type")),
            Event::Eof if depth > 0 => return Err(invalid(&"an element that does not end")),
            Event::Eof => return Ok(all),
            _ => {}
        }
    }
}

/// Answers `PROPFIND` of depth 0 or 1.
pub(crate) async fn find(
    gateway: &Arc<Gateway>,
    request: &DavRequest,
    body: Body,
) -> Result<Response, ProblemDetails> {
    let with_members = match request.header(HeaderName::from_static("depth")) {
        Some("0") => false,
        Some("1") => true,
        _ => {
            return Err(ProblemDetails::forbidden(
                "PROPFIND without a finite depth: send Depth: 0 or Depth: 1",
            ));
        }
    };
    let body = read_body(body).await?;
    if !body.is_empty() {
        let all = elements(&body)?;
        let is_propfind = all.first().is_some_and(|(_, name)| name.local == "propfind");
        if !is_propfind {
            return Err(ProblemDetails::bad_request("the body is no DAV:propfind"));
        }
    }
    let mut path = request.path.bytes().to_vec();
    let Some(place) = gateway.place(request, PathAccess::List)? else {
        let names = gateway.virtual_members(request)?;
        let mut text = HEAD.to_owned();
        write_entry(&mut text, &path, None);
        for name in names.iter().filter(|_| with_members) {
            write_entry(&mut text, &member(&path, name.as_bytes()), None);
        }
        return Ok(multistatus(Body::from(text + TAIL)));
    };
    let shown = place.shown.clone();
    let found = blocking(move || {
        let stat = stat(&place)?.ok_or(io::ErrorKind::NotFound)?;
        let members = match stat.kind == Kind::Directory && with_members {
            true => Some(Members::open(&place)?),
            false => None,
        };
        Ok((stat, members))
    });
    let (stat, members) = found.await.map_err(|error| failed(&shown, &error))?;
    let mut text = HEAD.to_owned();
    if stat.kind == Kind::Directory && path.last() != Some(&b'/') {
        path.push(b'/');
    }
    write_entry(&mut text, &path, Some(&stat));
    let Some(members) = members else { return Ok(multistatus(Body::from(text + TAIL))) };
    let write_member = move |text: &mut String, name: &[u8], stat: &Stat| {
        let mut path = member(&path, name);
        if stat.kind == Kind::Directory {
            path.push(b'/');
        }
        write_entry(text, &path, Some(stat));
    };
    Ok(multistatus(streamed(Listing { text, members: Some(members), write_member, end: TAIL })))
}

fn multistatus(body: Body) -> Response {
    (StatusCode::MULTI_STATUS, [(header::CONTENT_TYPE, XML)], body).into_response()
}

fn member(collection: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = collection.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Files and directories of a directory, except partial files of transfers.
struct Members {
    dir: Dir,
    entries: Entries,
}

impl Members {
    fn open(place: &ResolvedPath) -> io::Result<Self> {
        let dir = match place.path.is_empty() {
            true => place.root.try_clone()?,
            false => place.root.open_dir(Path::new(std::ffi::OsStr::from_bytes(&place.path)))?,
        };
        Ok(Self { entries: dir.entries()?, dir })
    }

    /// Returns the name and metadata of the next one.
    fn next(&mut self) -> io::Result<Option<(OsString, Stat)>> {
        for entry in &mut self.entries {
            let (name, _) = entry?;
            if is_temporary_name(name.as_bytes()) {
                continue;
            }
            match self.dir.stat_follow(Path::new(&name)) {
                Ok(stat) if matches!(stat.kind, Kind::File | Kind::Directory) => {
                    return Ok(Some((name, stat)));
                }
                // A special file, a link out of the export, or a file that was removed meanwhile.
                _ => {}
            }
        }
        Ok(None)
    }
}

/// Writes the properties of a file, or of a collection; of a collection above the exports without `stat`.
fn write_entry(out: &mut String, path: &[u8], stat: Option<&Stat>) {
    let is_collection = stat.is_none_or(|stat| stat.kind == Kind::Directory);
    let name = path.strip_suffix(b"/").unwrap_or(path);
    let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    out.push_str("<D:response><D:href>");
    out.push_str(&encode(path));
    out.push_str("</D:href><D:propstat><D:prop><D:displayname>");
    push_escaped(out, &String::from_utf8_lossy(name));
    out.push_str("</D:displayname>");
    if let Some(stat) = stat {
        let validators = Validators::of(stat);
        let _ =
            write!(out, "<D:getlastmodified>{}</D:getlastmodified>", validators.last_modified());
        if !is_collection {
            let _ =
                write!(out, "<D:getcontentlength>{}</D:getcontentlength><D:getetag>", stat.size);
            push_escaped(out, &validators.etag);
            out.push_str(
                "</D:getetag><D:getcontenttype>application/octet-stream</D:getcontenttype>",
            );
        }
        let _ = write!(
            out,
            "<D:creationdate>{}</D:creationdate><L:mode>{:07o}</L:mode>",
            rfc3339(stat.mtime.seconds),
            stat.mode | if is_collection { 0o040_000 } else { 0o100_000 }
        );
    }
    out.push_str(if is_collection {
        "<D:resourcetype><D:collection/></D:resourcetype><D:iscollection>1</D:iscollection>"
    } else {
        "<D:resourcetype/><D:iscollection>0</D:iscollection>"
    });
    out.push_str("</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>\n");
}

/// Formats Unix seconds by RFC 3339; Linux file systems keep no portable time of creation, so the modification stands in.
fn rfc3339(seconds: i64) -> String {
    let at = UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    penstock_scitags::time::UtcTime::new(
        at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        0,
    )
    .to_string()
}

fn push_escaped(out: &mut String, text: &str) {
    for letter in text.chars() {
        match letter {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            // XML 1.0 has no other control characters.
            '\t' | '\n' | '\r' => {
                let _ = write!(out, "&#{};", u32::from(letter));
            }
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => {
                out.push(char::REPLACEMENT_CHARACTER);
            }
            letter => out.push(letter),
        }
    }
}

/// Text of a listing, read member by member.
struct Listing<W> {
    /// Text that is not sent yet; at first what comes before the members.
    text: String,
    /// `None` after the last one.
    members: Option<Members>,
    write_member: W,
    /// Text after the members.
    end: &'static str,
}

impl<W: FnMut(&mut String, &[u8], &Stat) + Send + 'static> ChunkSource for Listing<W> {
    type Chunk = Bytes;

    fn next_chunk(&mut self) -> io::Result<Bytes> {
        while let Some(members) = &mut self.members
            && self.text.len() < CHUNK_BYTES
        {
            match members.next()? {
                Some((name, stat)) => (self.write_member)(&mut self.text, name.as_bytes(), &stat),
                None => {
                    self.text.push_str(self.end);
                    self.members = None;
                }
            }
        }
        Ok(std::mem::take(&mut self.text).into())
    }

    fn is_done(&self) -> bool {
        self.members.is_none()
    }
}

/// Streams a listing. An error breaks the connection off, so that no listing looks complete.
fn streamed(listing: impl ChunkSource<Chunk = Bytes>) -> Body {
    Body::from_stream(stream::try_unfold(ReadAhead::new(listing), async |mut chunks| {
        let chunk = chunks.next().await;
        let chunk = chunk.inspect_err(|error| tracing::debug!("a listing ended early: {error}"))?;
        Ok::<_, io::Error>(chunk.map(|chunk| (chunk, chunks)))
    }))
}

/// Answers `PROPPATCH`: no property can be set (RFC 4918 section 9.2.1).
pub(crate) async fn patch(
    gateway: &Arc<Gateway>,
    request: &DavRequest,
    body: Body,
) -> Result<Response, ProblemDetails> {
    let body = read_body(body).await?;
    let all = elements(&body)?;
    if all.first().is_none_or(|(_, name)| name.local != "propertyupdate") {
        return Err(ProblemDetails::bad_request("the body is no DAV:propertyupdate"));
    }
    let place = gateway.writable(request, PathAccess::Replace)?;
    let shown = place.shown.clone();
    let found = blocking(move || stat(&place)?.ok_or_else(|| io::ErrorKind::NotFound.into()));
    found.await.map_err(|error| failed(&shown, &error))?;
    let mut text = format!("{HEAD}<D:response><D:href>{}</D:href>", encode(request.path.bytes()));
    // propertyupdate / set or remove / prop / property
    for (_, name) in all.iter().filter(|(depth, _)| *depth == 3) {
        text.push_str("<D:propstat><D:prop><X:");
        push_escaped(&mut text, &name.local);
        text.push_str(" xmlns:X=\"");
        push_escaped(&mut text, name.namespace.as_deref().unwrap_or_default());
        text.push_str("\"/></D:prop><D:status>HTTP/1.1 403 Forbidden</D:status></D:propstat>");
    }
    text.push_str("</D:response>\n");
    text.push_str(TAIL);
    Ok(multistatus(Body::from(text)))
}

/// Answers `GET` and `HEAD` of a collection with a page for people.
pub(crate) async fn listing_page(
    gateway: &Arc<Gateway>,
    request: &DavRequest,
) -> Result<Response, ProblemDetails> {
    let path = request.path.bytes().to_vec();
    let mut head = String::from(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <style>body{font:16px/1.5 system-ui;margin:2rem;color-scheme:light dark}td,th{padding:0 1rem 0 0;text-align:left}\
         .n{text-align:right;font-variant-numeric:tabular-nums}</style><title>",
    );
    push_escaped(&mut head, &String::from_utf8_lossy(&path));
    head.push_str("</title><h1>");
    push_escaped(&mut head, &String::from_utf8_lossy(&path));
    head.push_str("</h1><table><tr><th>Name<th class=\"n\">Bytes<th>Modified\n");
    let row = |text: &mut String, path: &[u8], name: &str, stat: Option<&Stat>| {
        let slash = if stat.is_none_or(|stat| stat.kind == Kind::Directory) { "/" } else { "" };
        let _ = write!(text, "<tr><td><a href=\"{}{slash}\">", encode(path));
        push_escaped(text, name);
        let _ = write!(text, "{slash}</a><td class=\"n\">");
        if let Some(stat) = stat.filter(|_| slash.is_empty()) {
            let _ = write!(text, "{}", stat.size);
        }
        let at = stat.map(|stat| Validators::of(stat).last_modified()).unwrap_or_default();
        let _ = writeln!(text, "<td>{at}");
    };
    let html =
        |body: Body| ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], body).into_response();
    let access = if request.method == Method::HEAD { PathAccess::Stat } else { PathAccess::List };
    let Some(place) = gateway.place(request, access)? else {
        for name in gateway.virtual_members(request)? {
            row(&mut head, &member(&path, name.as_bytes()), &name, None);
        }
        return Ok(html(Body::from(head)));
    };
    let shown = place.shown.clone();
    let members = blocking(move || Members::open(&place)).await;
    let members = members.map_err(|error| failed(&shown, &error))?;
    if request.method == Method::HEAD {
        // Of unknown length, as that of GET.
        return Ok(html(Body::from_stream(stream::empty::<io::Result<Bytes>>())));
    }
    if path.len() > 1 {
        let parent = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let _ = writeln!(head, "<tr><td><a href=\"{}\">../</a>", encode(&path[..=parent]));
    }
    let write_member = move |text: &mut String, name: &[u8], stat: &Stat| {
        row(text, &member(&path, name), &String::from_utf8_lossy(name), Some(stat));
    };
    let end = "</table>\n";
    Ok(html(streamed(Listing { text: head, members: Some(members), write_member, end })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_read_by_namespace() {
        let body = b"<?xml version=\"1.0\"?><D:propertyupdate xmlns:D=\"DAV:\" xmlns:Z=\"urn:z\">\
            <D:set><D:prop><Z:author>x</Z:author><plain/></D:prop></D:set></D:propertyupdate>";
        let names: Vec<_> = elements(body)
            .unwrap()
            .into_iter()
            .filter(|(depth, _)| *depth == 3)
            .map(|(_, name)| (name.namespace, name.local))
            .collect();
        let expected =
            [(Some("urn:z".to_owned()), "author".to_owned()), (None, "plain".to_owned())];
        assert_eq!(names, expected);
        for invalid in [
            &b"<a>"[..],
            b"<a></b>",
            b"<x:a/>",
            b"<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>",
            b"</a>",
        ] {
            let shown = String::from_utf8_lossy(invalid);
            assert_eq!(elements(invalid).unwrap_err().status, 400, "{shown}");
        }
    }

    #[test]
    fn entries_escape_names() {
        let mut text = String::new();
        write_entry(&mut text, b"/a<b&\"\x01\xff/", None);
        assert!(text.contains("<D:href>/a%3Cb%26%22%01%FF/</D:href>"), "{text}");
        assert!(text.contains("<D:displayname>a&lt;b&amp;&quot;\u{fffd}\u{fffd}<"), "{text}");
        assert!(
            text.contains("<D:collection/>")
                && elements(format!("<r xmlns:D='DAV:' xmlns:L='L'>{text}</r>").as_bytes()).is_ok()
        );
    }
}
