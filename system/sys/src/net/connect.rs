//! TCP connection setup with the options that must be set before the handshake: buffers (and so the window scale),
//! congestion control, source address, flow label.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::{destination_option, flow_label, options};

/// Socket options set before the handshake.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// Source address; selects the interface.
    pub source: Option<IpAddr>,
    /// Congestion control; `None` is the system's default.
    pub congestion: Option<String>,
    /// Fixed socket buffers in bytes; `None` leaves them to the kernel's autotuning.
    pub window_bytes: Option<u32>,
    /// IPv6 flow label of all sent packets; ignored for IPv4.
    pub flow_label: Option<u32>,
    /// IPv6 Destination Options header of all sent packets; ignored for IPv4.
    pub destination_option: Option<[u8; 8]>,
}

/// Connects to `peer` within `timeout`.
///
/// # Errors
/// The kernel's error, with the name of the option that it refused.
pub fn connect(
    peer: SocketAddr,
    options: &ConnectOptions,
    timeout: Duration,
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(peer), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(source) = options.source {
        bind_source(&socket, source, peer)?;
    }
    if let Some(name) = &options.congestion {
        options::set_congestion(&socket, name)?;
    }
    if let Some(bytes) = options.window_bytes {
        options::set_window(&socket, bytes)?;
    }
    if let (Some(header), SocketAddr::V6(_)) = (&options.destination_option, peer) {
        destination_option::set(&socket, header)?;
    }
    let peer = match (options.flow_label, peer) {
        (Some(label), SocketAddr::V6(to)) => flow_label::prepare(&socket, to, label)?,
        _ => peer,
    };
    socket.connect_timeout(&peer.into(), timeout)?;
    Ok(socket.into())
}

/// Listens on `address`. `[::]` accepts IPv4 clients as well; port 0 lets the kernel choose.
///
/// # Errors
/// The kernel's error.
pub fn listen(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

fn bind_source(socket: &Socket, source: IpAddr, peer: SocketAddr) -> io::Result<()> {
    if source.is_ipv4() != peer.is_ipv4() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("source address {source} and {} are of different families", peer.ip()),
        ));
    }
    socket.bind(&SocketAddr::new(source, 0).into()).map_err(|error| {
        let reason = match error.kind() {
            io::ErrorKind::AddrNotAvailable => "not an address of this machine".to_owned(),
            _ => error.to_string(),
        };
        io::Error::new(error.kind(), format!("source address {source}: {reason}"))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ONE_SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn source_and_congestion_are_applied() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), 8).unwrap();
        let name = options::available_congestion().remove(0);
        let options = ConnectOptions {
            source: Some("127.0.0.2".parse().unwrap()),
            congestion: Some(name.clone()),
            window_bytes: Some(1 << 18),
            ..ConnectOptions::default()
        };
        let stream = connect(listener.local_addr().unwrap(), &options, ONE_SECOND).unwrap();
        assert_eq!(stream.local_addr().unwrap().ip(), options.source.unwrap());
        assert_eq!(options::congestion(&stream).unwrap(), name);
    }

    #[test]
    fn foreign_source_error_names_address() {
        let options = ConnectOptions {
            source: Some("192.0.2.1".parse().unwrap()),
            ..ConnectOptions::default()
        };
        let error = connect("127.0.0.1:9".parse().unwrap(), &options, ONE_SECOND).unwrap_err();
        assert!(error.to_string().contains("192.0.2.1"), "{error}");
        let options =
            ConnectOptions { source: Some("::1".parse().unwrap()), ..ConnectOptions::default() };
        let error = connect("127.0.0.1:9".parse().unwrap(), &options, ONE_SECOND).unwrap_err();
        assert!(error.to_string().contains("different families"), "{error}");
    }

    #[test]
    fn unspecified_ipv6_listener_accepts_ipv4() {
        let Ok(listener) = listen("[::]:0".parse().unwrap(), 8) else {
            return;
        };
        let port = listener.local_addr().unwrap().port();
        let peer = SocketAddr::from(([127, 0, 0, 1], port));
        connect(peer, &ConnectOptions::default(), ONE_SECOND).unwrap();
    }
}
