//! Socket options that matter for bulk transfer, each as one function.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Of `linux/tcp.h` since 6.15; libc has no name for it yet.
const TCP_RTO_MAX_MS: i32 = 44;
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// The congestion controls this machine's kernel can use now, in its order.
#[must_use]
pub fn available_congestion() -> Vec<String> {
    std::fs::read_to_string(AVAILABLE)
        .unwrap_or_default()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

/// Chooses the congestion control of `socket`.
///
/// # Errors
/// Names the ones that are available, or says that this one is reserved for root.
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

/// The congestion control `socket` uses.
///
/// # Errors
/// Whatever `getsockopt` says.
pub fn congestion(socket: &impl AsFd) -> io::Result<String> {
    let name = SockRef::from(socket).tcp_congestion()?;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// Paces `socket` at most at this many bytes per second (`SO_MAX_PACING_RATE`), done by the fq
/// queueing discipline or, without it, by TCP's own timers. `u64::MAX` lifts the limit.
///
/// # Errors
/// Whatever `setsockopt` says.
pub fn set_max_pacing_rate(socket: &impl AsFd, bytes_per_second: u64) -> io::Result<()> {
    // Kernels since 4.20 take an unsigned long here, which is 64 bits on all we run on.
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

/// Has a UDP socket send what it is given as datagrams of this many bytes (`UDP_SEGMENT`), and receive datagrams that
/// came together as one (`UDP_GRO`).
///
/// # Errors
/// Whatever `setsockopt` says.
pub fn set_udp_segments(socket: &impl AsFd, bytes: u16) -> io::Result<()> {
    set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, i32::from(bytes))?;
    set_int(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Gives a socket room for this many bytes that arrived and were not taken: beyond the system's limit where it may.
///
/// # Errors
/// Whatever `setsockopt` says.
pub fn set_receive_room(socket: &impl AsFd, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))
}

/// How long sent data may stay unacknowledged before the connection is given up
/// (`TCP_USER_TIMEOUT`).
///
/// # Errors
/// Whatever `setsockopt` says.
pub fn set_user_timeout(socket: &impl AsFd, timeout: Duration) -> io::Result<()> {
    SockRef::from(socket).set_tcp_user_timeout(Some(timeout))
}

/// The longest wait before what stays unacknowledged is sent once more (`TCP_RTO_MAX_MS`, from Linux 6.15 on): 1 s to
/// 120 s. Each wait is twice the one before. Gives whether this kernel can bound it.
///
/// # Errors
/// Whatever `setsockopt` says.
pub fn set_retransmit_wait_max(socket: &impl AsFd, wait: Duration) -> io::Result<bool> {
    let millis = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
    match set_int(socket, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, millis) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(false),
        result => result.map(|()| true),
    }
}

/// Asks a silent peer for a sign of life after `idle`, and gives up when three go unanswered.
///
/// # Errors
/// Whatever `setsockopt` says.
pub fn set_keepalive(socket: &impl AsFd, idle: Duration) -> io::Result<()> {
    let keepalive =
        TcpKeepalive::new().with_time(idle).with_interval(Duration::from_secs(10)).with_retries(3);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

/// How long a read, or an accept on a listening socket, may block.
///
/// # Errors
/// Whatever `setsockopt` says.
pub fn set_receive_timeout(socket: &impl AsFd, timeout: Duration) -> io::Result<()> {
    SockRef::from(socket).set_read_timeout(Some(timeout))
}

/// Fixes the buffers of `socket` and so its window; turns the kernel's own sizing off. The kernel
/// caps it at `net.core.rmem_max` and `wmem_max` without saying so.
///
/// # Errors
/// Whatever `setsockopt` says.
pub fn set_window(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    let socket = SockRef::from(socket);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    socket.set_recv_buffer_size(bytes)?;
    socket.set_send_buffer_size(bytes)
}

/// Sets an option whose value is an int.
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
    fn waits_are_bounded_where_the_kernel_can() {
        let (_listener, stream) = socket();
        let mut millis = 0i32;
        let mut length = size_of_val(&millis) as libc::socklen_t;
        if !set_retransmit_wait_max(&stream, Duration::from_secs(1)).unwrap() {
            println!("skipped: needs Linux 6.15");
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
        assert!(set_retransmit_wait_max(&stream, Duration::from_millis(1)).is_err());
    }

    #[test]
    fn unknown_congestion_lists_what_there_is() {
        let (_listener, stream) = socket();
        let message = set_congestion(&stream, "warp9").unwrap_err().to_string();
        assert!(message.contains("'warp9'"), "{message}");
        assert!(message.contains(&available_congestion().join(", ")), "{message}");
    }

    #[test]
    fn the_other_options_are_accepted() {
        let (_listener, stream) = socket();
        set_max_pacing_rate(&stream, 20_000_000_000).unwrap();
        set_max_pacing_rate(&stream, u64::MAX).unwrap();
        set_user_timeout(&stream, Duration::from_secs(30)).unwrap();
        set_keepalive(&stream, Duration::from_secs(30)).unwrap();
        set_window(&stream, 1 << 20).unwrap();
    }
}
