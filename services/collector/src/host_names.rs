//! Host names by address, from a file in the format of hosts(5).
//!
//! Exporters that are hosts report their names; the directory adds those.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

/// Longest file in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Most names in a file.
const NAMES_MAX: usize = 200_000;

/// Parses names: each line has an address and its names, of which the first counts; `#` starts a
/// comment.
///
/// # Errors
/// With one line that names the file and the line number.
pub(crate) fn read(file: &Path) -> Result<HashMap<IpAddr, String>, String> {
    let name = file.display();
    let bytes = std::fs::metadata(file).map_err(|error| format!("{name}: {error}"))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(format!("{name}: {bytes} bytes are more than {FILE_BYTES_MAX}"));
    }
    let text = std::fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
    parse(&text).map_err(|error| format!("{name}:{error}"))
}

fn parse(text: &str) -> Result<HashMap<IpAddr, String>, String> {
    let mut names = HashMap::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(address) = words.next() else { continue };
        // An address may have a zone (fe80::1%eth0), which packets do not carry.
        let bare = address.split('%').next().unwrap_or(address);
        let ip: IpAddr = bare.parse().map_err(|_| {
            format!("{}: '{address}' is no address: write ADDRESS NAME on each line", at + 1)
        })?;
        let Some(name) = words.next() else {
            return Err(format!("{}: {address} has no name: write ADDRESS NAME", at + 1));
        };
        if names.len() >= NAMES_MAX {
            return Err(format!("{}: more than {NAMES_MAX} names", at + 1));
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
        assert!(parse("dtn1 192.0.2.1\n").unwrap_err().starts_with("1: 'dtn1' is no address"));
        assert!(parse("\n192.0.2.1\n").unwrap_err().starts_with("2: 192.0.2.1 has no name"));
    }
}
