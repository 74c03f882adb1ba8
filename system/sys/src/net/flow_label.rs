//! IPv6 flow labels of a program's own connections.
//!
//! A label is chosen before a connection is made, and then stands in every packet that this end sends on
//! it, retransmissions and super-packets included. No privilege is needed. An accepted connection
//! cannot be given one this way.
//!
//! A lease first: without one the kernel refuses the connection (EINVAL) as soon as any socket of the
//! network namespace holds a label for itself alone. The table of leases is small and shared by the whole
//! host, so that a lease that is not to be had is gone without.

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

const IPV6_FLOWLABEL_MGR: libc::c_int = 32;
const IPV6_FLOWINFO_SEND: libc::c_int = 33;
const ACTION_GET: u8 = 0;
const SHARE_ANY: u8 = 255;
const FLAG_CREATE: u16 = 1;

/// Largest label: 20 bits.
pub const LABEL_MAX: u32 = 0xF_FFFF;

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

/// Prepares an IPv6 socket to connect with `label`; the address to connect to then holds it.
///
/// # Errors
/// When the label has more than 20 bits, or the kernel knows no flow labels.
pub fn prepare(socket: &impl AsFd, peer: SocketAddrV6, label: u32) -> io::Result<SocketAddr> {
    if label > LABEL_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("flow label {label:#x} has more than 20 bits"),
        ));
    }
    set(socket, IPV6_FLOWINFO_SEND, &1_i32)?;
    let lease = FlowLabelRequest {
        destination: peer.ip().octets(),
        label: label.to_be(),
        action: ACTION_GET,
        share: SHARE_ANY,
        flags: FLAG_CREATE,
        expires_seconds: 0,
        linger_seconds: 6,
        padding: 0,
    };
    // The table is full, or labels are in ranges that this one is not in: it works without, too.
    let _ = set(socket, IPV6_FLOWLABEL_MGR, &lease);
    Ok(SocketAddrV6::new(*peer.ip(), peer.port(), label.to_be(), peer.scope_id()).into())
}

/// The label that the peer of a connection sends, where it has sent something and the kernel tells.
///
/// # Errors
/// Whatever `getsockopt` says.
pub fn of_peer(socket: &impl AsFd) -> io::Result<u32> {
    const FLAG_REMOTE: u16 = 8;
    let mut request = FlowLabelRequest {
        destination: [0; 16],
        label: 0,
        action: ACTION_GET,
        share: 0,
        flags: FLAG_REMOTE,
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
            IPV6_FLOWLABEL_MGR,
            (&raw mut request).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(u32::from_be(request.label) & LABEL_MAX)
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
    fn the_peer_sees_the_label() {
        let Ok(listener) = listen("[::1]:0".parse().unwrap(), 8) else {
            eprintln!("SKIPPED: no IPv6 here");
            return;
        };
        for label in [0x3_0038, 0xF_013B, LABEL_MAX] {
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
    fn a_label_of_more_than_twenty_bits_is_refused() {
        let Ok(listener) = listen("[::1]:0".parse().unwrap(), 8) else { return };
        let options =
            ConnectOptions { flow_label: Some(LABEL_MAX + 1), ..ConnectOptions::default() };
        let peer = listener.local_addr().unwrap();
        assert!(connect(peer, &options, Duration::from_secs(1)).is_err());
    }

    #[test]
    fn ipv4_has_none_and_connects() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), 8).unwrap();
        let options = ConnectOptions { flow_label: Some(1), ..ConnectOptions::default() };
        connect(listener.local_addr().unwrap(), &options, Duration::from_secs(1)).unwrap();
    }
}
