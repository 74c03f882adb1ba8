//! Priorities of a network device (IEEE 802.1Qaz): flow control (PFC) and the mapping of DSCP, by the netlink of data
//! centre bridging (include/uapi/linux/dcbnl.h).
//!
//! Fails with `Unsupported` where kernel or driver have no data centre bridging, `NotFound` without such a device.

use std::io;

use super::netlink::{NLA_F_NESTED, attributes, put, truncated, u16_at};
use super::netlink_socket::NetlinkSocket;

// include/uapi/linux/rtnetlink.h and dcbnl.h; libc does not have them.
const RTM_GETDCB: u16 = 78;
const DCB_CMD_IEEE_GET: u8 = 21;
const DCB_ATTR_IFNAME: u16 = 1;
const DCB_ATTR_IEEE: u16 = 13;
const DCB_ATTR_IEEE_PFC: u16 = 2;
const DCB_ATTR_IEEE_APP_TABLE: u16 = 3;
const IEEE_8021QAZ_APP_SEL_DSCP: u8 = 5;
/// Size of `struct dcbmsg`.
const DCBMSG_BYTES: usize = 4;
/// Offset of `pfc_en` in `struct ieee_pfc`.
const PFC_ENABLED_OFFSET: usize = 1;

/// Priorities of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DcbPriorities {
    /// Priorities with flow control, in order.
    pub pfc: Vec<u8>,
    /// Values of DSCP and their priorities. A driver that finds one trusts DSCP rather than the VLAN's priority.
    pub dscp: Vec<(u8, u8)>,
}

/// Reads the priorities of `device`.
///
/// # Errors
/// As the module says.
pub fn dcb_priorities(device: &str) -> io::Result<DcbPriorities> {
    let mut body = vec![0, DCB_CMD_IEEE_GET, 0, 0];
    put(&mut body, DCB_ATTR_IFNAME, &[device.as_bytes(), &[0]].concat());
    let answer = NetlinkSocket::open(None)?.request(RTM_GETDCB, &body);
    let answer = answer.map_err(|error| match error.raw_os_error() {
        Some(libc::ENODEV) => io::ErrorKind::NotFound.into(),
        _ => error,
    })?;
    Ok(decode(answer.get(DCBMSG_BYTES..).ok_or_else(truncated)?))
}

fn decode(body: &[u8]) -> DcbPriorities {
    let mut found = DcbPriorities::default();
    let plain = |kind: u16| kind & !NLA_F_NESTED;
    let ieee = attributes(body).find(|(kind, _)| plain(*kind) == DCB_ATTR_IEEE);
    for (kind, value) in attributes(ieee.map(|(_, value)| value).unwrap_or_default()) {
        match plain(kind) {
            DCB_ATTR_IEEE_PFC => {
                let enabled = value.get(PFC_ENABLED_OFFSET).copied().unwrap_or(0);
                found.pfc = (0..8).filter(|priority| enabled & 1 << priority != 0).collect();
            }
            // Each is a `struct dcb_app`: selector, priority, and the protocol in 16 bits.
            DCB_ATTR_IEEE_APP_TABLE => {
                let dscp = attributes(value).filter_map(|(_, app)| {
                    let [selector, priority, ..] = *app else { return None };
                    let value = u8::try_from(u16_at(app, 2)?).ok()?;
                    (selector == IEEE_8021QAZ_APP_SEL_DSCP).then_some((value, priority))
                });
                found.dscp = dscp.collect();
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::netlink::nest;
    use super::*;

    #[test]
    fn flow_control_and_dscp_are_decoded() {
        let mut body = Vec::new();
        put(&mut body, DCB_ATTR_IFNAME, b"ens1\0");
        nest(&mut body, DCB_ATTR_IEEE, |ieee| {
            let mut pfc = [0; 136];
            pfc[..2].copy_from_slice(&[8, 0b0000_1001]);
            put(ieee, DCB_ATTR_IEEE_PFC, &pfc);
            nest(ieee, DCB_ATTR_IEEE_APP_TABLE, |table| {
                // A port of TCP, then DSCP 26 to priority 3.
                put(table, 1, &[2, 4, 0xBC, 0x0C]);
                put(table, 1, &[[5, 3].as_slice(), &26_u16.to_ne_bytes()].concat());
            });
        });
        assert_eq!(decode(&body), DcbPriorities { pfc: vec![0, 3], dscp: vec![(26, 3)] });
        assert_eq!(decode(&[]), DcbPriorities::default());
    }

    #[test]
    fn malformed_messages_do_not_panic() {
        for length in 0..80 {
            for byte in [0, 1, 3, 4, 8, 13, 255] {
                let _ = decode(&vec![byte; length]);
            }
        }
    }

    #[test]
    fn devices_without_bridging_are_unsupported() {
        let error = dcb_priorities("lo").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
    }
}
