//! Form of a value, detected from its text: number, label, option bytes, URL, header, firefly.

use penstock_scitags::FlowLabel;
use penstock_scitags::label::LABEL_MAX;

/// A value with its detected form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DetectedValue {
    /// A scitag number as decimal digits.
    Number(String),
    /// A flow label.
    Label(FlowLabel),
    /// Options of an extension header, or a whole one.
    Options(Vec<u8>),
    /// A URL, or its query.
    Url(String),
    /// The value of the HTTP header.
    Header(String),
    /// A datagram.
    Firefly(Vec<u8>),
}

/// A text that has none of these forms.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DetectionError {
    #[error(
        "'{0}' is neither number, label (0x30038), option bytes (1E 03 00 03 0E 00), URL with scitag.flow= nor firefly: see penstock tag decode --help"
    )]
    Unknown(String),
    #[error("'{0}' is a pair already: penstock tag encode {0} prints its numbers")]
    Pair(String),
    #[error("{0} is no flow label: labels have 20 bits, 0 to {LABEL_MAX}")]
    Label(String),
}

impl DetectedValue {
    /// Detects the form of `bytes`.
    pub(super) fn of(bytes: &[u8]) -> Result<Self, DetectionError> {
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim();
        let lower = text.to_ascii_lowercase();
        if text.starts_with(['<', '{']) {
            return Ok(Self::Firefly(bytes.trim_ascii().to_vec()));
        }
        if let Some(value) = lower.strip_prefix("label:") {
            return label(value.trim());
        }
        if let Some(value) = lower.strip_prefix("scitag:") {
            return Ok(Self::Header(value.to_owned()));
        }
        if text.contains("scitag.flow=") || text.contains("://") {
            return Ok(Self::Url(text.to_owned()));
        }
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let as_label = text.parse().ok().filter(|value| *value > 65_535);
            let as_label = as_label.and_then(FlowLabel::from_value);
            return Ok(as_label.map_or_else(|| Self::Number(text.to_owned()), Self::Label));
        }
        if lower.starts_with("0x") && lower.len() <= 8 && !lower.contains([' ', ':']) {
            return label(&lower);
        }
        match option_bytes(&lower) {
            Some(bytes) => Ok(Self::Options(bytes)),
            None if text.contains('/') => Err(DetectionError::Pair(excerpt(text))),
            None => Err(DetectionError::Unknown(excerpt(text))),
        }
    }
}

/// Hexadecimal with `0x`, else decimal.
fn label(text: &str) -> Result<DetectedValue, DetectionError> {
    let value = match text.strip_prefix("0x") {
        Some(hex) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u32::from_str_radix(hex, 16).ok()
        }
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    };
    let label = value.and_then(FlowLabel::from_value);
    label.map(DetectedValue::Label).ok_or_else(|| DetectionError::Label(excerpt(text)))
}

/// At least four bytes as hexadecimal, with blanks, colons, dashes, commas or nothing between them.
fn option_bytes(lower: &str) -> Option<Vec<u8>> {
    let mut digits = String::new();
    for part in lower.split([' ', '\t', '\n', ':', '-', ',']) {
        let part = part.strip_prefix("0x").unwrap_or(part);
        // Parts with an odd number of digits are no bytes: "1E 3" is ambiguous.
        if !part.len().is_multiple_of(2) || !part.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        digits.push_str(part);
    }
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    let bytes: Option<Vec<u8>> = pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect();
    // 2 KiB is the longest extension header.
    bytes.filter(|bytes| (4..=2048).contains(&bytes.len()))
}

fn excerpt(text: &str) -> String {
    text.chars().take(60).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<DetectedValue, DetectionError> {
        DetectedValue::of(text.as_bytes())
    }

    fn a_label(value: u32) -> DetectedValue {
        DetectedValue::Label(FlowLabel::from_value(value).unwrap())
    }

    #[test]
    fn forms_are_distinguished() {
        let option = || DetectedValue::Options(vec![0x1E, 3, 0, 3, 0x0E, 0]);
        for (text, expected) in [
            ("206", DetectedValue::Number("206".into())),
            ("65535", DetectedValue::Number("65535".into())),
            ("9999999999999", DetectedValue::Number("9999999999999".into())),
            ("196664", a_label(0x30038)),
            ("0x30038", a_label(0x30038)),
            ("0X30038", a_label(0x30038)),
            ("label:131076", a_label(131_076)),
            ("Label: 0x20004", a_label(0x20004)),
            ("1E 03 00 03 0E 00", option()),
            ("1e:03:00:03:0e:00", option()),
            ("1e030003-0e00\n", option()),
            ("0x1E0300030E00", option()),
            ("0x1E, 0x03, 0x00, 0x03, 0x0E, 0x00", option()),
            ("SciTag: 206", DetectedValue::Header(" 206".into())),
            ("scitag.flow=206", DetectedValue::Url("scitag.flow=206".into())),
            ("https://h/f", DetectedValue::Url("https://h/f".into())),
            (" <134>1 {} ", DetectedValue::Firefly(b"<134>1 {}".to_vec())),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn unknown_form_is_an_error() {
        for (text, words) in [
            ("", "is neither"),
            ("cms/analysis-input", "penstock tag encode cms/analysis-input"),
            ("1E 3 0", "is neither"),
            ("1E 03", "is neither"),
            ("0x100000", "20 bits"),
            ("label:-1", "20 bits"),
            ("label:0xé", "20 bits"),
            ("hello", "is neither"),
        ] {
            let line = value(text).unwrap_err().to_string();
            assert!(line.contains(words), "{text}: {line}");
        }
    }
}
