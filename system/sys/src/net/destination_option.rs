//! The IPv6 Destination Options header of a program's own connections.
//!
//! Set on a socket (IPV6_DSTOPTS), the header is in every packet that this end sends from then on. TCP reduces its segment
//! size accordingly, and segmentation offload keeps working. Not on accepted connections: their segment size does not
//! change (net/ipv6/ipv6_sockglue.c, ipv6_update_options), and full segments never leave. The call needs CAP_NET_RAW in
//! the user namespace that owns the network namespace.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use socket2::{Domain, Protocol, Socket, Type};

/// Adds `header`, a whole Destination Options header, to all packets of `socket` from now on. The kernel sets its Next
/// Header field.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_RAW; `InvalidInput` for a malformed header.
pub fn set(socket: &impl AsFd, header: &[u8; 8]) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `socket` is borrowed; pointer and length describe
    // `header`, which lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_IPV6,
            libc::IPV6_DSTOPTS,
            header.as_ptr().cast(),
            8,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets `header` on an unconnected socket: succeeds if this process may set it.
///
/// # Errors
/// As [`set`].
pub fn probe(header: &[u8; 8]) -> io::Result<()> {
    set(&Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?, header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_with_wrong_length_is_refused() {
        let header = [0, 0, 0x1E, 3, 0, 3, 14, 0];
        match probe(&header) {
            Err(error) => penstock_testkit::skip(
                penstock_testkit::Requirement::Kernel,
                &format!("options cannot be set here: {error}"),
            ),
            Ok(()) => {
                let longer = [0, 1, 0x1E, 3, 0, 3, 14, 0];
                let error = probe(&longer).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            }
        }
    }
}
