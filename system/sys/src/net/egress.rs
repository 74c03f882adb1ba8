//! Route look-up: the egress device for a destination.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::link::LinkAttributes;
use super::netlink::{attributes, put, truncated, u32_at};
use super::netlink_socket::NetlinkSocket;

/// Size of `struct rtmsg`.
const RTMSG_BYTES: usize = 12;

/// Returns the egress device for packets to `peer`, from `source` where given. Queries the routing tables; sends no packet.
///
/// # Errors
/// Without a route to `peer`, or the socket's error.
pub fn egress_link(peer: SocketAddr, source: Option<IpAddr>) -> io::Result<LinkAttributes> {
    let (to, family) = octets(peer.ip());
    let mut body = vec![family, u8::try_from(to.len() * 8).unwrap_or(0), 0, 0];
    let source = source.filter(|source| source.is_ipv4() == peer.is_ipv4()).map(octets);
    if let Some((from, _)) = &source {
        body[2] = u8::try_from(from.len() * 8).unwrap_or(0);
    }
    body.resize(RTMSG_BYTES, 0);
    put(&mut body, libc::RTA_DST, &to);
    if let Some((from, _)) = &source {
        put(&mut body, libc::RTA_SRC, from);
    }
    if let SocketAddr::V6(peer) = peer
        && peer.scope_id() != 0
    {
        put(&mut body, libc::RTA_OIF, &peer.scope_id().to_ne_bytes());
    }
    let answer = NetlinkSocket::open(None)?.request(libc::RTM_GETROUTE, &body)?;
    let mut found = attributes(answer.get(RTMSG_BYTES..).unwrap_or_default());
    let device = found.find(|(kind, _)| *kind == libc::RTA_OIF);
    LinkAttributes::indexed(device.and_then(|(_, index)| u32_at(index, 0)).ok_or_else(truncated)?)
}

/// Returns the bytes of an address in network order, and its address family.
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
            egress_link(peer.parse().unwrap(), source.map(|text| text.parse().unwrap()))
                .map(|link| link.name)
        };
        assert_eq!(name("127.0.0.1:1", None).unwrap(), "lo");
        assert_eq!(name("127.0.0.1:1", Some("127.0.0.2")).unwrap(), "lo");
        // A source of the other family is ignored.
        assert_eq!(name("127.0.0.1:1", Some("::1")).unwrap(), "lo");
        // No such device.
        assert!(name("[fe80::1%2147418112]:1", None).is_err());
        if std::net::TcpListener::bind("[::1]:0").is_ok() {
            assert_eq!(name("[::1]:1", None).unwrap(), "lo");
        }
    }
}
