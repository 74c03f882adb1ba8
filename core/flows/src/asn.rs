//! Autonomous systems by prefix, from a file, for addresses without an AS from an exporter.
//!
//! A line is `PREFIX ASN [NAME]`, such as `192.0.2.0/24 64500 Example Networks` or `2001:db8::/32
//! AS64500`; the text after a `#` is a comment, and the later of two lines with one prefix counts.
//! An address belongs to the longest matching prefix. A full Internet table fits.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::prefixes::{PrefixError, Prefixes};

/// Most prefixes of a file. The Internet has some 1.3 million.
pub const AS_PREFIXES_MAX: usize = 2_000_000;

/// Longest stored name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Prefix of an address and the AS that originates it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixOrigin {
    /// Number of the AS.
    pub asn: u32,
    /// Length of the prefix in bits, up to 32 for IPv4 and 128 for IPv6.
    pub bits: u8,
}

/// Prefixes of autonomous systems, and their names.
#[derive(Debug, Clone, Default)]
pub struct AsTable {
    /// Originating AS by prefix.
    pub origins: Prefixes<PrefixOrigin>,
    /// Names by AS number.
    pub names: BTreeMap<u32, String>,
    /// Count of prefixes in the file.
    pub count: usize,
}

/// Error in a line of the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {fault}")]
pub struct AsnLineError {
    /// Line number, from 1; 0 for the file as a whole.
    pub line: usize,
    /// Fault of the line.
    pub fault: AsnLineFault,
}

/// Fault of one line; texts of the file are cut to 60 characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AsnLineFault {
    /// No prefix of IPv4 or IPv6.
    #[error("'{0}' is no prefix: write it like 192.0.2.0/24 or 2001:db8::/32")]
    Prefix(String),
    /// No number of an AS after the prefix.
    #[error("'{number}' is no AS number: write PREFIX ASN NAME, such as {prefix} 64500 Example")]
    Number {
        /// Word in place of the number.
        number: String,
        /// Prefix of the line.
        prefix: String,
    },
    /// A name that could garble a terminal.
    #[error("its name has control characters")]
    Name,
    /// A prefix beyond the limit.
    #[error("more than {AS_PREFIXES_MAX} prefixes")]
    TooMany,
    /// Prefixes that do not fit into one table.
    #[error(transparent)]
    Table(#[from] PrefixError),
}

impl AsTable {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// With the first malformed line, or beyond [`AS_PREFIXES_MAX`] prefixes.
    pub fn read(text: &str) -> Result<Self, AsnLineError> {
        let (mut prefixes, mut names) = (Vec::new(), BTreeMap::new());
        for (line, text) in (1..).zip(text.lines()) {
            let failed = |fault| AsnLineError { line, fault };
            let text = text.split('#').next().unwrap_or_default().trim();
            if text.is_empty() {
                continue;
            }
            let (ip, bits, asn, name) = read_line(text).map_err(failed)?;
            prefixes.push((ip, bits, PrefixOrigin { asn, bits }));
            if prefixes.len() > AS_PREFIXES_MAX {
                return Err(failed(AsnLineFault::TooMany));
            }
            if !name.is_empty() {
                names.insert(asn, name[..name.floor_char_boundary(NAME_BYTES_MAX)].to_owned());
            }
        }
        let count = prefixes.len();
        let origins = Prefixes::limited(prefixes, AS_PREFIXES_MAX)
            .map_err(|error| AsnLineError { line: 0, fault: error.into() })?;
        Ok(Self { origins, names, count })
    }
}

fn read_line(text: &str) -> Result<(IpAddr, u8, u32, &str), AsnLineFault> {
    let cut = |text: &str| text.chars().take(60).collect::<String>();
    let (prefix, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let (number, name) =
        rest.trim_start().split_once(char::is_whitespace).unwrap_or((rest.trim_start(), ""));
    let no_prefix = || AsnLineFault::Prefix(cut(prefix));
    let (ip, bits) = prefix.split_once('/').ok_or_else(no_prefix)?;
    let ip: IpAddr = ip.parse().map_err(|_| no_prefix())?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let bits = bits.parse().ok().filter(|bits: &u8| *bits <= most).ok_or_else(no_prefix)?;
    let digits = number.strip_prefix("AS").or_else(|| number.strip_prefix("as")).unwrap_or(number);
    let asn = digits
        .parse()
        .ok()
        .filter(|asn| *asn > 0)
        .ok_or_else(|| AsnLineFault::Number { number: cut(number), prefix: prefix.to_owned() })?;
    let name = name.trim();
    if name.chars().any(char::is_control) {
        return Err(AsnLineFault::Name);
    }
    Ok((ip, bits, asn, name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::MappedAddress;

    fn origin(systems: &AsTable, ip: &str) -> Option<PrefixOrigin> {
        systems.origins.find(ip.parse::<IpAddr>().unwrap().into())
    }

    #[test]
    fn longest_prefix_of_file_is_found() {
        let text = "# of a test\n192.0.2.0/24 64500 Example Networks # inline\n\n\t192.0.2.128/25\tAS64501\n\
            2001:db8::/32 64500\n2001:db8:7::/48 as4200000000  Überall AG \n::/0 1\n192.0.2.0/24 64502 Later\n";
        let systems = AsTable::read(text).unwrap();
        assert_eq!(systems.count, 6);
        assert_eq!(origin(&systems, "192.0.2.1"), Some(PrefixOrigin { asn: 64502, bits: 24 }));
        assert_eq!(origin(&systems, "192.0.2.200"), Some(PrefixOrigin { asn: 64501, bits: 25 }));
        assert_eq!(origin(&systems, "192.0.3.1"), None);
        assert_eq!(
            origin(&systems, "2001:db8:7::1"),
            Some(PrefixOrigin { asn: 4_200_000_000, bits: 48 })
        );
        assert_eq!(origin(&systems, "2001:db9::"), Some(PrefixOrigin { asn: 1, bits: 0 }));
        let names: Vec<_> = systems.names.iter().map(|(asn, name)| (*asn, name.as_str())).collect();
        let wanted = [(64500, "Example Networks"), (64502, "Later"), (4_200_000_000, "Überall AG")];
        assert_eq!(names, wanted);
    }

    #[test]
    fn malformed_line_error_has_line_number() {
        for (line, reason) in [
            ("192.0.2.0/33 1", "'192.0.2.0/33' is no prefix"),
            ("192.0.2.0 1", "'192.0.2.0' is no prefix"),
            ("example.org/8 1", "is no prefix"),
            ("192.0.2.0/24", "'' is no AS number: write PREFIX ASN NAME"),
            ("192.0.2.0/24 0", "'0' is no AS number"),
            ("192.0.2.0/24 4294967296", "is no AS number"),
            ("192.0.2.0/24 1 a\u{7}b", "control characters"),
        ] {
            let error = AsTable::read(&format!("::/0 1\n{line}\n")).unwrap_err();
            assert_eq!(error.line, 2, "{line}");
            assert!(error.to_string().contains(reason), "{line}: {error}");
        }
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn matches_linear_search_of_lines(
            lines in prop::collection::vec((any::<bool>(), 0_u32..16, 0_u8..=32, 1_u32..9), 0..20),
            v4: bool,
            address in 0_u32..16,
        ) {
            // Few distinct bits, so that prefixes nest and coincide; for IPv6 in the first 32 bits.
            let ip = |v4: bool, value: u32| {
                let value = value << 28 | value;
                if v4 { IpAddr::from(value.to_be_bytes()) } else { IpAddr::from((u128::from(value) << 96).to_be_bytes()) }
            };
            let text: String = lines.iter().map(|(v4, value, bits, asn)| format!("{}/{bits} {asn}\n", ip(*v4, *value))).collect();
            let systems = AsTable::read(&text).unwrap();
            let address = MappedAddress::from(ip(v4, address));
            let inside = |line: &&(bool, u32, u8, u32)| {
                line.0 == v4 && address.prefix(line.2) == MappedAddress::from(ip(v4, line.1)).prefix(line.2)
            };
            let (mut best, mut found) = (-1, None);
            for line in lines.iter().filter(inside) {
                if i16::from(line.2) >= best {
                    (best, found) = (i16::from(line.2), Some(PrefixOrigin { asn: line.3, bits: line.2 }));
                }
            }
            prop_assert_eq!(systems.origins.find(address), found);
        }

        #[test]
        fn arbitrary_file_never_panics(text in "(?s).{0,300}") {
            let _ = AsTable::read(&text);
        }
    }
}
