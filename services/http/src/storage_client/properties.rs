//! Properties of a resource in the answer to `PROPFIND` (RFC 4918 section 15).

use quick_xml::events::Event;
use quick_xml::name::{LocalName, Namespace, ResolveResult};
use quick_xml::reader::NsReader;

/// Namespace of the elements.
const NAMESPACE: ResolveResult<'_> = ResolveResult::Bound(Namespace(b"DAV:"));

/// Returns true if a multistatus document has a `resourcetype` with a `collection`; false for invalid XML before one.
pub(super) fn is_collection(document: &[u8]) -> bool {
    let mut reader = NsReader::from_reader(document);
    let mut is_in_type = false;
    loop {
        let Ok((namespace, event)) = reader.read_resolved_event() else { return false };
        let names = |name: LocalName<'_>, local: &str| {
            namespace == NAMESPACE && name.as_ref() == local.as_bytes()
        };
        match &event {
            Event::Start(element) | Event::Empty(element)
                if is_in_type && names(element.local_name(), "collection") =>
            {
                return true;
            }
            Event::Start(element) if names(element.local_name(), "resourcetype") => {
                is_in_type = true;
            }
            Event::End(element) if names(element.local_name(), "resourcetype") => {
                is_in_type = false;
            }
            Event::Eof => return false,
            _ => {}
        }
    }
}

/// Returns the text of the first `getlastmodified` of a multistatus document, if it has one.
pub(super) fn last_modified(document: &[u8]) -> Option<String> {
    let mut reader = NsReader::from_reader(document);
    let mut text: Option<String> = None;
    loop {
        let (namespace, event) = reader.read_resolved_event().ok()?;
        let is_property =
            |name: LocalName<'_>| namespace == NAMESPACE && name.as_ref() == b"getlastmodified";
        match &event {
            Event::Start(element) if text.is_none() && is_property(element.local_name()) => {
                text = Some(String::new());
            }
            Event::Text(part) => {
                if let Some(text) = &mut text {
                    text.push_str(std::str::from_utf8(part).ok()?);
                }
            }
            Event::End(element) if is_property(element.local_name()) => {
                return text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
            }
            Event::Eof => return None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_type_tells_collections() {
        let document = |properties: &str| {
            format!(
                "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\" xmlns:ns0=\"DAV:\">\n\
                 <D:response xmlns:lp1=\"DAV:\" xmlns:x=\"http://example.org/\"><D:href>/data/d</D:href><D:propstat><D:prop>\
                 {properties}</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response></D:multistatus>"
            )
        };
        for (properties, expected) in [
            // XRootD 5.5.3, this project, a default namespace.
            ("<lp1:resourcetype><D:collection/></lp1:resourcetype>", true),
            ("<D:resourcetype><D:collection></D:collection></D:resourcetype>", true),
            ("<resourcetype xmlns=\"DAV:\">\n<collection/></resourcetype>", true),
            ("<lp1:iscollection>0</lp1:iscollection>", false),
            ("<D:resourcetype/><D:displayname>collection</D:displayname>", false),
            ("<D:resourcetype></D:resourcetype><D:collection/>", false),
            ("<D:resourcetype><x:collection/></D:resourcetype>", false),
            ("<D:resourcetype><y:collection/></D:resourcetype>", false),
        ] {
            let document = document(properties);
            assert_eq!(is_collection(document.as_bytes()), expected, "{properties}");
            for end in 0..document.len() {
                is_collection(&document.as_bytes()[..end]);
            }
        }
        assert!(!is_collection(b"<html><p>no XML"));
    }

    #[test]
    fn last_change_is_read() {
        let document = |property: &str| {
            format!("<D:multistatus xmlns:D=\"DAV:\"><D:prop>{property}</D:prop></D:multistatus>")
        };
        let time = "Fri, 27 Nov 2026 21:57:17 GMT";
        for (property, expected) in [
            (
                format!("<lp1:getlastmodified xmlns:lp1=\"DAV:\">{time}</lp1:getlastmodified>"),
                Some(time),
            ),
            (format!("<D:getlastmodified>\n{time}\n</D:getlastmodified>"), Some(time)),
            (format!("<getlastmodified>{time}</getlastmodified>"), None),
            ("<D:getlastmodified/>".to_owned(), None),
            ("<D:getlastmodified></D:getlastmodified>".to_owned(), None),
        ] {
            let document = document(&property);
            assert_eq!(last_modified(document.as_bytes()).as_deref(), expected, "{property}");
        }
        assert_eq!(last_modified(b"<D:getlastmodified xmlns:D=\"DAV:\">Fri"), None);
    }
}
