//! `PROPFIND` and `PROPPATCH` (RFC 4918), and listings for web browsers.
//!
//! Listings are streamed, a chunk at a time, so that their size is not limited.

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use penstock_http::{ProblemDetails, REQUEST_TIMEOUT};
use penstock_mover::{ResolvedPath, is_temporary_name};
use penstock_scopes::PathAccess;
use penstock_sys::fs::{Dir, Entries, Kind, Stat};
use quick_xml::events::Event;
use quick_xml::name::ResolveResult;
use quick_xml::reader::NsReader;
use tokio::time::timeout;

use crate::conditions::Validators;
use crate::dispatch::{DavRequest, Gateway, blocking};
use crate::error::failed;
use crate::namespace::stat;
use crate::read_ahead::{ChunkSource, ReadAhead};
use crate::url_path::encode;

/// Longest body of a request.
const BODY_BYTES_MAX: usize = 64 << 10;

/// Most properties that a request names: each is repeated for each member of a listing.
const NAMED_MAX: usize = 100;

/// Text of a listing that is handed over at once.
const CHUNK_BYTES: usize = 32 << 10;

const DAV: &str = "DAV:";
/// Namespace of the properties of the grid's storage systems.
const LCGDM: &str = "LCGDM:";

const XML: &str = "text/xml; charset=\"utf-8\"";
const HEAD: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\" xmlns:L=\"LCGDM:\">\n";
const TAIL: &str = "</D:multistatus>\n";

/// Reads the body of a request, which must be well-formed XML if there is any. It has to arrive within `limit`.
async fn read_body(body: Body, limit: Duration) -> Result<Bytes, ProblemDetails> {
    let bytes = timeout(limit, axum::body::to_bytes(body, BODY_BYTES_MAX)).await;
    let bytes = bytes.map_err(|_| {
        let text = format!("the body did not arrive within {} s", limit.as_secs());
        ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, text)
    })?;
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

impl ElementName {
    fn is(&self, namespace: &str, local: &str) -> bool {
        self.namespace.as_deref() == Some(namespace) && self.local == local
    }

    /// Writes an empty element of this name.
    fn write(&self, out: &mut String) {
        let (namespace, local) = (self.namespace.as_deref().unwrap_or_default(), &self.local);
        let _ = match namespace {
            "" => write!(out, "<{} xmlns=\"\"/>", Escaped(local)),
            _ => write!(out, "<X:{} xmlns:X=\"{}\"/>", Escaped(local), Escaped(namespace)),
        };
    }
}

/// Properties that a `PROPFIND` asks for.
#[derive(Debug, PartialEq, Eq)]
enum WantedProperties {
    All,
    /// The names of all, without values.
    Names,
    Named(Vec<ElementName>),
}

impl WantedProperties {
    /// Reads a body; none asks for all.
    fn of(body: &[u8]) -> Result<Self, ProblemDetails> {
        if body.is_empty() {
            return Ok(Self::All);
        }
        let all = elements(body)?;
        if all.first().is_none_or(|(_, name)| name.local != "propfind") {
            return Err(ProblemDetails::bad_request("the body is no DAV:propfind"));
        }
        let has = |local| all.iter().any(|(depth, name)| *depth == 1 && name.is(DAV, local));
        if has("propname") {
            return Ok(Self::Names);
        }
        if !has("prop") || has("allprop") {
            return Ok(Self::All);
        }
        let mut named = Vec::new();
        for (_, name) in all.into_iter().filter(|(depth, _)| *depth == 2) {
            if !named.contains(&name) {
                named.push(name);
            }
            if named.len() > NAMED_MAX {
                return Err(ProblemDetails::bad_request(format!(
                    "the body names more than {NAMED_MAX} properties: ask for fewer, or for all"
                )));
            }
        }
        Ok(Self::Named(named))
    }
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
                        let name = String::from_utf8_lossy(name.as_ref());
                        // As it stands in the attribute.
                        let name = quick_xml::escape::unescape(&name);
                        Some(name.map_err(|error| invalid(&error))?.into_owned())
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
    let wanted = WantedProperties::of(&read_body(body, REQUEST_TIMEOUT).await?)?;
    let mut path = request.path.bytes().to_vec();
    // One entry says no more than HEAD; gfal2 asks for it before it uploads.
    let access = if with_members { PathAccess::List } else { PathAccess::Stat };
    let Some(place) = gateway.place(request, access)? else {
        let names = gateway.virtual_members(request)?;
        let mut text = HEAD.to_owned();
        write_entry(&mut text, &path, None, &wanted);
        for name in names.iter().filter(|_| with_members) {
            write_entry(&mut text, &member(&path, name.as_bytes()), None, &wanted);
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
    write_entry(&mut text, &path, Some(&stat), &wanted);
    let Some(members) = members else { return Ok(multistatus(Body::from(text + TAIL))) };
    let write_member = move |text: &mut String, name: &[u8], stat: &Stat| {
        let mut path = member(&path, name);
        if stat.kind == Kind::Directory {
            path.push(b'/');
        }
        write_entry(text, &path, Some(stat), &wanted);
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

/// Writes the wanted properties of a file, or of a collection; of a collection above the exports without `stat`.
fn write_entry(out: &mut String, path: &[u8], stat: Option<&Stat>, wanted: &WantedProperties) {
    let is_collection = stat.is_none_or(|stat| stat.kind == Kind::Directory);
    let name = path.strip_suffix(b"/").unwrap_or(path);
    let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let mut entry = EntryWriter::begin(out, path, wanted);
    entry.property(DAV, "displayname", format_args!("{}", Escaped(&String::from_utf8_lossy(name))));
    if let Some(stat) = stat {
        let validators = Validators::of(stat);
        entry.property(DAV, "getlastmodified", format_args!("{}", validators.last_modified()));
        if !is_collection {
            entry.property(DAV, "getcontentlength", format_args!("{}", stat.size));
            entry.property(DAV, "getetag", format_args!("{}", Escaped(&validators.etag)));
            entry.property(DAV, "getcontenttype", format_args!("application/octet-stream"));
        }
        entry.property(DAV, "creationdate", format_args!("{}", rfc3339(stat.mtime.seconds)));
        let mode = stat.mode | if is_collection { 0o040_000 } else { 0o100_000 };
        entry.property(LCGDM, "mode", format_args!("{mode:07o}"));
    }
    let (kind, number) = if is_collection { ("<D:collection/>", 1) } else { ("", 0) };
    entry.property(DAV, "resourcetype", format_args!("{kind}"));
    entry.property(DAV, "iscollection", format_args!("{number}"));
    entry.end();
}

/// A response of a multistatus, in writing.
struct EntryWriter<'a> {
    out: &'a mut String,
    wanted: &'a WantedProperties,
    /// Numbers of the named properties that were written.
    found: Vec<usize>,
}

impl<'a> EntryWriter<'a> {
    fn begin(out: &'a mut String, path: &[u8], wanted: &'a WantedProperties) -> Self {
        out.push_str("<D:response><D:href>");
        out.push_str(&encode(path));
        out.push_str("</D:href><D:propstat><D:prop>");
        Self { out, wanted, found: Vec::new() }
    }

    /// Writes a property if it is wanted.
    fn property(&mut self, namespace: &str, local: &str, value: fmt::Arguments<'_>) {
        let prefix = if namespace == DAV { 'D' } else { 'L' };
        if let WantedProperties::Named(named) = self.wanted {
            let Some(number) = named.iter().position(|name| name.is(namespace, local)) else {
                return;
            };
            self.found.push(number);
        }
        let _ = match self.wanted {
            WantedProperties::Names => write!(self.out, "<{prefix}:{local}/>"),
            _ => write!(self.out, "<{prefix}:{local}>{value}</{prefix}:{local}>"),
        };
    }

    /// Ends the response, with the named properties that are not here.
    fn end(self) {
        let Self { out, wanted, found } = self;
        out.push_str("</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat>");
        if let WantedProperties::Named(named) = wanted
            && found.len() < named.len()
        {
            out.push_str("<D:propstat><D:prop>");
            let is_missing = |number: &usize| !found.contains(number);
            (0..named.len()).filter(is_missing).for_each(|number| named[number].write(out));
            out.push_str("</D:prop><D:status>HTTP/1.1 404 Not Found</D:status></D:propstat>");
        }
        out.push_str("</D:response>\n");
    }
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

/// Text in XML.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| match letter {
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '&' => f.write_str("&amp;"),
            '"' => f.write_str("&quot;"),
            // XML 1.0 has no other control characters.
            '\t' | '\n' | '\r' => write!(f, "&#{};", u32::from(letter)),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => {
                f.write_char(char::REPLACEMENT_CHARACTER)
            }
            letter => f.write_char(letter),
        })
    }
}

fn push_escaped(out: &mut String, text: &str) {
    let _ = write!(out, "{}", Escaped(text));
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
    let body = read_body(body, REQUEST_TIMEOUT).await?;
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
    let mut named = all.iter().filter(|(depth, _)| *depth == 3).peekable();
    if named.peek().is_none() {
        // Nothing was to be changed: RFC 4918 section 14.24 wants a status.
        text.push_str("<D:status>HTTP/1.1 200 OK</D:status>");
    }
    for (_, name) in named {
        text.push_str("<D:propstat><D:prop>");
        name.write(&mut text);
        text.push_str("</D:prop><D:status>HTTP/1.1 403 Forbidden</D:status></D:propstat>");
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
        let entities = b"<x:a xmlns:x=\"u&amp;v&#60;\"/>";
        let mut echoed = String::new();
        elements(entities).unwrap()[0].1.write(&mut echoed);
        assert_eq!(echoed, "<X:a xmlns:X=\"u&amp;v&lt;\"/>");
        for invalid in [
            &b"<a>"[..],
            b"<x:a xmlns:x='&none;'/>",
            b"<a></b>",
            b"<x:a/>",
            b"<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>",
            b"</a>",
        ] {
            let shown = String::from_utf8_lossy(invalid);
            assert_eq!(elements(invalid).unwrap_err().status, 400, "{shown}");
        }
    }

    #[tokio::test]
    async fn slow_body_gets_408() {
        let body = Body::from_stream(stream::pending::<io::Result<Bytes>>());
        let problem = read_body(body, Duration::ZERO).await.unwrap_err();
        assert_eq!(problem.status, 408, "{}", problem.detail);
    }

    #[test]
    fn entries_escape_names() {
        let mut text = String::new();
        write_entry(&mut text, b"/a<b&\"\x01\xff/", None, &WantedProperties::All);
        assert!(text.contains("<D:href>/a%3Cb%26%22%01%FF/</D:href>"), "{text}");
        assert!(text.contains("<D:displayname>a&lt;b&amp;&quot;\u{fffd}\u{fffd}<"), "{text}");
        assert!(
            text.contains("<D:collection/>")
                && elements(format!("<r xmlns:D='DAV:' xmlns:L='L'>{text}</r>").as_bytes()).is_ok()
        );
    }

    #[test]
    fn wanted_properties_are_answered() {
        let answer = |body: &str| {
            let mut text = String::new();
            let wanted = WantedProperties::of(body.as_bytes()).map_err(|problem| problem.status)?;
            write_entry(&mut text, b"/d/", None, &wanted);
            Ok::<_, u16>(text)
        };
        let propfind = |content: &str| {
            let xmlns = "xmlns:D=\"DAV:\" xmlns:Z=\"urn:z\"";
            answer(&format!("<D:propfind {xmlns}>{content}</D:propfind>"))
        };
        let whole = answer("").unwrap();
        assert!(whole.contains("<D:displayname>d</D:displayname>"), "{whole}");
        for all in ["<D:allprop/>", "<D:allprop/><D:include><Z:a/></D:include>", "<Z:odd/>"] {
            assert_eq!(propfind(all).unwrap(), whole, "{all}");
        }
        assert_eq!(answer("<propfind><prop><a/></prop></propfind>").unwrap(), whole);
        let head = "<D:response><D:href>/d/</D:href><D:propstat><D:prop>";
        let found = "</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat>";
        let names = "<D:displayname/><D:resourcetype/><D:iscollection/>";
        let names = format!("{head}{names}{found}</D:response>\n");
        assert_eq!(propfind("<D:propname/>").unwrap(), names);
        let own = "<D:resourcetype><D:collection/></D:resourcetype>";
        // davix sends one element for each property.
        for body in [
            "<D:prop><D:resourcetype/><Z:a/></D:prop>",
            "<D:prop><D:resourcetype/></D:prop><D:prop><Z:a/></D:prop><D:prop><Z:a/></D:prop>",
        ] {
            let missing = "<D:propstat><D:prop><X:a xmlns:X=\"urn:z\"/></D:prop><D:status>HTTP/1.1 404 Not Found</D:status></D:propstat>";
            let expected = format!("{head}{own}{found}{missing}</D:response>\n");
            assert_eq!(propfind(body).unwrap(), expected, "{body}");
        }
        let expected = format!("{head}{own}{found}</D:response>\n");
        assert_eq!(propfind("<D:prop><D:resourcetype/></D:prop>").unwrap(), expected);
        let many: String = (0..=NAMED_MAX).map(|number| format!("<Z:a{number}/>")).collect();
        assert_eq!(propfind(&format!("<D:prop>{many}</D:prop>")), Err(400));
    }
}
