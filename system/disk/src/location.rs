//! Names of remote disks: `HOST[:PORT]/NAME`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use penstock_nvme::nqn;

use crate::DiskError;

/// Port of NVMe/TCP at IANA.
pub const DEFAULT_PORT: u16 = 4420;

/// Disk of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskLocation {
    /// Name or address of the target.
    pub host: String,
    /// TCP port of the target.
    pub port: u16,
    /// Qualified name of the disk's subsystem.
    pub nqn: String,
}

impl DiskLocation {
    /// Resolves the host; the first address is taken.
    ///
    /// # Errors
    /// If it has none.
    pub fn address(&self) -> Result<SocketAddr, DiskError> {
        let failed = |error| DiskError::Resolve { host: self.host.clone(), error };
        let mut found = (self.host.as_str(), self.port).to_socket_addrs().map_err(failed)?;
        let none = || failed(std::io::Error::other("no address"));
        found.next().ok_or_else(none)
    }
}

impl FromStr for DiskLocation {
    type Err = DiskError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || DiskError::Location(text.to_owned());
        let (place, name) = text.split_once('/').ok_or_else(wrong)?;
        let (host, port) = match place.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
                (host, rest.strip_prefix(':').or_else(|| rest.is_empty().then_some("")))
            }
            None => match place.split_once(':') {
                Some((host, port)) => (host, Some(port).filter(|port| !port.is_empty())),
                None => (place, Some("")),
            },
        };
        let port = match port.ok_or_else(wrong)? {
            "" => DEFAULT_PORT,
            port => port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?,
        };
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == ',') {
            return Err(wrong());
        }
        Ok(Self { host: host.to_owned(), port, nqn: nqn::of_disk(name)? })
    }
}

impl fmt::Display for DiskLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = nqn::export_name(&self.nqn).unwrap_or(&self.nqn);
        let (host, port) = (&self.host, self.port);
        match (host.contains(':'), port == DEFAULT_PORT) {
            (false, true) => write!(f, "{host}/{name}"),
            (false, false) => write!(f, "{host}:{port}/{name}"),
            (true, true) => write!(f, "[{host}]/{name}"),
            (true, false) => write!(f, "[{host}]:{port}/{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_have_host_port_and_name() {
        for (text, host, port, name) in [
            ("dtn1/run-7", "dtn1", 4420, "nqn.2014-08.org.nvmexpress:penstock:run-7"),
            ("10.0.0.2:4421/nqn.2020-01.org.x:y", "10.0.0.2", 4421, "nqn.2020-01.org.x:y"),
            ("[fd00::2]/a", "fd00::2", 4420, "nqn.2014-08.org.nvmexpress:penstock:a"),
            ("[fd00::2]:9/a", "fd00::2", 9, "nqn.2014-08.org.nvmexpress:penstock:a"),
        ] {
            let location: DiskLocation = text.parse().unwrap();
            assert_eq!((location.host.as_str(), location.port), (host, port), "{text}");
            assert_eq!(location.nqn, name);
            assert_eq!(location.to_string(), text);
        }
        for wrong in
            ["", "dtn1", "dtn1/", "/a", "dtn1:x/a", "dtn1:0/a", "dtn1:/a", "[fd00::2/a", "a,b/c"]
        {
            assert!(wrong.parse::<DiskLocation>().is_err(), "{wrong}");
        }
    }
}
