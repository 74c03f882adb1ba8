//! Truncated packet headers: parsing ends, finds nothing that the longer packet lacks, and is deterministic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_flows::packet::{ParseEnd, Packet, FirstHeader};

fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let start = match which % 3 {
        0 => FirstHeader::Ethernet,
        1 => FirstHeader::Ip,
        _ => FirstHeader::Mpls,
    };
    let whole = Packet::read(start, bytes);
    let cut = Packet::read(start, &bytes[..bytes.len() * usize::from(*which) / 256]);
    // Fields of the truncated packet equal those of the whole packet.
    assert!(cut.macs.is_none() || cut.macs == whole.macs);
    assert!(cut.vlan.is_none() || cut.vlan == whole.vlan);
    assert!(cut.mpls_label.is_none() || cut.mpls_label == whole.mpls_label);
    if let (Some(cut), Some(whole)) = (cut.outer, whole.outer) {
        assert_eq!((cut.source, cut.destination), (whole.source, whole.destination));
        assert_eq!(cut.flow_label, whole.flow_label);
    }
    assert!(whole.outer.is_some() || cut.outer.is_none());
    assert!(whole.inner.is_none() || whole.tunnel.is_some());
    if whole.ended == ParseEnd::Fragment {
        assert!(whole.ip().unwrap().fragment);
    }
    if let Some(ip) = whole.ip() {
        assert_eq!(ip.flow().reversed().reversed(), ip.flow());
    }
});
