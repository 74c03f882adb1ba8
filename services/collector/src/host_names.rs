//! Host names by address, from a file in the format of hosts(5).
//!
//! Exporters that are hosts report their names; the directory adds those.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use crate::error::{ListFileError, read_text};

/// Longest file in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Most names in a file.
const NAMES_MAX: usize = 200_000;

/// Parses names: each line has an address and its names, of which the first counts; `#` starts a
/// comment.
///
/// # Errors
/// When the file cannot be read or a line has a fault.
pub(crate) fn read(file: &Path) -> Result<HashMap<IpAddr, String>, ListFileError> {
    let text = read_text(file, FILE_BYTES_MAX)?;
    parse(&text).map_err(|source| ListFileError::HostName { file: file.to_owned(), source })
}

/// Fault of a line, with its number from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostLineError {
    /// The first word is no IP address.
    #[error("{line}: '{word}' is no address: write ADDRESS NAME on each line")]
    Address {
        /// Number of the line.
        line: usize,
        /// First word of the line.
        word: String,
    },
    /// The address stands alone.
    #[error("{line}: {address} has no name: write ADDRESS NAME")]
    NoName {
        /// Number of the line.
        line: usize,
        /// Address of the line.
        address: String,
    },
    /// The file has too many names.
    #[error("{line}: more than {NAMES_MAX} names")]
    TooMany {
        /// Number of the first line beyond the limit.
        line: usize,
    },
}

fn parse(text: &str) -> Result<HashMap<IpAddr, String>, HostLineError> {
    let mut names = HashMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(address) = words.next() else { continue };
        // An address may have a zone (fe80::1%eth0), which packets do not carry.
        let bare = address.split('%').next().unwrap_or(address);
        let ip: IpAddr = bare
            .parse()
            .map_err(|_| HostLineError::Address { line: number, word: address.to_owned() })?;
        let Some(name) = words.next() else {
            return Err(HostLineError::NoName { line: number, address: address.to_owned() });
        };
        if names.len() >= NAMES_MAX {
            return Err(HostLineError::TooMany { line: number });
        }
        names.entry(ip.to_canonical()).or_insert_with(|| name.to_owned());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_file_is_read() {
        let text =
            "# site\n192.0.2.1  dtn1.example.org dtn1\n\n2001:db8::1 dtn1 # v6\n192.0.2.1 later\n";
        let names = parse(text).unwrap();
        assert_eq!(names[&"192.0.2.1".parse::<IpAddr>().unwrap()], "dtn1.example.org");
        assert_eq!(names[&"2001:db8::1".parse::<IpAddr>().unwrap()], "dtn1");
        for (text, words) in [
            ("dtn1 192.0.2.1\n", "1: 'dtn1' is no address"),
            ("\n192.0.2.1\n", "2: 192.0.2.1 has no name"),
        ] {
            assert!(parse(text).unwrap_err().to_string().starts_with(words), "{text}");
        }
    }
}
