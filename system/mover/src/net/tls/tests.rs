//! Tests against rustls and against this implementation, over socket pairs.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use penstock_identity::{Identity, tls_client_config};
use rustls::{ClientConnection, ServerConnection, StreamOwned};

use super::*;

type Notice<'a> = (ContentType, &'a [u8]);

struct Configs {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

fn configs() -> Configs {
    let identity = Identity::generate().expect("randomness");
    let client = tls_client_config(identity.fingerprint(), None).expect("a configuration");
    Configs { server: identity.tls_server_config(), client }
}

fn sockets() -> (Transport, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    (Transport::Local(ours), theirs)
}

/// Both ends use this implementation.
fn pair() -> ((Tls, Transport), (Tls, Transport)) {
    let configs = configs();
    let (mut near, far) = sockets();
    let accepting = thread::spawn(move || {
        let mut far = Transport::Local(far);
        Tls::accept(&mut far, configs.server).map(|tls| (tls, far)).expect("a handshake")
    });
    let tls = Tls::connect(&mut near, configs.client).expect("a handshake");
    ((tls, near), accepting.join().expect("no panic"))
}

fn rustls_client(
    configs: &Configs,
    socket: UnixStream,
) -> StreamOwned<ClientConnection, UnixStream> {
    let name = ServerName::try_from("penstock").expect("a name");
    let connection = ClientConnection::new(Arc::clone(&configs.client), name).expect("a client");
    StreamOwned::new(connection, socket)
}

fn read_exact(tls: &mut Tls, from: &mut Transport, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        match tls.read(from, buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => buffer = &mut buffer[count..],
        }
    }
    Ok(())
}

fn send(tls: &mut Tls, to: &mut Transport, bytes: &[u8]) {
    tls.write_all(to, bytes).and_then(|()| tls.flush(to)).expect("an open connection");
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n * 31 + n / 251) as u8).collect()
}

#[test]
fn reads_of_any_size_round_trip() {
    let ((mut near, mut to), (mut far, mut from)) = pair();
    let sent = content(1_000_003);
    let expected = sent.clone();
    let sending = thread::spawn(move || {
        for part in sent.chunks(77_777) {
            send(&mut near, &mut to, part);
        }
        near.close(&mut to).expect("an open connection");
    });
    let mut received = vec![0; expected.len()];
    let mut at = 0;
    for bytes in [1, 80, 16_384, 16_385, 5, 300_000].into_iter().cycle() {
        let end = (at + bytes).min(received.len());
        read_exact(&mut far, &mut from, &mut received[at..end]).expect("all of it");
        at = end;
        if at == received.len() {
            break;
        }
    }
    assert!(received == expected, "other bytes arrived");
    assert_eq!(far.read(&mut from, &mut [0; 10]).expect("an orderly end"), 0);
    assert_eq!(far.read(&mut from, &mut [0; 10]).expect("and still"), 0);
    sending.join().expect("no panic");
}

#[test]
fn key_is_updated_at_record_limit() {
    let ((mut near, mut to), (mut far, mut from)) = pair();
    near.keys.records_max = 3;
    for number in 0..20_u8 {
        send(&mut near, &mut to, &[number; 40]);
        assert!(near.keys.sending.records() < 3, "a key that is too old");
        let mut received = [0; 40];
        read_exact(&mut far, &mut from, &mut received).expect("it follows");
        assert_eq!(received, [number; 40]);
    }
}

#[test]
fn rustls_client_can_request_key_update() {
    let configs = configs();
    let (mut transport, socket) = sockets();
    let mut client = rustls_client(&configs, socket);
    let asking = thread::spawn(move || {
        let mut answer = vec![0; 50_000];
        for round in 0..3 {
            client.write_all(&content(40_000)).expect("an open connection");
            client.conn.refresh_traffic_keys().expect("TLS 1.3");
            client.write_all(&[round]).expect("an open connection");
            client.read_exact(&mut answer).expect("an answer");
            assert!(answer == content(50_000), "another answer");
        }
        client.conn.send_close_notify();
        client.flush().expect("an open connection");
        assert_eq!(client.read(&mut answer).expect("an orderly end"), 0);
    });
    let mut tls = Tls::accept(&mut transport, configs.server).expect("a handshake");
    for round in 0..3 {
        let mut request = vec![0; 40_001];
        read_exact(&mut tls, &mut transport, &mut request).expect("a request");
        assert!(
            request[..40_000] == content(40_000) && request[40_000] == round,
            "another request"
        );
        assert!(tls.owes_update);
        send(&mut tls, &mut transport, &content(50_000));
        assert!(!tls.owes_update);
    }
    assert_eq!(tls.read(&mut transport, &mut [0]).expect("an orderly end"), 0);
    tls.close(&mut transport).expect("an open connection");
    asking.join().expect("no panic");
}

#[test]
fn rustls_server_tickets_are_ignored() {
    let configs = configs();
    let (mut transport, mut socket) = sockets();
    let mut config = (*configs.server).clone();
    config.send_tls13_tickets = 3;
    let serving = thread::spawn(move || {
        let mut connection = ServerConnection::new(Arc::new(config)).expect("a server");
        connection.complete_io(&mut socket).expect("a handshake");
        let mut server = StreamOwned::new(connection, socket);
        server.write_all(&content(100_000)).expect("an open connection");
        let mut answer = [0; 3];
        server.read_exact(&mut answer).expect("an answer");
        answer
    });
    let mut tls = Tls::connect(&mut transport, configs.client).expect("a handshake");
    let mut received = vec![0; 100_000];
    read_exact(&mut tls, &mut transport, &mut received).expect("all of it");
    assert!(received == content(100_000), "other bytes arrived");
    send(&mut tls, &mut transport, b"yes");
    assert_eq!(&serving.join().expect("no panic"), b"yes");
    let gone = tls.read(&mut transport, &mut [0]).expect_err("cut off without a word");
    assert_eq!(gone.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn unexpected_certificate_is_refused() {
    let (configs, others) = (configs(), configs());
    let (mut near, far) = sockets();
    let accepting =
        thread::spawn(move || Tls::accept(&mut Transport::Local(far), configs.server).map(|_| ()));
    let refused = Tls::connect(&mut near, others.client).expect_err("a stranger");
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    let told = accepting.join().expect("no panic").expect_err("an alert");
    assert_eq!(told.kind(), io::ErrorKind::InvalidData);
}

#[test]
fn damaged_record_sends_alert() {
    let ((mut near, mut to), (mut far, mut from)) = pair();
    let mut record = vec![0; 1000 + record::OVERHEAD_BYTES];
    near.keys.sending.seal(ContentType::ApplicationData, &content(1000), &mut record);
    record[500] ^= 1;
    to.write_all(&record).expect("an open connection");
    let error = far.read(&mut from, &mut [0; 5000]).expect_err("a flipped bit");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    let error = near.read(&mut to, &mut [0; 10]).expect_err("an alert");
    assert!(error.to_string().contains("BadRecordMac"), "{error}");
}

#[test]
fn protocol_violations_are_refused() {
    let handshake = ContentType::Handshake;
    let cases: [(&str, &[Notice<'_>]); 7] = [
        ("no such message", &[(handshake, &[1, 0, 0, 0])]),
        ("a key update that asks for something else", &[(handshake, &[24, 0, 0, 1, 2])]),
        ("two messages across a change of keys", &[(handshake, &[24, 0, 0, 1, 0, 24])]),
        ("a message without an end", &[(handshake, &[4, 0xff, 0xff, 0xff])]),
        (
            "data within a message",
            &[(handshake, &[24, 0, 0]), (ContentType::ApplicationData, b"data")],
        ),
        ("an empty message", &[(handshake, &[])]),
        ("a change of ciphers", &[(ContentType::ChangeCipherSpec, &[1])]),
    ];
    for (what, records) in cases {
        for room in [1, 20_000] {
            let ((mut near, mut to), (mut far, mut from)) = pair();
            for (kind, content) in records {
                near.notify(*kind, content);
            }
            near.flush(&mut to).expect("an open connection");
            let error = far.read(&mut from, &mut vec![0; room]).expect_err(what);
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{what}");
        }
    }
}

#[test]
fn fragmented_message_is_reassembled() {
    let ((mut near, mut to), (mut far, mut from)) = pair();
    for piece in [&[24, 0][..], &[0, 1], &[0]] {
        near.notify(ContentType::Handshake, piece);
    }
    near.keys.update_sending().expect("TLS 1.3");
    send(&mut near, &mut to, b"new");
    let mut received = [0; 3];
    read_exact(&mut far, &mut from, &mut received).expect("it follows");
    assert_eq!(&received, b"new");
}

#[test]
fn plaintext_and_oversized_records_are_refused() {
    for record in [&[21, 3, 3, 0, 2, 1, 0][..], &[23, 3, 3, 0xff, 0xff]] {
        let (_, (mut far, mut from)) = {
            let ((near, mut to), far) = pair();
            to.write_all(record).expect("an open connection");
            ((near, to), far)
        };
        let error = far.read(&mut from, &mut [0; 10]).expect_err("not protected");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}

#[test]
fn full_socket_does_not_block_writer() {
    let ((mut near, mut to), (mut far, mut from)) = pair();
    to.set_nonblocking(true).expect("a socket");
    let sent = content(3_000_000);
    let mut taken = 0;
    while let Ok(count) = near.write(&mut to, &sent[taken..]) {
        taken += count;
    }
    assert!(taken < sent.len() && near.wants_write(), "a socket without end");
    let writing = thread::spawn(move || {
        to.set_nonblocking(false).expect("a socket");
        send(&mut near, &mut to, &sent[taken..]);
        (near, sent)
    });
    let mut received = vec![0; 3_000_000];
    read_exact(&mut far, &mut from, &mut received).expect("all of it");
    let (near, sent) = writing.join().expect("no panic");
    assert!(!near.wants_write() && received == sent, "other bytes arrived");
}
