//! Paths of requests. What follows the first `?` is opaque: `name=value` pairs for the server.

use percent_encoding::percent_decode;

use crate::error::{XrdError, XrdErrorCode};

/// Longest path, in bytes: PATH_MAX of Linux.
pub const PATH_BYTES_MAX: usize = 4096;

/// A path and its opaque part. Names are not encoded: `%2e` is a name of three bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XrdPath<'a> {
    bytes: &'a [u8],
    opaque: &'a [u8],
}

impl<'a> XrdPath<'a> {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// For a relative or too long path, a segment `..`, or a NUL byte before the end.
    pub fn parse(body: &'a [u8]) -> Result<Self, XrdError> {
        let invalid = |text: &str| Err(XrdError::new(XrdErrorCode::ArgInvalid, text));
        let end = body.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let body = &body[..end];
        if body.is_empty() {
            return Err(XrdError::new(XrdErrorCode::ArgMissing, "the path is missing"));
        }
        if body.contains(&0) {
            return invalid("the path has a NUL byte: write the path of the file out");
        }
        let (bytes, opaque) = match body.iter().position(|byte| *byte == b'?') {
            Some(at) => (&body[..at], &body[at + 1..]),
            None => (body, &[][..]),
        };
        if bytes.len() > PATH_BYTES_MAX {
            let text = format!("the path is longer than {PATH_BYTES_MAX} bytes");
            return Err(XrdError::new(XrdErrorCode::ArgTooLong, text));
        }
        if bytes.first() != Some(&b'/') {
            return invalid("the path does not begin with a slash: root://HOST//PATH");
        }
        if bytes.split(|byte| *byte == b'/').any(|name| name == b"..") {
            return invalid("the path has a segment '..': write the path of the file out");
        }
        Ok(Self { bytes, opaque })
    }

    /// Path with a leading slash, without the opaque part.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Path with one slash before each name and none at the end; `/` for the root.
    #[must_use]
    pub fn normalized(&self) -> Vec<u8> {
        let mut path = Vec::with_capacity(self.bytes.len());
        for name in self.bytes.split(|byte| *byte == b'/') {
            if !matches!(name, b"" | b".") {
                path.push(b'/');
                path.extend_from_slice(name);
            }
        }
        if path.is_empty() {
            path.push(b'/');
        }
        path
    }

    /// First value of a name in the opaque part.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&'a [u8]> {
        self.values(name).next()
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let pairs = self.opaque.split(|byte| matches!(byte, b'&' | b'?'));
        pairs.filter_map(move |pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }

    /// Token in `authz`: `Bearer%20TOKEN` or the token alone.
    ///
    /// # Errors
    /// If it is no text, or two tokens differ.
    pub fn token(&self) -> Result<Option<String>, XrdError> {
        let mut values = self.values("authz");
        let Some(first) = values.next() else { return Ok(None) };
        if values.any(|other| other != first) {
            let text = "authz is given twice with different values";
            return Err(XrdError::new(XrdErrorCode::ArgInvalid, text));
        }
        let text = percent_decode(first).decode_utf8().map_err(|_| {
            XrdError::new(XrdErrorCode::ArgInvalid, "authz: write authz=Bearer%20TOKEN")
        })?;
        let token = match text.split_once([' ', '+']) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
            _ => text.trim(),
        };
        Ok(Some(token.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opaque_part_is_no_name() {
        let path = XrdPath::parse(b"//store/./data//f?authz=Bearer%20abc&cks.type=md5\0").unwrap();
        assert_eq!(path.normalized(), b"/store/data/f");
        assert_eq!(path.value("cks.type"), Some(&b"md5"[..]));
        assert_eq!(path.value("cks"), None);
        assert_eq!(path.token().unwrap().as_deref(), Some("abc"));
    }

    #[test]
    fn ambiguous_paths_are_refused() {
        for (path, code) in [
            (&b""[..], XrdErrorCode::ArgMissing),
            (b"\0\0", XrdErrorCode::ArgMissing),
            (b"?authz=x", XrdErrorCode::ArgInvalid),
            (b"store", XrdErrorCode::ArgInvalid),
            (b"/a/../b", XrdErrorCode::ArgInvalid),
            (b"/..?x=1", XrdErrorCode::ArgInvalid),
            (b"/a\0b", XrdErrorCode::ArgInvalid),
            (b"/a?x=\0y", XrdErrorCode::ArgInvalid),
        ] {
            assert_eq!(XrdPath::parse(path).unwrap_err().code, code, "{}", path.escape_ascii());
        }
        let long = [b"/".as_slice(), &[b'x'; PATH_BYTES_MAX]].concat();
        assert_eq!(XrdPath::parse(&long).unwrap_err().code, XrdErrorCode::ArgTooLong);
    }

    #[test]
    fn escapes_stay_in_names() {
        let path = XrdPath::parse(b"/%2e%2e/x").unwrap();
        assert_eq!(path.normalized(), b"/%2e%2e/x");
    }

    #[test]
    fn token_has_several_forms() {
        let token = |text: &str| XrdPath::parse(text.as_bytes()).unwrap().token();
        for text in ["/?authz=bearer%20t", "/?x=1&authz=t", "/?authz=Bearer t", "/?authz=Bearer+t"]
        {
            assert_eq!(token(text).unwrap().as_deref(), Some("t"), "{text}");
        }
        assert_eq!(token("/?xauthz=t").unwrap(), None);
        assert_eq!(token("/?authz=t&authz=t").unwrap().as_deref(), Some("t"));
        assert!(token("/?authz=t&authz=u").is_err() && token("/?authz=%ff").is_err());
    }
}
