//! IPv6 flow labels of a program's own connections.
//!
//! The label is set before `connect` and is then in every packet that this end sends, retransmissions and super-packets
//! included. It needs no privilege. Accepted connections cannot have a label this way.
//!
//! The label is leased first (IPV6_FLOWLABEL_MGR): without a lease the kernel refuses the connection (EINVAL) as soon as
//! any socket of the network namespace holds an exclusive label. The table of leases is small and shared by the whole
//! host, so a failed lease is ignored.

use std::io;
use std::mem::size_of;
use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

/// `struct in6_flowlabel_req` of include/uapi/linux/in6.h.
#[repr(C)]
struct FlowLabelRequest {
    destination: [u8; 16],
    label: u32,
    action: u8,
    share: u8,
    flags: u16,
    expires_seconds: u16,
    linger_seconds: u16,
    padding: u32,
}

const _: () = assert!(size_of::<FlowLabelRequest>() == 32);

// include/uapi/linux/in6.h; libc does not have these.
const IPV6_FL_A_GET: u8 = 0;
const IPV6_FL_S_ANY: u8 = 255;
const IPV6_FL_F_CREATE: u16 = 1;
const IPV6_FL_F_REMOTE: u16 = 8;

/// Largest label: 20 bits.
pub const FLOW_LABEL_MAX: u32 = 0xF_FFFF;

fn set<T>(socket: &impl AsFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    // SAFETY: the descriptor is open for as long as `socket` is borrowed; pointer and length describe
    // `value`, an integer or a C structure without padding, which lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_IPV6,
            option,
            std::ptr::from_ref(value).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Prepares an IPv6 socket to connect with `label`. Returns the address to connect to, which holds the label.
///
/// # Errors
/// For a label of more than 20 bits, or without kernel support for flow labels.
pub fn prepare(socket: &impl AsFd, peer: SocketAddrV6, label: u32) -> io::Result<SocketAddr> {
    if label > FLOW_LABEL_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("flow label {label:#x} has more than 20 bits"),
        ));
    }
    set(socket, libc::IPV6_FLOWINFO_SEND, &1_i32)?;
    let lease = FlowLabelRequest {
        destination: peer.ip().octets(),
        label: label.to_be(),
        action: IPV6_FL_A_GET,
        share: IPV6_FL_S_ANY,
        flags: IPV6_FL_F_CREATE,
        expires_seconds: 0,
        linger_seconds: 6,
        padding: 0,
    };
    // Fails where the table is full or the namespace restricts labels; the connection works without a lease.
    let _ = set(socket, libc::IPV6_FLOWLABEL_MGR, &lease);
    Ok(SocketAddrV6::new(*peer.ip(), peer.port(), label.to_be(), peer.scope_id()).into())
}

/// Returns the flow label in the packets of a connection's peer, after it has sent data.
///
/// # Errors
/// The error of `getsockopt`.
pub fn of_peer(socket: &impl AsFd) -> io::Result<u32> {
    let mut request = FlowLabelRequest {
        destination: [0; 16],
        label: 0,
        action: IPV6_FL_A_GET,
        share: 0,
        flags: IPV6_FL_F_REMOTE,
        expires_seconds: 0,
        linger_seconds: 0,
        padding: 0,
    };
    let mut length = libc::socklen_t::try_from(size_of::<FlowLabelRequest>()).unwrap_or(0);
    // SAFETY: the descriptor is open for as long as `socket` is borrowed; pointer and length describe a C
    // structure without padding that the kernel may overwrite and that lives until the call returns.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_IPV6,
            libc::IPV6_FLOWLABEL_MGR,
            (&raw mut request).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(u32::from_be(request.label) & FLOW_LABEL_MAX)
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Duration;

    use super::super::connect::{ConnectOptions, connect, listen};
    use super::*;

    #[test]
    fn peer_receives_the_label() {
        let Ok(listener) = listen("[::1]:0".parse().unwrap(), 8) else {
            penstock_testkit::skip(penstock_testkit::Requirement::Machine, "no IPv6 here");
            return;
        };
        for label in [0x3_0038, 0xF_013B, FLOW_LABEL_MAX] {
            let options = ConnectOptions { flow_label: Some(label), ..ConnectOptions::default() };
            let peer = listener.local_addr().unwrap();
            let mut ours = connect(peer, &options, Duration::from_secs(1)).unwrap();
            let (mut theirs, _) = listener.accept().unwrap();
            ours.write_all(b"x").unwrap();
            theirs.read_exact(&mut [0]).unwrap();
            assert_eq!(of_peer(&theirs).unwrap(), label);
        }
    }

    #[test]
    fn label_above_20_bits_is_refused() {
        let Ok(listener) = listen("[::1]:0".parse().unwrap(), 8) else { return };
        let options =
            ConnectOptions { flow_label: Some(FLOW_LABEL_MAX + 1), ..ConnectOptions::default() };
        let peer = listener.local_addr().unwrap();
        assert!(connect(peer, &options, Duration::from_secs(1)).is_err());
    }

    #[test]
    fn ipv4_connects_without_label() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), 8).unwrap();
        let options = ConnectOptions { flow_label: Some(1), ..ConnectOptions::default() };
        connect(listener.local_addr().unwrap(), &options, Duration::from_secs(1)).unwrap();
    }
}
