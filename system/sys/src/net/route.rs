//! By which device packets to a host leave.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::link::Link;
use super::netlink::{ask, attributes, cut, put, u32_at};

/// rtnetlink(7): kinds of messages and attributes.
const GETROUTE: u16 = 26;
const DESTINATION: u16 = 1;
const SOURCE: u16 = 2;
const OUTPUT: u16 = 4;

const INFO_BYTES: usize = 12;

/// The device by which packets to `peer` leave, from `source` where that is chosen. Asks the routing
/// tables; nothing is sent.
///
/// # Errors
/// When no route leads there, or whatever the socket says.
pub fn way_out(peer: SocketAddr, source: Option<IpAddr>) -> io::Result<Link> {
    let (to, family) = octets(peer.ip());
    let mut body = vec![family, u8::try_from(to.len() * 8).unwrap_or(0), 0, 0];
    let source = source.filter(|source| source.is_ipv4() == peer.is_ipv4()).map(octets);
    if let Some((from, _)) = &source {
        body[2] = u8::try_from(from.len() * 8).unwrap_or(0);
    }
    body.resize(INFO_BYTES, 0);
    put(&mut body, DESTINATION, &to);
    if let Some((from, _)) = &source {
        put(&mut body, SOURCE, from);
    }
    if let SocketAddr::V6(peer) = peer
        && peer.scope_id() != 0
    {
        put(&mut body, OUTPUT, &peer.scope_id().to_ne_bytes());
    }
    let answer = ask(GETROUTE, &body)?;
    let mut found = attributes(answer.get(INFO_BYTES..).unwrap_or_default());
    let device = found.find(|(kind, _)| *kind == OUTPUT);
    Link::indexed(device.and_then(|(_, index)| u32_at(index, 0)).ok_or_else(cut)?)
}

/// The bytes of an address and its family.
pub(super) fn octets(address: IpAddr) -> (Vec<u8>, u8) {
    let (bytes, family) = match address {
        IpAddr::V4(address) => (address.octets().to_vec(), libc::AF_INET),
        IpAddr::V6(address) => (address.octets().to_vec(), libc::AF_INET6),
    };
    (bytes, u8::try_from(family).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_reached_through_itself() {
        let name = |peer: &str, source: Option<&str>| {
            way_out(peer.parse().unwrap(), source.map(|text| text.parse().unwrap()))
                .map(|link| link.name)
        };
        assert_eq!(name("127.0.0.1:1", None).unwrap(), "lo");
        assert_eq!(name("127.0.0.1:1", Some("127.0.0.2")).unwrap(), "lo");
        // The source of another family does not count.
        assert_eq!(name("127.0.0.1:1", Some("::1")).unwrap(), "lo");
        // There is no such device.
        assert!(name("[fe80::1%2147418112]:1", None).is_err());
        if std::net::TcpListener::bind("[::1]:0").is_ok() {
            assert_eq!(name("[::1]:1", None).unwrap(), "lo");
        }
    }
}
