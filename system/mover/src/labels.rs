//! What the packets of a stream say of its data: a flow label or a destination option.
//!
//! The end that sends data labels it, whichever end made the connection. A label is never needed: where it
//! cannot be, data goes without, a destination option gives way to the flow label, and the result says why.
//! Fireflies are `firefly`'s.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;

use penstock_marker::{Action, Method, SocketTags};
use penstock_protocol::open::{Mark, PacketLabel};
use penstock_protocol::sender::StreamId;
use penstock_scitags::label::{ENTROPY_MAX, FlowLabel};
use penstock_scitags::{Scitag, option};
use penstock_sys::net::{Checksums, Link, destination_option, egress_link};

/// Longest packet handed to a device that is no BIG TCP, in bytes.
const GSO_BYTES_MAX: u32 = 65_536;

/// Longest packet of a device on which an option has room: the length in the IPv6 header is at most 65535 (RFC 8200
/// section 3). Loopback's 65536 leaves none, and full segments are lost there (Linux 6.18).
const MTU_MAX: u32 = 65_000;

/// Set on a connection that was made, an option shortens segments; on one that was accepted it does not, and
/// full ones never leave (Linux ipv6_update_options, up to 6.18 at least).
const NO_ROOM: &str = "Linux makes no room for one on connections that the sending end accepted";

/// What to set on a connection, and how its label is told: `flow`, `destination` or `none`, with a colon
/// and the reason where it is another than was asked for; empty where nobody asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labelling {
    /// The flow label.
    pub flow_label: Option<u32>,
    /// The destination options.
    pub destination_option: Option<[u8; 8]>,
    /// How it is told.
    pub told: String,
}

impl Labelling {
    fn none(why: &str) -> Self {
        Self { told: format!("none: {why}"), ..Self::default() }
    }

    /// What a connection that goes inside another program carries.
    #[must_use]
    pub fn inside(mark: Option<Mark>) -> Self {
        mark.map_or_else(Self::default, |_| Self::none("data goes inside another program"))
    }

    /// What `stream` carries on a connection that this end is about to make. Streams of a session differ in
    /// the bits of the flow label that spread them over parallel paths.
    #[must_use]
    pub fn connecting(
        mark: Option<Mark>,
        stream: StreamId,
        peer: SocketAddr,
        source: Option<IpAddr>,
    ) -> Self {
        let (Some(mark), ipv6) = (mark, peer.ip().to_canonical().is_ipv6()) else {
            return Self::default();
        };
        let tag = match on_packets(mark, ipv6) {
            Ok(tag) => tag,
            Err(why) => return Self::none(&why),
        };
        let by_label = |told: String| {
            let entropy = u8::try_from(stream % (u32::from(ENTROPY_MAX) + 1)).unwrap_or(0);
            let flow_label = FlowLabel::new(tag, entropy).ok().map(FlowLabel::value);
            Self { flow_label, told, ..Self::default() }
        };
        if mark.label == PacketLabel::Flow {
            return by_label("flow".to_owned());
        }
        match option_for(tag, peer, source) {
            Ok(header) => Self {
                destination_option: Some(header),
                told: "destination".to_owned(),
                ..Self::default()
            },
            Err(why) => by_label(format!("flow: {}", instead(&why))),
        }
    }
}

/// Labels what this end sends from now on over a connection that it accepted, and tells how, as
/// [`Labelling::told`]: by flow label alone, which is the marker's, where one runs that pinned its maps in `pin` and lets
/// this process use them.
#[must_use]
pub fn label_accepted(mark: Option<Mark>, tcp: &TcpStream, pin: &Path) -> String {
    let (Some(mark), Ok(peer)) = (mark, tcp.peer_addr()) else { return String::new() };
    let tag = match on_packets(mark, peer.ip().to_canonical().is_ipv6()) {
        Ok(tag) => tag,
        Err(why) => return format!("none: {why}"),
    };
    let asked = mark.label == PacketLabel::Flow;
    match by_marker(tag, tcp, pin) {
        Ok(()) if asked => "flow".to_owned(),
        Ok(()) => format!("flow: {}", instead(NO_ROOM)),
        Err(why) if asked => format!("none: {why}"),
        Err(why) => format!("none: no destination option: {NO_ROOM}; no flow label: {why}"),
    }
}

fn by_marker(tag: Scitag, tcp: &TcpStream, pin: &Path) -> Result<(), String> {
    let action = Action::new(tag, Method::Label).map_err(|error| error.to_string())?;
    SocketTags::open(pin).and_then(|mut tags| tags.set(tcp, Some(action))).map_err(|error| {
        format!("the sending end accepted its connections, which only the marker labels: {error}")
    })
}

/// The tag, where packets can carry it as asked.
fn on_packets(mark: Mark, ipv6: bool) -> Result<Scitag, String> {
    if mark.label == PacketLabel::None {
        return Err("fireflies alone were asked for".to_owned());
    }
    let tag = Scitag::from_number(u64::from(mark.scitag)).map_err(|error| error.to_string())?;
    tag.fits_on_packets().map_err(|error| error.to_string())?;
    match mark.label {
        _ if ipv6 => Ok(tag),
        PacketLabel::Destination => {
            Err("IPv4 packets have no destination options, fireflies tell".to_owned())
        }
        _ => Err("IPv4 packets have no flow label, fireflies tell".to_owned()),
    }
}

fn instead(why: &str) -> String {
    format!("flow label instead of destination option: {why}")
}

fn refused(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return "it needs CAP_NET_RAW: run as root, or `setcap cap_net_raw+ep` on the program, or \
                AmbientCapabilities=CAP_NET_RAW in its unit"
            .to_owned();
    }
    format!("the kernel refuses it: {error}")
}

/// The header that carries `tag` to `peer`, where it harms nothing and this process may set it.
fn option_for(tag: Scitag, peer: SocketAddr, source: Option<IpAddr>) -> Result<[u8; 8], String> {
    let header = option::encode_header(0, tag).map_err(|error| error.to_string())?;
    let link = egress_link(peer, source)
        .map_err(|error| format!("the device that leads there is not to be found: {error}"))?;
    // A device that does not say makes none.
    let checksums = Checksums::of(&link.name).unwrap_or_default();
    harmless(&link, checksums)?;
    destination_option::probe(&header).map_err(|error| refused(&error))?;
    Ok(header)
}

/// Whether packets with an extension header leave by `link` as well as others.
fn harmless(link: &Link, checksums: Checksums) -> Result<(), String> {
    let name = &link.name;
    if link.mtu > MTU_MAX {
        return Err(format!(
            "packets at {name} are too long for one more header (MTU {}): `ip link set {name} mtu {MTU_MAX}`",
            link.mtu
        ));
    }
    // The kernel takes the temporary jumbo header out of a segment only where TCP follows it at once: with
    // an option between them, broken frames leave (Linux 6.18).
    if link.gso_max_size > GSO_BYTES_MAX {
        return Err(format!(
            "BIG TCP is on at {name} (gso_max_size {}) and breaks such packets: `ip link set {name} \
             gso_max_size {GSO_BYTES_MAX}`",
            link.gso_max_size
        ));
    }
    // Such devices segment and checksum only TCP right behind the IPv6 header; for the rest the processor
    // does (Linux 04c20a9356f2 and its successor).
    if checksums.ipv6 && !checksums.generic {
        return Err(format!(
            "{name} neither segments nor checksums packets with extension headers (ethtool -k: \
             tx-checksum-ipv6 and no tx-checksum-ip-generic)"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CMS: u16 = 206;

    fn link(gso_max_size: u32) -> Link {
        Link { index: 1, name: "eth7".to_owned(), ethernet: true, mtu: 9000, gso_max_size }
    }

    fn told(scitag: u16, label: PacketLabel, peer: &str) -> String {
        let mark = Some(Mark { scitag, label });
        Labelling::connecting(mark, 0, peer.parse().unwrap(), None).told
    }

    #[test]
    fn devices_that_break_options_are_named() {
        let any = Checksums { generic: true, ipv6: false };
        let direct = Checksums { generic: false, ipv6: true };
        assert_eq!(harmless(&link(65_536), any), Ok(()));
        assert_eq!(harmless(&link(65_536), Checksums::default()), Ok(()));
        let why = harmless(&link(100_000), any).unwrap_err();
        assert!(why.contains("BIG TCP is on at eth7 (gso_max_size 100000)"), "{why}");
        let why = harmless(&Link { mtu: 65_536, ..link(65_536) }, any).unwrap_err();
        assert!(why.contains("packets at eth7 are too long") && why.contains("65536"), "{why}");
        let why = harmless(&link(65_536), direct).unwrap_err();
        assert!(why.contains("eth7") && why.contains("tx-checksum-ip-generic"), "{why}");
    }

    #[test]
    fn what_is_not_labelled_says_why() {
        for label in [PacketLabel::Flow, PacketLabel::Destination] {
            let ipv4 = told(CMS, label, "192.0.2.1:1");
            assert!(ipv4.starts_with("none: IPv4 packets have no "), "{ipv4}");
            assert_eq!(told(CMS, label, "[::ffff:192.0.2.1]:1"), ipv4);
            let large = told(512 << 6 | 1, label, "[::1]:1");
            assert!(large.starts_with("none: owner 512"), "{large}");
        }
        assert_eq!(told(CMS, PacketLabel::None, "[::1]:1"), "none: fireflies alone were asked for");
        let nobody = Labelling::connecting(None, 0, "[::1]:1".parse().unwrap(), None);
        assert_eq!(nobody, Labelling::default());
    }

    #[test]
    fn an_option_that_cannot_be_gives_way_to_the_flow_label() {
        let mark = Some(Mark { scitag: CMS, label: PacketLabel::Destination });
        // There is no such device.
        let peer = "[fe80::1%2147418112]:1".parse().unwrap();
        let labelling = Labelling::connecting(mark, 33, peer, None);
        assert_eq!((labelling.flow_label, labelling.destination_option), (Some(0x30039), None));
        assert!(
            labelling.told.starts_with("flow: flow label instead of destination option: "),
            "{labelling:?}"
        );
    }
}
