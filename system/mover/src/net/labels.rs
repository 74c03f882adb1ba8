//! Scitag labels of data streams: IPv6 flow label or destination option.
//!
//! The sending end labels its packets, regardless of which end connected. A label is optional: if it is
//! impossible the data is sent without, a destination option falls back to the flow label, and the
//! result states why. Fireflies are in `firefly`.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;

use penstock_marker::{LabelAction, Method, SocketTags};
use penstock_protocol::open::{Mark, PacketLabel};
use penstock_protocol::sender::StreamId;
use penstock_scitags::label::{ENTROPY_MAX, FlowLabel};
use penstock_scitags::tag::{FirefliesOnly, TagError};
use penstock_scitags::{Scitag, option};
use penstock_sys::net::{Checksums, LinkAttributes, destination_option, egress_link};

/// Largest packet handed to a device without BIG TCP, in bytes.
const GSO_BYTES_MAX: u32 = 65_536;

/// Largest MTU with room for an option: the length in the IPv6 header is at most 65535 (RFC 8200
/// section 3). Loopback's 65536 leaves none, and full segments are lost there (Linux 6.18).
const MTU_MAX: u32 = 65_000;

/// On an outgoing connection an option shortens segments; on an accepted one it does not, and full ones
/// never leave (Linux ipv6_update_options, up to 6.18 at least).
const ACCEPTED_HAS_NO_ROOM: &str =
    "Linux makes no room for one on connections that the sending end accepted";

/// Description of the label of a queue pair.
const LABEL_OF_QUEUE_PAIR: &str = "in the flow label of RDMA queue pairs, which the driver of the adapter may leave out of packets";

/// Label of a connection, with a description: `flow`, `destination` or `none`, then a colon and the
/// reason if it differs from the request; empty if none was requested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labelling {
    /// IPv6 flow label to set.
    pub flow_label: Option<u32>,
    /// IPv6 destination options header to set.
    pub destination_option: Option<[u8; 8]>,
    /// Description for reports, as above.
    pub description: String,
}

impl Labelling {
    fn none(why: &str) -> Self {
        Self { description: format!("none: {why}"), ..Self::default() }
    }

    /// Labelling of a connection inside another program.
    #[must_use]
    pub fn inside(mark: Option<Mark>) -> Self {
        mark.map_or_else(Self::default, |_| Self::none("data goes inside another program"))
    }

    /// Labelling of `stream` on a connection about to be made. Streams of a session differ in the
    /// entropy bits of the flow label, which spread them over parallel paths.
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
            Err(why) => return Self::none(&why.to_string()),
        };
        let by_label = |description: String| {
            let entropy = u8::try_from(stream % (u32::from(ENTROPY_MAX) + 1)).unwrap_or(0);
            let flow_label = FlowLabel::new(tag, entropy).ok().map(FlowLabel::value);
            Self { flow_label, description, ..Self::default() }
        };
        if mark.label == PacketLabel::Flow {
            return by_label("flow".to_owned());
        }
        match option_for(tag, peer, source) {
            Ok(header) => Self {
                destination_option: Some(header),
                description: "destination".to_owned(),
                ..Self::default()
            },
            Err(why) => by_label(format!("flow: {}", instead(&why.to_string()))),
        }
    }

    /// Labelling of an RDMA `stream`: the flow label of its queue pair, which needs no marker. A destination option
    /// would hide the UDP header, which RoCE expects behind that of IPv6.
    #[must_use]
    pub(crate) fn of_queue_pair(mark: Option<Mark>, stream: StreamId, peer: SocketAddr) -> Self {
        let mark = mark.map(|mark| match mark.label {
            PacketLabel::Destination => Mark { label: PacketLabel::Flow, ..mark },
            _ => mark,
        });
        let labelling = Self::connecting(mark, stream, peer, None);
        match labelling.flow_label {
            Some(_) => Self { description: format!("flow: {LABEL_OF_QUEUE_PAIR}"), ..labelling },
            None => labelling,
        }
    }
}

/// Labels what this end sends on an accepted connection and returns the description. Only the marker
/// can set the flow label there; its maps are pinned in `pin`.
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
        Ok(()) => format!("flow: {}", instead(ACCEPTED_HAS_NO_ROOM)),
        Err(why) if asked => format!("none: {why}"),
        Err(why) => {
            format!("none: no destination option: {ACCEPTED_HAS_NO_ROOM}; no flow label: {why}")
        }
    }
}

/// Reason for which packets do not carry a label.
#[derive(Debug, thiserror::Error)]
enum LabelObstacle {
    #[error("fireflies alone were asked for")]
    FirefliesRequested,
    #[error(transparent)]
    Number(#[from] TagError),
    #[error(transparent)]
    Owner(#[from] FirefliesOnly),
    #[error("IPv4 packets have no destination options, fireflies report it")]
    NoOptionInIpv4,
    #[error("IPv4 packets have no flow label, fireflies report it")]
    NoFlowLabelInIpv4,
    #[error("the sending end accepted its connections, which only the marker labels: {0}")]
    Marker(String),
    #[error("cannot find the outgoing device: {0}")]
    Route(io::Error),
    #[error("{}", refused(.0))]
    Kernel(io::Error),
    #[error(
        "packets at {name} are too long for one more header (MTU {mtu}): `ip link set {name} mtu {MTU_MAX}`"
    )]
    MtuTooLarge { name: String, mtu: u32 },
    #[error(
        "BIG TCP is on at {name} (gso_max_size {gso_max_size}) and breaks such packets: `ip link set {name} \
         gso_max_size {GSO_BYTES_MAX}`"
    )]
    BigTcp { name: String, gso_max_size: u32 },
    #[error(
        "{0} neither segments nor checksums packets with extension headers (ethtool -k: \
         tx-checksum-ipv6 and no tx-checksum-ip-generic)"
    )]
    NoOffload(String),
}

fn by_marker(tag: Scitag, tcp: &TcpStream, pin: &Path) -> Result<(), LabelObstacle> {
    let action = LabelAction::new(tag, Method::Label)?;
    SocketTags::open(pin)
        .and_then(|mut tags| tags.set(tcp, Some(action)))
        .map_err(|error| LabelObstacle::Marker(error.to_string()))
}

/// Returns the tag if packets can carry it as requested.
fn on_packets(mark: Mark, ipv6: bool) -> Result<Scitag, LabelObstacle> {
    if mark.label == PacketLabel::None {
        return Err(LabelObstacle::FirefliesRequested);
    }
    let tag = Scitag::from_number(u64::from(mark.scitag))?;
    tag.fits_on_packets()?;
    match mark.label {
        _ if ipv6 => Ok(tag),
        PacketLabel::Destination => Err(LabelObstacle::NoOptionInIpv4),
        _ => Err(LabelObstacle::NoFlowLabelInIpv4),
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

/// Returns the header that carries `tag` to `peer`, if it harms nothing and this process may set it.
fn option_for(
    tag: Scitag,
    peer: SocketAddr,
    source: Option<IpAddr>,
) -> Result<[u8; 8], LabelObstacle> {
    let header = option::encode_header(0, tag)?;
    let link = egress_link(peer, source).map_err(LabelObstacle::Route)?;
    // A device that reports nothing does no checksums.
    let checksums = Checksums::of(&link.name).unwrap_or_default();
    check_option_harmless(&link, checksums)?;
    destination_option::probe(&header).map_err(LabelObstacle::Kernel)?;
    Ok(header)
}

/// Checks that packets with an extension header leave `link` as well as others.
fn check_option_harmless(link: &LinkAttributes, checksums: Checksums) -> Result<(), LabelObstacle> {
    let name = &link.name;
    if link.mtu > MTU_MAX {
        return Err(LabelObstacle::MtuTooLarge { name: name.clone(), mtu: link.mtu });
    }
    // The kernel removes the temporary jumbo header of a segment only if TCP follows directly: with an
    // option between them broken frames leave (Linux 6.18).
    if link.gso_max_size > GSO_BYTES_MAX {
        let gso_max_size = link.gso_max_size;
        return Err(LabelObstacle::BigTcp { name: name.clone(), gso_max_size });
    }
    // Such devices segment and checksum only TCP directly behind the IPv6 header; the processor does
    // the rest (Linux 04c20a9356f2 and its successor).
    if checksums.ipv6 && !checksums.generic {
        return Err(LabelObstacle::NoOffload(name.clone()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CMS_SCITAG: u16 = 206;

    fn link(gso_max_size: u32) -> LinkAttributes {
        LinkAttributes {
            index: 1,
            name: "eth7".to_owned(),
            ethernet: true,
            mtu: 9000,
            gso_max_size,
        }
    }

    fn describe(scitag: u16, label: PacketLabel, peer: &str) -> String {
        let mark = Some(Mark { scitag, label });
        Labelling::connecting(mark, 0, peer.parse().unwrap(), None).description
    }

    #[test]
    fn devices_that_break_options_are_named() {
        let any = Checksums { generic: true, ipv6: false };
        let check = |link: &LinkAttributes, checksums| {
            check_option_harmless(link, checksums).map_err(|why| why.to_string())
        };
        let direct = Checksums { generic: false, ipv6: true };
        assert_eq!(check(&link(65_536), any), Ok(()));
        assert_eq!(check(&link(65_536), Checksums::default()), Ok(()));
        let why = check(&link(100_000), any).unwrap_err();
        assert!(why.contains("BIG TCP is on at eth7 (gso_max_size 100000)"), "{why}");
        let why = check(&LinkAttributes { mtu: 65_536, ..link(65_536) }, any).unwrap_err();
        assert!(why.contains("packets at eth7 are too long") && why.contains("65536"), "{why}");
        let why = check(&link(65_536), direct).unwrap_err();
        assert!(why.contains("eth7") && why.contains("tx-checksum-ip-generic"), "{why}");
    }

    #[test]
    fn missing_label_names_reason() {
        for label in [PacketLabel::Flow, PacketLabel::Destination] {
            let ipv4 = describe(CMS_SCITAG, label, "192.0.2.1:1");
            assert!(ipv4.starts_with("none: IPv4 packets have no "), "{ipv4}");
            assert_eq!(describe(CMS_SCITAG, label, "[::ffff:192.0.2.1]:1"), ipv4);
            let large = describe(512 << 6 | 1, label, "[::1]:1");
            assert!(large.starts_with("none: owner 512"), "{large}");
        }
        assert_eq!(
            describe(CMS_SCITAG, PacketLabel::None, "[::1]:1"),
            "none: fireflies alone were asked for"
        );
        let nobody = Labelling::connecting(None, 0, "[::1]:1".parse().unwrap(), None);
        assert_eq!(nobody, Labelling::default());
    }

    #[test]
    fn unusable_option_falls_back_to_flow() {
        let mark = Some(Mark { scitag: CMS_SCITAG, label: PacketLabel::Destination });
        // No device has this index.
        let peer = "[fe80::1%2147418112]:1".parse().unwrap();
        let labelling = Labelling::connecting(mark, 33, peer, None);
        assert_eq!((labelling.flow_label, labelling.destination_option), (Some(0x30039), None));
        assert!(
            labelling.description.starts_with("flow: flow label instead of destination option: "),
            "{labelling:?}"
        );
    }
}
