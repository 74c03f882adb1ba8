//! Socket options that matter for bulk transfer, each as one function.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// include/uapi/linux/tcp.h since Linux 6.15; libc does not have it.
const TCP_RTO_MAX_MS: i32 = 44;
const TCP_AVAILABLE_CONGESTION_CONTROL: &str =
    "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// Congestion controls that are available now (loaded modules), in the kernel's order.
#[must_use]
pub fn available_congestion() -> Vec<String> {
    std::fs::read_to_string(TCP_AVAILABLE_CONGESTION_CONTROL)
        .unwrap_or_default()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

/// Sets the congestion control of `socket` (TCP_CONGESTION).
///
/// # Errors
/// The error lists the available ones, or says that this one is reserved for root.
pub fn set_congestion(socket: &impl AsFd, name: &str) -> io::Result<()> {
    SockRef::from(socket).set_tcp_congestion(name.as_bytes()).map_err(|error| {
        let reason = match error.raw_os_error() {
            Some(libc::ENOENT | libc::EINVAL) => format!(
                "this kernel has {}; `modprobe tcp_{name}` may add it",
                available_congestion().join(", ")
            ),
            Some(libc::EPERM) => format!(
                "reserved for root; add it to net.ipv4.tcp_allowed_congestion_control \
                 (available: {})",
                available_congestion().join(", ")
            ),
            _ => error.to_string(),
        };
        io::Error::new(error.kind(), format!("congestion control '{name}': {reason}"))
    })
}

/// Returns the congestion control of `socket`.
///
/// # Errors
/// The error of `getsockopt`.
pub fn congestion(socket: &impl AsFd) -> io::Result<String> {
    let name = SockRef::from(socket).tcp_congestion()?;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// Limits the pacing rate of `socket` (`SO_MAX_PACING_RATE`), enforced by the fq qdisc or, without it, by TCP's own timers.
/// `u64::MAX` removes the limit.
///
/// # Errors
/// The error of `setsockopt`.
pub fn set_max_pacing_rate(socket: &impl AsFd, bytes_per_second: u64) -> io::Result<()> {
    // Since Linux 4.20 the option takes an unsigned long: 64 bits on all supported architectures.
    let length = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or(0);
    // SAFETY: the descriptor is open for as long as `socket` is borrowed; the pointer and length
    // describe an integer without padding that lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const bytes_per_second).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Turns on segmentation offload of a UDP socket: writes leave as datagrams of `bytes` each (`UDP_SEGMENT`), and reads
/// return coalesced datagrams (`UDP_GRO`).
///
/// # Errors
/// The error of `setsockopt`.
pub fn set_udp_segments(socket: &impl AsFd, bytes: u16) -> io::Result<()> {
    set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, i32::from(bytes))?;
    set_int(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Sets the receive buffer in bytes: with CAP_NET_ADMIN beyond `net.core.rmem_max` (`SO_RCVBUFFORCE`).
///
/// # Errors
/// The error of `setsockopt`.
pub fn set_receive_buffer(socket: &impl AsFd, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))
}

/// Sets how long sent data may stay unacknowledged before the kernel closes the connection (`TCP_USER_TIMEOUT`).
///
/// # Errors
/// The error of `setsockopt`.
pub fn set_user_timeout(socket: &impl AsFd, timeout: Duration) -> io::Result<()> {
    SockRef::from(socket).set_tcp_user_timeout(Some(timeout))
}

/// Bounds the retransmission timeout, which doubles with each retransmission (`TCP_RTO_MAX_MS`, 1 s to 120 s). False where
/// the kernel lacks the option (before Linux 6.15).
///
/// # Errors
/// The error of `setsockopt`.
pub fn set_rto_max(socket: &impl AsFd, wait: Duration) -> io::Result<bool> {
    let millis = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
    match set_int(socket, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, millis) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(false),
        result => result.map(|()| true),
    }
}

/// Turns on TCP keepalive: first probe after `idle`, then every 10 s; three unanswered probes close the connection.
///
/// # Errors
/// The error of `setsockopt`.
pub fn set_keepalive(socket: &impl AsFd, idle: Duration) -> io::Result<()> {
    let keepalive =
        TcpKeepalive::new().with_time(idle).with_interval(Duration::from_secs(10)).with_retries(3);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

/// Limits how long a read, or an accept on a listening socket, may block (`SO_RCVTIMEO`).
///
/// # Errors
/// The error of `setsockopt`.
pub fn set_receive_timeout(socket: &impl AsFd, timeout: Duration) -> io::Result<()> {
    SockRef::from(socket).set_read_timeout(Some(timeout))
}

/// Sets fixed socket buffers, and so the TCP window; turns the kernel's autotuning off. The kernel silently caps them at
/// `net.core.rmem_max` and `wmem_max`.
///
/// # Errors
/// The error of `setsockopt`.
pub fn set_window(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    let socket = SockRef::from(socket);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    socket.set_recv_buffer_size(bytes)?;
    socket.set_send_buffer_size(bytes)
}

/// Sets the type of service (`IP_TOS`) and, on IPv6 sockets, the traffic class (`IPV6_TCLASS`) of sent packets. On TCP
/// sockets the kernel keeps its own two bits of ECN.
///
/// # Errors
/// The error of `setsockopt`.
pub fn set_tos(socket: &impl AsFd, tos: u8) -> io::Result<()> {
    let tos = i32::from(tos);
    let ipv6 = set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, tos);
    let ipv4 = set_int(socket, libc::IPPROTO_IP, libc::IP_TOS, tos);
    ipv6.or(ipv4)
}

/// Sets the largest segment (`TCP_MAXSEG`); before the handshake, the peer's segments too.
///
/// # Errors
/// The error of `setsockopt`.
pub fn set_mss(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG, i32::try_from(bytes).unwrap_or(i32::MAX))
}

/// Sets a socket option of type `int`.
pub(super) fn set_int(socket: &impl AsFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `socket` is borrowed; the kernel reads one int.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    fn socket() -> (TcpListener, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener, stream)
    }

    #[test]
    fn congestion_is_set_and_read_back() {
        let (_listener, stream) = socket();
        let name = available_congestion().first().cloned().expect("a congestion control");
        set_congestion(&stream, &name).unwrap();
        assert_eq!(congestion(&stream).unwrap(), name);
    }

    #[test]
    fn rto_max_is_set_where_supported() {
        let (_listener, stream) = socket();
        let mut millis = 0i32;
        let mut length = size_of_val(&millis) as libc::socklen_t;
        if !set_rto_max(&stream, Duration::from_secs(1)).unwrap() {
            penstock_testkit::skip(penstock_testkit::Requirement::Kernel, "needs Linux 6.15");
            return;
        }
        // SAFETY: the socket is open; the kernel writes one int and its length.
        let result = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                TCP_RTO_MAX_MS,
                (&raw mut millis).cast(),
                &raw mut length,
            )
        };
        assert_eq!((result, millis), (0, 1000));
        assert!(set_rto_max(&stream, Duration::from_millis(1)).is_err());
    }

    #[test]
    fn unknown_congestion_error_lists_available() {
        let (_listener, stream) = socket();
        let message = set_congestion(&stream, "warp9").unwrap_err().to_string();
        assert!(message.contains("'warp9'"), "{message}");
        assert!(message.contains(&available_congestion().join(", ")), "{message}");
    }

    #[test]
    fn other_options_are_accepted() {
        let (_listener, stream) = socket();
        set_max_pacing_rate(&stream, 20_000_000_000).unwrap();
        set_max_pacing_rate(&stream, u64::MAX).unwrap();
        set_user_timeout(&stream, Duration::from_secs(30)).unwrap();
        set_keepalive(&stream, Duration::from_secs(30)).unwrap();
        set_window(&stream, 1 << 20).unwrap();
    }
}
