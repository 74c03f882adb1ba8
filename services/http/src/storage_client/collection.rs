//! The type of a resource in the answer to `PROPFIND` (RFC 4918 section 15.9).

use quick_xml::events::Event;
use quick_xml::name::{LocalName, Namespace, ResolveResult};
use quick_xml::reader::NsReader;

/// Namespace of the elements.
const NAMESPACE: ResolveResult<'_> = ResolveResult::Bound(Namespace(b"DAV:"));

/// Returns true if a multistatus document has a `resourcetype` with a `collection`; false for invalid XML before one.
pub(super) fn is_in(document: &[u8]) -> bool {
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
            assert_eq!(is_in(document.as_bytes()), expected, "{properties}");
            for end in 0..document.len() {
                is_in(&document.as_bytes()[..end]);
            }
        }
        assert!(!is_in(b"<html><p>no XML"));
    }
}
