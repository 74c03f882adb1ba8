//! The IPv6 extension-header option that carries a scitag, in Hop-by-Hop and Destination Options alike.
//!
//! Only the current encoding is written:
//!
//! | byte | value |
//! |---|---|
//! | 0 | 0x1E: skip if unknown, does not change en route, experimental (RFC 8200 4.2, RFC 4727) |
//! | 1 | 3 |
//! | 2, 3 | owner, high byte first |
//! | 4 | activity |
//!
//! and a Pad1 that fills the header to 8 bytes. The encoding has changed twice with no version on the
//! wire, so a reader needs the registry: [`PacketMark::read`] decodes by the current rule, unless only the older one
//! gives a registered pair. The option type is experimental: other programs may use it for another purpose.

use crate::label::FlowLabel;
use crate::registry::Registry;
use crate::tag::{FirefliesOnly, Scitag};

/// Option type: skip if unknown, does not change en route, experimental.
pub const OPTION_TYPE: u8 = 0x1E;

/// Option type of the first releases of flowd-go.
pub const LEGACY_OPTION_TYPE: u8 = 0x1F;

const DATA_BYTES: u8 = 3;
const LEGACY_DATA_BYTES: u8 = 4;

/// RFC 8200 4.2: the option without length and data.
const IPV6_TLV_PAD1: u8 = 0;

/// Encoding of owner and activity in the data of the option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Owner and activity as numbers: flowd-go 2.3 (November 2025) and later, and this crate.
    Pair,
    /// The flow label with its entropy bits, in an option of type 0x1E: flowd-go from February 2025 to 2.2.
    Label,
    /// The flow label in an option of type 0x1F: the first releases of flowd-go.
    FirstLabel,
}

impl Encoding {
    /// Name for reports, with the programs that write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pair => "current",
            Self::Label => "flow label in option 0x1E (flowd-go before 2.3)",
            Self::FirstLabel => "flow label in option 0x1F (first releases of flowd-go)",
        }
    }
}

/// An option that may be a scitag, as received in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketMark {
    /// Type 0x1E with 3 bytes.
    Option([u8; 3]),
    /// Type 0x1F with 4 bytes.
    First([u8; 4]),
}

/// A [`PacketMark`] decoded with the help of a registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodedMark {
    /// Encoding that gave the numbers.
    pub encoding: Encoding,
    /// Owner as written, even if out of range.
    pub owner: u16,
    /// Activity as written, even if out of range.
    pub activity: u8,
    /// The pair; `None` where a number is out of range.
    pub tag: Option<Scitag>,
    /// True if the registry has the pair.
    pub registered: bool,
    /// The flow label, where the option holds one.
    pub label: Option<FlowLabel>,
}

/// Error of parsing an options header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The length field exceeds the input.
    #[error("the extension header has {has} bytes and says {says}: it was cut, or is none")]
    Header {
        /// Input length in bytes.
        has: usize,
        /// Header length by its length field, in bytes.
        says: usize,
    },
    /// An option reaches beyond the end.
    #[error("option 0x{kind:02X} at byte {at} reaches beyond the end: it was cut, or is none")]
    Cut {
        /// Option type.
        kind: u8,
        /// Byte offset among the options.
        at: usize,
    },
}

/// Encodes the option with its padding, to follow the first two bytes of a header.
///
/// # Errors
/// When packets cannot carry the owner: see [`Scitag::fits_on_packets`].
pub fn encode(tag: Scitag) -> Result<[u8; 6], FirefliesOnly> {
    tag.fits_on_packets()?;
    let [high, low] = tag.owner().to_be_bytes();
    Ok([OPTION_TYPE, DATA_BYTES, high, low, tag.activity(), IPV6_TLV_PAD1])
}

/// Encodes a complete Hop-by-Hop or Destination Options header; `next_header` is the protocol that follows (6 for
/// TCP).
///
/// # Errors
/// As [`encode`].
pub fn encode_header(next_header: u8, tag: Scitag) -> Result<[u8; 8], FirefliesOnly> {
    let [a, b, c, d, e, f] = encode(tag)?;
    Ok([next_header, 0, a, b, c, d, e, f])
}

/// Iterates over the marks in a Hop-by-Hop or Destination Options header, which starts at its next-header byte. Ignores
/// bytes after the header.
///
/// # Errors
/// When the header is longer than `header`.
pub fn marks_of_header(header: &[u8]) -> Result<Marks<'_>, OptionError> {
    // RFC 8200 4.3: the length counts 8 bytes, the first not included.
    let says = header.get(1).map_or(8, |length| (usize::from(*length) + 1) * 8);
    let options = header.get(2..says).ok_or(OptionError::Header { has: header.len(), says })?;
    Ok(marks(options))
}

/// Iterates over the marks in `options`, the header without its first two bytes. Skips other options.
#[must_use]
pub fn marks(options: &[u8]) -> Marks<'_> {
    Marks { options, at: 0 }
}

/// Iterator over the scitag options; ends after the first error.
#[derive(Debug, Clone)]
pub struct Marks<'a> {
    options: &'a [u8],
    at: usize,
}

impl Iterator for Marks<'_> {
    type Item = Result<PacketMark, OptionError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let at = self.at;
            let rest = self.options.get(at..)?;
            let (&kind, rest) = rest.split_first()?;
            if kind == IPV6_TLV_PAD1 {
                self.at += 1;
                continue;
            }
            let data =
                rest.split_first().and_then(|(length, rest)| rest.get(..usize::from(*length)));
            let Some(data) = data else {
                self.at = self.options.len();
                return Some(Err(OptionError::Cut { kind, at }));
            };
            self.at += 2 + data.len();
            if let Some(mark) = PacketMark::of(kind, data) {
                return Some(Ok(mark));
            }
        }
    }
}

impl PacketMark {
    fn of(kind: u8, data: &[u8]) -> Option<Self> {
        match kind {
            OPTION_TYPE => data.try_into().ok().map(Self::Option),
            LEGACY_OPTION_TYPE => data.try_into().ok().map(Self::First),
            _ => None,
        }
    }

    /// Decodes the mark; `None` for an option of type 0x1F that holds no flow label.
    #[must_use]
    pub fn read(self, registry: &Registry) -> Option<DecodedMark> {
        match self {
            Self::Option([high, low, activity]) => {
                let owner = u16::from_be_bytes([high, low]);
                let tag = Scitag::new(owner.into(), activity.into()).ok();
                let registered = tag.is_some_and(|tag| registry.has(tag));
                let today = DecodedMark {
                    encoding: Encoding::Pair,
                    owner,
                    activity,
                    tag,
                    registered,
                    label: None,
                };
                let older = || of_label(Encoding::Label, [high, low, activity], registry);
                if registered {
                    return Some(today);
                }
                older().filter(|older| older.registered).or(Some(today))
            }
            Self::First([a, b, c, 0]) => of_label(Encoding::FirstLabel, [a, b, c], registry),
            Self::First(_) => None,
        }
    }

    /// Type and data with their length, as on the wire.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        match self {
            Self::Option(data) => [&[OPTION_TYPE, DATA_BYTES], &data[..]].concat(),
            Self::First(data) => [&[LEGACY_OPTION_TYPE, LEGACY_DATA_BYTES], &data[..]].concat(),
        }
    }
}

/// Decodes four zero bits and a flow label.
fn of_label(encoding: Encoding, [a, b, c]: [u8; 3], registry: &Registry) -> Option<DecodedMark> {
    let label = FlowLabel::from_value(u32::from_be_bytes([0, a, b, c]))?;
    let tag = label.scitag()?;
    Some(DecodedMark {
        encoding,
        owner: tag.owner(),
        activity: tag.activity(),
        tag: Some(tag),
        registered: registry.has(tag),
        label: Some(label),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tag(owner: u64, activity: u64) -> Scitag {
        Scitag::new(owner, activity).unwrap()
    }

    fn read(options: &[u8]) -> Vec<Option<DecodedMark>> {
        let registry = Registry::builtin();
        marks(options).map(|mark| mark.unwrap().read(registry)).collect()
    }

    #[test]
    fn other_options_are_skipped() {
        // PadN, a router alert (RFC 2711), Pad1, the mark, a PadN without data.
        let options = [1, 2, 0, 0, 5, 2, 0, 0, 0, 0x1E, 3, 0, 3, 14, 1, 0];
        let found = read(&options);
        assert_eq!(found.len(), 1);
        let reading = found[0].unwrap();
        assert_eq!((reading.tag, reading.registered), (Some(tag(3, 14)), true));
        assert_eq!(reading.encoding, Encoding::Pair);
        assert_eq!(read(&[]).len(), 0);
        // The type with another length belongs to another experiment.
        assert_eq!(read(&[0x1E, 2, 0, 3, 0x1F, 0]).len(), 0);
    }

    #[test]
    fn registered_older_encoding_is_decoded() {
        // ATLAS Data Consolidation with all entropy bits: label 0xD0113.
        let label = FlowLabel::new(tag(2, 4), 31).unwrap();
        let reading = read(&[0x1E, 3, 0x0D, 0x01, 0x13, 0])[0].unwrap();
        assert_eq!((reading.encoding, reading.label), (Encoding::Label, Some(label)));
        assert_eq!((reading.tag, reading.registered), (Some(tag(2, 4)), true));
        let reading = read(&[0x1F, 4, 0x0D, 0x01, 0x13, 0])[0].unwrap();
        assert_eq!((reading.encoding, reading.tag), (Encoding::FirstLabel, Some(tag(2, 4))));
        // Registered by neither rule: decoded by the current one, as unregistered.
        let reading = read(&[0x1E, 3, 0x01, 0xFF, 0x3F, 0])[0].unwrap();
        assert_eq!((reading.encoding, reading.owner, reading.activity), (Encoding::Pair, 511, 63));
        assert!(!reading.registered);
        // Numbers out of range are reported unchanged.
        let reading = read(&[0x1E, 3, 0xFF, 0xFF, 0xFF, 0])[0].unwrap();
        assert_eq!((reading.owner, reading.activity, reading.tag), (0xFFFF, 0xFF, None));
        // Type 0x1F with other content.
        assert_eq!(read(&[0x1F, 4, 0x0D, 0x01, 0x13, 1]), [None]);
        assert_eq!(read(&[0x1F, 4, 0xFD, 0x01, 0x13, 0]), [None]);
    }

    #[test]
    fn current_pairs_never_decode_as_older() {
        let registry = Registry::builtin();
        for tag in registry.tags() {
            let [_, _, data @ .., _] = encode(tag).unwrap();
            let older = of_label(Encoding::Label, data, registry);
            assert!(older.is_none_or(|older| !older.registered), "{tag}: {older:?}");
        }
    }

    #[test]
    fn truncated_headers_are_errors() {
        let header = encode_header(6, tag(3, 14)).unwrap();
        assert_eq!(header, [6, 0, 0x1E, 3, 0, 3, 14, 0]);
        for cut in 0..8 {
            let error = marks_of_header(&header[..cut]).unwrap_err();
            assert_eq!(error, OptionError::Header { has: cut, says: 8 });
        }
        let longer = [&header[..], &[0xFF; 40]].concat();
        assert_eq!(marks_of_header(&longer).unwrap().count(), 1);
        let mut cut = marks(&[1, 0, 0x1E, 3, 0]);
        assert_eq!(cut.next(), Some(Err(OptionError::Cut { kind: 0x1E, at: 2 })));
        assert_eq!(cut.next(), None);
        assert_eq!(marks(&[5]).next(), Some(Err(OptionError::Cut { kind: 5, at: 0 })));
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn pairs_round_trip(owner in 1_u64..=511, activity in 1_u64..=63, next: u8) {
            let tag = tag(owner, activity);
            let header = encode_header(next, tag).unwrap();
            let marks: Vec<_> = marks_of_header(&header).unwrap().collect();
            let [Ok(mark)] = marks[..] else { return Err(TestCaseError::fail(format!("{marks:?}"))) };
            prop_assert_eq!(&mark.bytes()[..], &header[2..7]);
            let reading = mark.read(Registry::builtin()).unwrap();
            prop_assert!(reading.tag == Some(tag) || reading.encoding == Encoding::Label);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let registry = Registry::builtin();
            for mark in marks(&bytes).flatten() {
                let _ = mark.read(registry);
                prop_assert!(bytes.windows(mark.bytes().len()).any(|seen| seen == mark.bytes()));
            }
            if let Ok(marks) = marks_of_header(&bytes) {
                let _ = marks.count();
            }
        }
    }
}
