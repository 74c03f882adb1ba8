//! UDP port of a listener: gives each stream of datagrams a socket of its own.
//!
//! The first datagram of a Penstock stream names its test ([`StreamHello`]). That of an iperf3 stream does not:
//! its test is the one that waits for streams of this address. Only a test with a control connection from the
//! same address gets a socket, so a forged source address gets no data.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_sys::net::{accept_datagrams, bind_datagrams};

use crate::datagram::StreamHello;
use crate::iperf3::wire;

/// Limit of foreign datagrams that a new socket may hold when it is connected.
const STRAYS_MAX: usize = 256;

/// Test that waits for its streams.
#[derive(Debug)]
struct WaitingStreams {
    /// Address of the client.
    client: IpAddr,
    /// Address to which the client's control connection came.
    local: SocketAddr,
    streams: SyncSender<(u32, UdpSocket)>,
    kind: WaitingKind,
    count: u32,
}

/// Protocol of a waiting test.
#[derive(Debug)]
enum WaitingKind {
    /// Number of the next stream.
    Iperf { next: u32 },
    /// Streams that have arrived.
    Penstock { test_id: [u8; 16], arrived: Vec<bool> },
}

impl WaitingStreams {
    /// Number of the stream that a datagram opens, and the answer to it; `None` if it opens none.
    fn opens(&self, datagram: &[u8]) -> Option<(u32, Option<[u8; 4]>)> {
        match &self.kind {
            WaitingKind::Iperf { next } => {
                let reply = wire::reply_to(datagram)?;
                (*next < self.count).then_some((*next, Some(reply)))
            }
            WaitingKind::Penstock { test_id, arrived } => {
                let hello = StreamHello::decode(datagram)?;
                let is_new = arrived.get(hello.index as usize) == Some(&false);
                (hello.test_id == *test_id && is_new).then_some((hello.index, None))
            }
        }
    }

    fn opened(&mut self, index: u32) {
        match &mut self.kind {
            WaitingKind::Iperf { next } => *next = index + 1,
            WaitingKind::Penstock { arrived, .. } => arrived[index as usize] = true,
        }
    }

    const fn is_iperf(&self) -> bool {
        matches!(self.kind, WaitingKind::Iperf { .. })
    }
}

/// UDP socket of a listener.
#[derive(Debug)]
pub(crate) struct DatagramPort {
    socket: UdpSocket,
    waiting: Mutex<Vec<WaitingStreams>>,
    changed: Condvar,
}

/// Registration of a waiting test, removed on drop.
#[derive(Debug)]
pub(crate) struct StreamArrivals<'a> {
    port: &'a DatagramPort,
    client: IpAddr,
    /// Test of Penstock ends; `None` for iperf3.
    test_id: Option<[u8; 16]>,
    /// Streams of running tests, by their number.
    pub(crate) streams: Receiver<(u32, UdpSocket)>,
}

impl Drop for StreamArrivals<'_> {
    fn drop(&mut self) {
        self.port.lock().retain(|test| match (&test.kind, &self.test_id) {
            (WaitingKind::Iperf { .. }, None) => test.client != self.client,
            (WaitingKind::Penstock { test_id, .. }, Some(ours)) => test_id != ours,
            _ => true,
        });
        self.port.changed.notify_all();
    }
}

impl DatagramPort {
    /// Binds `address`; reads block for at most `wait`.
    pub(crate) fn bind(address: SocketAddr, wait: Duration) -> io::Result<Self> {
        let socket = bind_datagrams(address)?;
        socket.set_read_timeout(Some(wait))?;
        Ok(Self { socket, waiting: Mutex::default(), changed: Condvar::new() })
    }

    /// Registers a test between Penstock ends, whose control connection is of `client` to `local`.
    pub(crate) fn expect_test(
        &self,
        test_id: [u8; 16],
        (local, client): (SocketAddr, SocketAddr),
        count: u32,
    ) -> StreamArrivals<'_> {
        let client = client.ip().to_canonical();
        let (sender, streams) = sync_channel(count as usize);
        let kind = WaitingKind::Penstock { test_id, arrived: vec![false; count as usize] };
        self.lock().push(WaitingStreams { client, local, streams: sender, kind, count });
        StreamArrivals { port: self, client, test_id: Some(test_id), streams }
    }

    /// Registers an iperf3 test of `count` streams, whose control connection is of `client` to `local`. Two
    /// iperf3 tests of one address wait for each other until `deadline`; `None` if it passes.
    pub(crate) fn expect(
        &self,
        (local, client): (SocketAddr, SocketAddr),
        count: u32,
        deadline: Instant,
    ) -> Option<StreamArrivals<'_>> {
        let client = client.ip().to_canonical();
        let mut waiting = self.lock();
        while waiting.iter().any(|test| test.is_iperf() && test.client == client) {
            let left = deadline.checked_duration_since(Instant::now())?;
            let woken = self.changed.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        let (sender, streams) = sync_channel(count as usize);
        let kind = WaitingKind::Iperf { next: 0 };
        waiting.push(WaitingStreams { client, local, streams: sender, kind, count });
        Some(StreamArrivals { port: self, client, test_id: None, streams })
    }

    /// Answers hellos until `stop`.
    pub(crate) fn serve(&self, stop: &AtomicBool) {
        let mut bytes = [0; 64];
        while !stop.load(Relaxed) {
            // Errors are those of answers to clients that have gone, and timeouts.
            if let Ok((length, from)) = self.socket.recv_from(&mut bytes) {
                self.answer(&bytes[..length.min(bytes.len())], from);
            }
        }
    }

    /// Answers a hello, and those that the new socket received for other streams.
    fn answer(&self, datagram: &[u8], from: SocketAddr) {
        let mut queue = vec![(datagram.to_vec(), from)];
        let mut answered = 0;
        while let Some((datagram, from)) = queue.pop() {
            answered += 1;
            if answered > STRAYS_MAX {
                return;
            }
            let _ = self.open(&datagram, from, &mut queue);
        }
    }

    /// Opens the stream of a hello and answers it; none where no test expects it.
    fn open(
        &self,
        datagram: &[u8],
        from: SocketAddr,
        strays: &mut Vec<(Vec<u8>, SocketAddr)>,
    ) -> Option<()> {
        let client = from.ip().to_canonical();
        let mut waiting = self.lock();
        let (test, (index, reply)) = waiting
            .iter_mut()
            .filter(|test| test.client == client)
            .find_map(|test| test.opens(datagram).map(|opened| (test, opened)))?;
        let socket = accept_datagrams(test.local, from).ok()?;
        Self::take_strays(&socket, from, strays).ok()?;
        // The test may send as soon as it has its last stream: clients of iperf3 take what arrives first for the answer.
        if let Some(reply) = reply {
            let _ = socket.send(&reply);
        }
        test.streams.try_send((index, socket)).ok()?;
        test.opened(index);
        Some(())
    }

    /// Takes the datagrams of other clients from a new socket, which shared their port for a moment.
    fn take_strays(
        socket: &UdpSocket,
        peer: SocketAddr,
        strays: &mut Vec<(Vec<u8>, SocketAddr)>,
    ) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let mut bytes = [0; 64];
        for _ in 0..STRAYS_MAX {
            match socket.recv_from(&mut bytes) {
                Ok((length, from)) if from != peer => {
                    strays.push((bytes[..length.min(bytes.len())].to_vec(), from));
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        socket.set_nonblocking(false)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<WaitingStreams>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port() -> (DatagramPort, SocketAddr) {
        let port = DatagramPort::bind("127.0.0.1:0".parse().unwrap(), Duration::from_secs(5));
        let port = port.unwrap();
        let address = port.socket.local_addr().unwrap();
        (port, address)
    }

    fn client(address: SocketAddr) -> UdpSocket {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client
    }

    #[test]
    fn each_stream_gets_own_socket() {
        let (port, address) = port();
        let deadline = Instant::now() + Duration::from_secs(5);
        let arrivals = port.expect((address, address), 2, deadline).unwrap();
        let clients = [client(address), client(address), client(address)];
        for one in &clients {
            let from = one.local_addr().unwrap();
            port.answer(b"9876", from);
        }
        for (number, one) in (0..).zip(&clients[..2]) {
            let mut bytes = [0; 4];
            assert_eq!(one.recv(&mut bytes).unwrap(), 4);
            assert_eq!(&bytes, b"6789");
            let (index, socket) = arrivals.streams.try_recv().unwrap();
            assert_eq!(index, number);
            one.send(b"data").unwrap();
            assert_eq!(socket.recv(&mut bytes).unwrap(), 4);
            assert_eq!(&bytes, b"data");
        }
        assert!(arrivals.streams.try_recv().is_err(), "the third was not expected");
    }

    #[test]
    fn hello_of_other_address_is_ignored() {
        let (port, address) = port();
        let deadline = Instant::now() + Duration::from_secs(5);
        let other = "127.0.0.9:9".parse().unwrap();
        let arrivals = port.expect((address, other), 2, deadline).unwrap();
        port.answer(b"9876", client(address).local_addr().unwrap());
        assert!(arrivals.streams.try_recv().is_err());
    }

    #[test]
    fn penstock_hello_names_test_and_stream() {
        let (port, address) = port();
        let (mine, other) = ([1; 16], [2; 16]);
        let arrivals = port.expect_test(mine, (address, address), 2);
        let others = port.expect_test(other, (address, address), 1);
        let from = || client(address).local_addr().unwrap();
        let hello = |test_id, index| StreamHello { test_id, index }.encode();
        port.answer(&hello(mine, 1), from());
        // Again from elsewhere, beyond the last stream, of no test, and for iperf3.
        port.answer(&hello(mine, 1), from());
        port.answer(&hello(mine, 2), from());
        port.answer(&hello([3; 16], 0), from());
        port.answer(b"9876", from());
        assert_eq!(arrivals.streams.try_recv().unwrap().0, 1);
        assert!(arrivals.streams.try_recv().is_err());
        drop(arrivals);
        port.answer(&hello(mine, 0), from());
        port.answer(&hello(other, 0), from());
        assert_eq!(others.streams.try_recv().unwrap().0, 0);
    }

    #[test]
    fn same_address_waits_until_deadline() {
        let (port, address) = port();
        let soon = || Instant::now() + Duration::from_millis(20);
        let first = port.expect((address, address), 1, soon()).unwrap();
        assert!(port.expect((address, address), 1, soon()).is_none());
        drop(first);
        assert!(port.expect((address, address), 1, soon()).is_some());
    }
}
