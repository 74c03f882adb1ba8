//! The scitag number as clients pass it to storages: in a URL or an HTTP header.
//!
//! XRootD and dCache support both. They differ for an invalid number: XRootD treats it as scitag 0, dCache sends no
//! firefly. Here it is an error, and the caller decides.

use crate::tag::{Scitag, TagError};

/// The key in a URL's query.
pub const URL_KEY: &str = "scitag.flow";

/// Request header of a tagged transfer.
pub const HEADER: &str = "SciTag";

/// Request header that a third-party copy forwards as [`HEADER`] to the other storage.
pub const TRANSFER_HEADER: &str = "TransferHeaderSciTag";

/// Error of reading a scitag from a URL or a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CarryError {
    /// Not a decimal number.
    #[error("'{0}' is no scitag: give a decimal number such as 206")]
    NotANumber(String),
    /// The number is out of range.
    #[error(transparent)]
    Tag(#[from] TagError),
    /// The key occurs twice with different numbers.
    #[error("{URL_KEY} is given as {0} and as {1}: give it once")]
    Twice(u32, u32),
}

/// Parses the value of [`HEADER`] or of [`URL_KEY`]; surrounding blanks are ignored.
///
/// # Errors
/// When it is not a decimal number, or out of range.
pub fn from_value(text: &str) -> Result<Scitag, CarryError> {
    let text = text.trim();
    // Ten digits hold more than any scitag; a longer text would only lengthen the error.
    if text.is_empty() || text.len() > 10 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(CarryError::NotANumber(text.chars().take(40).collect()));
    }
    let number = text.bytes().fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    Ok(Scitag::from_number(number)?)
}

/// Parses the scitag of a URL; `None` if the key is absent. Ignores the fragment and a repetition of the
/// same number.
///
/// # Errors
/// When the number is invalid, or two differ.
pub fn from_url(url: &str) -> Result<Option<Scitag>, CarryError> {
    let url = url.split('#').next().unwrap_or_default();
    let Some((_, query)) = url.split_once('?') else { return Ok(None) };
    let mut found: Option<Scitag> = None;
    // XRootD clients append their own opaque part with a second question mark.
    for pair in query.split(['&', '?']) {
        let Some((URL_KEY, value)) = pair.split_once('=') else { continue };
        let tag = from_value(value)?;
        match found {
            Some(first) if first != tag => {
                return Err(CarryError::Twice(first.number(), tag.number()));
            }
            _ => found = Some(tag),
        }
    }
    Ok(found)
}

/// Formats the parameter of a URL's query: `scitag.flow=206`.
#[must_use]
pub fn url_parameter(tag: Scitag) -> String {
    format!("{URL_KEY}={}", tag.number())
}

/// Formats the header line: `SciTag: 206`.
#[must_use]
pub fn header_line(tag: Scitag) -> String {
    format!("{HEADER}: {}", tag.number())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tag(owner: u64, activity: u64) -> Scitag {
        Scitag::new(owner, activity).unwrap()
    }

    #[test]
    fn urls_of_storages() {
        for url in [
            "root://eos.example.org//store/f?scitag.flow=206",
            "root://eos.example.org:1094//f?authz=abc&scitag.flow=206&xrd.n=1",
            "https://dcache.example.org/f?scitag.flow=206#scitag.flow=207",
            "davs://h/f?a=b?scitag.flow=206",
            "h/f?scitag.flow=206&scitag.flow=0206",
        ] {
            assert_eq!(from_url(url), Ok(Some(tag(3, 14))), "{url}");
        }
        for url in
            ["", "https://h/f", "https://h/scitag.flow=206", "h?xscitag.flow=206", "h?scitag.flow"]
        {
            assert_eq!(from_url(url), Ok(None), "{url}");
        }
    }

    #[test]
    fn malformed_numbers_are_errors() {
        assert_eq!(from_value(" 65 "), Ok(tag(1, 1)));
        assert_eq!(from_value("65536"), Err(TagError::Number(65_536).into()));
        assert_eq!(from_value("64"), Err(TagError::Number(64).into()));
        assert_eq!(from_value("9999999999"), Err(TagError::Number(9_999_999_999).into()));
        for text in ["", "-1", "+206", "0xCE", "2 06", "206.0", "99999999999", "cms/14"] {
            assert!(matches!(from_value(text), Err(CarryError::NotANumber(_))), "{text}");
        }
        let twice = from_url("h?scitag.flow=206&scitag.flow=207").unwrap_err();
        assert_eq!(twice, CarryError::Twice(206, 207));
        assert!(from_url("h?scitag.flow=").is_err());
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn every_number_passes_through(owner in 1_u64..=1023, activity in 1_u64..=63) {
            let tag = tag(owner, activity);
            let url = format!("https://h/f?x=1&{}", url_parameter(tag));
            prop_assert_eq!(from_url(&url), Ok(Some(tag)));
            let line = header_line(tag);
            prop_assert_eq!(from_value(line.strip_prefix("SciTag:").unwrap()), Ok(tag));
        }

        #[test]
        fn never_panics(text in "\\PC{0,60}") {
            let _ = from_url(&text);
            let _ = from_url(&format!("h?scitag.flow={text}"));
            let _ = from_value(&text);
        }
    }
}
