//! The IPv6 Destination Options header of a program's own connections.
//!
//! Set on a socket it stands in every packet that this end sends from then on. TCP makes its segments smaller
//! by as much, and segmentation stays the kernel's or the device's. Not so on accepted connections: segments
//! stay as long as they were (net/ipv6/ipv6_sockglue.c, ipv6_update_options), and full ones never leave. It
//! needs CAP_NET_RAW in the user namespace that owns the network namespace, at the call alone.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use socket2::{Domain, Protocol, Socket, Type};

const IPV6_DSTOPTS: libc::c_int = 59;

/// Puts `header`, a whole Destination Options header, into everything that `socket` sends from now on. The
/// kernel fills in which header follows.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_RAW; `InvalidInput` when it is no such header.
pub fn set(socket: &impl AsFd, header: &[u8; 8]) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `socket` is borrowed; pointer and length describe
    // `header`, which lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_IPV6,
            IPV6_DSTOPTS,
            header.as_ptr().cast(),
            8,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether this process may set `header`.
///
/// # Errors
/// As [`set`].
pub fn try_out(header: &[u8; 8]) -> io::Result<()> {
    set(&Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?, header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_says_it_is_longer_is_refused() {
        let header = [0, 0, 0x1E, 3, 0, 3, 14, 0];
        match try_out(&header) {
            Err(error) => eprintln!("SKIPPED: options cannot be set here: {error}"),
            Ok(()) => {
                let longer = [0, 1, 0x1E, 3, 0, 3, 14, 0];
                let error = try_out(&longer).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            }
        }
    }
}
