//! Paths in scopes: normalised once, then compared by component.

use std::fmt;

/// Longest path of a scope in bytes, as PATH_MAX of Linux.
pub const SCOPE_PATH_BYTES_MAX: usize = 4096;

/// A path without empty components, `.`, `..` and NUL bytes; no components for the root.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ScopePath(Vec<Vec<u8>>);

/// A text that is no path of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScopePathError {
    /// The path is relative or empty.
    #[error("does not begin with a slash")]
    Relative,
    /// A component leads elsewhere.
    #[error("has a component '..'")]
    Parent,
    /// A percent sign without two hexadecimal digits.
    #[error("has a damaged percent-encoding")]
    Encoding,
    /// An encoded slash or NUL byte.
    #[error("has an encoded slash or a NUL byte")]
    Byte,
    /// Longer than [`SCOPE_PATH_BYTES_MAX`].
    #[error("is longer than {SCOPE_PATH_BYTES_MAX} bytes")]
    Long,
}

impl ScopePath {
    /// The path that contains every other.
    #[must_use]
    pub fn root() -> Self {
        Self::default()
    }

    /// Normalises a decoded path.
    ///
    /// # Errors
    /// When it is relative, too long, or has a component `..` or a NUL byte.
    pub fn new(path: &[u8]) -> Result<Self, ScopePathError> {
        Self::parse(path, |component| Ok(component.to_vec()))
    }

    /// Decodes percent-encodings once (RFC 3986 section 2.4) and normalises the path.
    ///
    /// # Errors
    /// As [`Self::new`], and for damaged encodings and encoded slashes.
    pub fn decode(path: &[u8]) -> Result<Self, ScopePathError> {
        Self::parse(path, decoded)
    }

    fn parse(
        path: &[u8],
        component: impl Fn(&[u8]) -> Result<Vec<u8>, ScopePathError>,
    ) -> Result<Self, ScopePathError> {
        if path.len() > SCOPE_PATH_BYTES_MAX {
            return Err(ScopePathError::Long);
        }
        let path = path.strip_prefix(b"/").ok_or(ScopePathError::Relative)?;
        let mut components = Vec::new();
        for part in path.split(|byte| *byte == b'/') {
            let part = component(part)?;
            match part.as_slice() {
                b"" | b"." => {}
                b".." => return Err(ScopePathError::Parent),
                part if part.contains(&0) || part.contains(&b'/') => {
                    return Err(ScopePathError::Byte);
                }
                _ => components.push(part),
            }
        }
        Ok(Self(components))
    }

    /// Components of the path, outermost first.
    pub fn components(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// True if `other` is this path or below it.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }

    /// The path `below` of a tree whose root is this path.
    #[must_use]
    pub fn join(&self, below: &Self) -> Self {
        Self([self.0.as_slice(), below.0.as_slice()].concat())
    }

    /// The path with a leading slash and without a trailing one, not encoded.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self.0.is_empty() {
            true => b"/".to_vec(),
            false => self.0.iter().flat_map(|part| [b"/", part.as_slice()].concat()).collect(),
        }
    }
}

impl ScopePath {
    /// The path as [`Self::decode`] reads it: all but letters, digits and `-._~` percent-encoded.
    #[must_use]
    pub fn to_encoded(&self) -> String {
        let encode = |byte: u8| match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
            byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        };
        self.to_bytes().into_iter().map(encode).collect()
    }
}

impl fmt::Display for ScopePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bytes().escape_ascii().fmt(f)
    }
}

fn decoded(component: &[u8]) -> Result<Vec<u8>, ScopePathError> {
    let mut bytes = Vec::with_capacity(component.len());
    let mut rest = component.iter();
    while let Some(byte) = rest.next() {
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let mut digit = || {
            let digit = char::from(*rest.next()?).to_digit(16)?;
            u8::try_from(digit).ok()
        };
        let (high, low) = (digit(), digit());
        let (Some(high), Some(low)) = (high, low) else { return Err(ScopePathError::Encoding) };
        bytes.push(16 * high + low);
    }
    Ok(bytes)
}
