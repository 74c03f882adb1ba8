//! A path MTU that falls under flows with destination options, at a router between two hosts.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use penstock_testkit::raw::uninterrupted;

use crate::lab::{HERE, Lab, inside, labelled, possible, sh};
use crate::shares::rule;

const SERVER: &str = "fd00:78::2";

/// Lowest MTU of IPv6 (RFC 8200 section 5), and bytes of the option.
const MTU_MIN: u32 = 1280;
const OPTION_BYTES: u32 = 8;

/// Sent by TCP; more than the buffers of both ends hold follows the change.
const BLOCK_BYTES: usize = 64 << 10;
const BLOCK_COUNT: usize = 384;
const BLOCKS_BEFORE: usize = 64;

/// Limit of each wait, generous for busy machines.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Time after which a datagram counts as lost.
const DATAGRAM_TIMEOUT: Duration = Duration::from_millis(50);

/// Datagrams that may be lost until the message of the router has arrived.
const LOST_MAX: u32 = 10;

/// A router between `here` and `there`.
struct Router(String);

impl Router {
    fn between(lab: &Lab) -> Self {
        let (here, there, ns) = (&lab.here, &lab.there, format!("{}r", lab.here));
        sh(&format!("ip netns add {ns}"));
        let router = Self(ns);
        let ns = &router.0;
        sh(&format!("ip -n {there} link set pm0 netns {ns}"));
        sh(&format!("ip -n {ns} link add pm1 type veth peer name pm0 netns {there}"));
        for (ns, device, address) in
            [(ns, "pm0", "fd00:77::fe"), (ns, "pm1", "fd00:78::fe"), (there, "pm0", SERVER)]
        {
            sh(&format!("ip -n {ns} addr add {address}/64 dev {device} nodad"));
            sh(&format!("ip -n {ns} link set {device} up"));
        }
        sh(&format!("ip -n {here} -6 route add default via fd00:77::fe"));
        sh(&format!("ip -n {there} -6 route add default via fd00:78::fe"));
        forward(ns);
        router
    }

    /// Lowers the MTU of the link to `there`.
    fn narrow(&self, mtu: u32) {
        sh(&format!("ip -n {} link set pm1 mtu {mtu}", self.0));
    }

    /// Packets, or groups of segments, that it did not forward for their size.
    fn too_big(&self) -> u64 {
        let ns = &self.0;
        let text = inside(ns, || std::fs::read_to_string("/proc/thread-self/net/snmp6")).unwrap();
        let line = text.lines().find(|line| line.starts_with("Ip6InTooBigErrors")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

fn forward(ns: &str) {
    sh(&format!("nsenter --net=/run/netns/{ns} sysctl -q -w net.ipv6.conf.all.forwarding=1"));
}

fn without_room(lab: &Lab) -> u64 {
    lab.status("m")["not_labelled"]["no_room"]["packets"].as_u64().unwrap_or(0)
}

/// Connects `here` to `there`.
fn connect(lab: &Lab) -> (TcpStream, TcpStream) {
    let listener = inside(&lab.there, || TcpListener::bind((SERVER, 0)).unwrap());
    let address = listener.local_addr().unwrap();
    let client = inside(&lab.here, || TcpStream::connect(address).unwrap());
    let server = listener.accept().unwrap().0;
    server.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
    (client, server)
}

/// Sends blocks and checks them; `during` runs before the block of this number.
fn send(connection: (TcpStream, TcpStream), mut during: impl FnMut(usize)) {
    let (mut client, mut server) = connection;
    let sender = std::thread::spawn(move || {
        for number in 0..BLOCK_COUNT {
            client.write_all(&[number as u8; BLOCK_BYTES]).unwrap();
        }
    });
    let mut block = vec![0; BLOCK_BYTES];
    for number in 0..BLOCK_COUNT {
        during(number);
        server.read_exact(&mut block).unwrap();
        assert!(block.iter().all(|byte| *byte == number as u8), "block {number}");
    }
    assert_eq!(uninterrupted(|| server.read(&mut block)).unwrap(), 0);
    sender.join().unwrap();
}

#[test]
fn tcp_follows_falling_path_mtu() {
    if !possible("a falling path MTU") {
        return;
    }
    for (mtu, segmentation, forwarding) in [
        (1499, "on", false),
        (1492, "on", false),
        (1492, "off", false),
        (1492, "on", true),
        (1400, "on", false),
        (1288, "on", false),
        (1287, "on", false),
        (1280, "on", false),
    ] {
        let case = format!("MTU {mtu}, segmentation {segmentation}, forwarding {forwarding}");
        let mut lab = Lab::new();
        let router = Router::between(&lab);
        let here = lab.here.clone();
        if forwarding {
            forward(&here);
        }
        // Segmented behind the marker: a router of the kernel misjudges groups of segments with the option.
        sh(&format!("nsenter --net=/run/netns/{here} ethtool -K pm0 tso off gso {segmentation}"));
        let marker = lab.marker(&here, "m", &rule("destination"), &[]);
        send(connect(&lab), |number| {
            if number == BLOCKS_BEFORE {
                assert_eq!((router.too_big(), without_room(&lab)), (0, 0), "{case}");
                router.narrow(mtu);
            }
        });
        assert!(router.too_big() > 0, "{case}: the path MTU had no effect: {}", lab.status("m"));
        let (too_big, no_room) = (router.too_big(), without_room(&lab));
        if mtu >= MTU_MIN + OPTION_BYTES {
            assert_eq!(no_room, 0, "{case}: {}", lab.status("m"));
        } else {
            assert!(no_room > 0, "{case}: {}", lab.status("m"));
        }
        // A later connection has room from its start.
        let before = labelled(&lab.status("m"));
        send(connect(&lab), |_| {});
        let status = lab.status("m");
        assert_eq!((router.too_big(), without_room(&lab)), (too_big, no_room), "{case}: {status}");
        assert_ne!(labelled(&status), before, "{case}: {status}");
        marker.end();
    }
}

/// Sends a datagram with this number; returns true if it arrives.
fn arrives(client: &UdpSocket, server: &UdpSocket, number: u32) -> bool {
    let mut datagram = [0; 1492 - 48];
    datagram[..4].copy_from_slice(&number.to_be_bytes());
    while let Err(error) = client.send(&datagram) {
        // The first call after a "packet too big" message.
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::MSGSIZE.raw_os_error()));
    }
    loop {
        let mut received = [0; 1500];
        match uninterrupted(|| server.recv(&mut received)) {
            Ok(_) if received[..4] == number.to_be_bytes() => return true,
            // Too late for its turn.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn udp_follows_falling_path_mtu() {
    if !possible("a falling path MTU of UDP") {
        return;
    }
    let mut lab = Lab::new();
    let router = Router::between(&lab);
    let here = lab.here.clone();
    let marker = lab.marker(&here, "m", &rule("destination"), &[]);
    let server = inside(&lab.there, || UdpSocket::bind((SERVER, 0)).unwrap());
    let client = inside(&here, || UdpSocket::bind((HERE, 0)).unwrap());
    client.connect(server.local_addr().unwrap()).unwrap();
    server.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
    assert!((0..100).all(|number| arrives(&client, &server, number)));
    assert_eq!(without_room(&lab), 0);

    // Datagrams fit the new MTU without the option.
    router.narrow(1492);
    server.set_read_timeout(Some(DATAGRAM_TIMEOUT)).unwrap();
    let lost =
        (100..=100 + LOST_MAX).take_while(|number| !arrives(&client, &server, *number)).count();
    assert!(lost > 0 && router.too_big() > 0, "the path MTU had no effect");
    assert!(lost <= LOST_MAX as usize, "{lost} datagrams were lost");
    server.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
    assert!((1_000_000..1_000_100).all(|number| arrives(&client, &server, number)));
    marker.end();
}
