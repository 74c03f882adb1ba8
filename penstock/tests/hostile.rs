//! Hostile connections to the agent's port: garbage, foreign protocols, slow and idle connections neither crash the agent
//! nor starve a running transfer. Control characters of arguments do not reach the terminal.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::{
    Agent, Random, RunningCommand, TestEnv, assert_no_leftovers, assert_same, run, seeded,
    wait_until, write_tree,
};
use penstock_protocol::PROTOCOL_VERSION;
use socket2::{Domain, Socket, Type};

/// Threads and open files of a process, and its resident memory in KiB.
fn size_of(agent: &Agent) -> (u64, u64, u64) {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.child.id())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let files = fs::read_dir(format!("/proc/{}/fd", agent.child.id())).unwrap().count() as u64;
    (field("Threads:"), files, field("VmRSS:"))
}

/// Start of a TLS 1.3 ClientHello, then random bytes.
fn client_hello(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    bytes.extend(random.bytes(600));
    bytes
}

fn preamble(kind: u8, tls: u8) -> Vec<u8> {
    [&b"PENSTOCK"[..], &PROTOCOL_VERSION.to_be_bytes(), &[kind, tls], &[0; 4]].concat()
}

/// First bytes of an unknown client: random, foreign protocols, malformed preambles.
fn first_words(random: &mut Random) -> Vec<u8> {
    match random.between(0, 10) {
        0 => Vec::new(),
        1 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        2 => client_hello(random),
        3 => preamble(1, 1)[..random.between(1, 16) as usize].to_vec(),
        4 => [preamble(1, 1), client_hello(random)].concat(),
        5 => [preamble(2, 0), random.bytes(500)].concat(),
        6 => [preamble(1, 0), random.bytes(300)].concat(),
        7 => preamble(random.next_bits() as u8, random.next_bits() as u8),
        8 => [preamble(2, 1), random.bytes(100)].concat(),
        _ => {
            let bytes = random.between(1, 5000) as usize;
            random.bytes(bytes)
        }
    }
}

#[test]
fn garbage_is_closed_and_changes_nothing() {
    let mut random = seeded(21);
    let env = TestEnv::new();
    let agent = env.agent();
    let address: SocketAddr = agent.listen.parse().unwrap();
    for _ in 0..300 {
        let mut socket = TcpStream::connect(address).unwrap();
        let _ = socket.write_all(&first_words(&mut random));
        if random.one_in(3) {
            let _ = socket.shutdown(std::net::Shutdown::Write);
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            // Closed or reset, and soon.
            let begun = Instant::now();
            let _ = socket.read_to_end(&mut Vec::new());
            assert!(begun.elapsed() < Duration::from_secs(15));
        }
    }
    let data = env.source.join("data");
    fs::create_dir(&data).unwrap();
    write_tree(&mut random, &data, 1, 20);
    run(env.cp(&["-r", data.to_str().unwrap(), &agent.url("")]).arg("-q")).good();
    assert_same(&data, &env.root.join("data"));
    wait_until("the threads of strangers end", Duration::from_secs(20), || {
        (size_of(&agent).0 < 40).then_some(())
    });
}

/// Opens `count` connections that stay silent, at once or after a few bytes, while a transfer runs.
fn crowd(count: usize) {
    let mut random = seeded(22);
    let env = TestEnv::new();
    let agent = env.agent();
    let address: SocketAddr = agent.listen.parse().unwrap();
    let data = env.source.join("data");
    fs::create_dir(&data).unwrap();
    let bytes = write_tree(&mut random, &data, 4, 200);
    // About three seconds at this rate.
    let rate = (bytes * 8 / 3).to_string();
    let begun = Instant::now();
    let copy = |extra: &[&str]| {
        let mut command = env.cp(&["-r", "--rate", &rate, "--block", "64KiB"]);
        RunningCommand::start(command.args(extra).arg(&data).arg(agent.url("")))
    };
    let client = copy(&[]);
    wait_until("it runs", Duration::from_secs(20), || {
        agent.transfers(&env.state).iter().any(|one| one["state"] == "running").then_some(())
    });
    let mut strangers = Vec::with_capacity(count);
    let (mut most, mut refused) = ((0, 0, 0), 0);
    for number in 0..count {
        match TcpStream::connect_timeout(&address, Duration::from_secs(10)) {
            Ok(mut socket) => {
                let words = if random.one_in(2) { Vec::new() } else { first_words(&mut random) };
                let _ = socket.write_all(&words);
                strangers.push(socket);
            }
            Err(error) => {
                assert!(!error.to_string().contains("too many open files"), "raise RLIMIT_NOFILE");
                refused += 1;
            }
        }
        if number % 100 == 0 {
            let now = size_of(&agent);
            most = (most.0.max(now.0), most.1.max(now.1), most.2.max(now.2));
        }
    }
    let crowded = begun.elapsed();
    let done = client.wait().good();
    println!(
        "{count} strangers in {crowded:?} ({refused} not let in), copied in {:.1} s; at most {} threads, {} files, {} KiB",
        done.json["seconds"].as_f64().unwrap(),
        most.0,
        most.1,
        most.2
    );
    assert!(done.json["seconds"].as_f64().unwrap() < 20.0, "{done:?}");
    assert_same(&data, &env.root.join("data"));
    // A bounded number of handshake threads, and those of the transfer.
    assert!(most.0 < 800, "{most:?}");
    assert!(most.2 < 300 * 1024, "{most:?}");
    // With all connections open the agent accepts a new client.
    fs::write(env.source.join("late"), "late").unwrap();
    let late = env.source.join("late");
    run(env.cp(&[late.to_str().unwrap(), &agent.url("")]).arg("-q")).good();
    assert_eq!(agent.transfers(&env.state).len(), 2);
    drop(strangers);
    assert_no_leftovers(&env.root, &env.state);
}

#[test]
fn two_thousand_idle_connections_starve_none() {
    crowd(2_000);
}

/// Needs 10,000 descriptors here (ulimit -n).
#[test]
fn ten_thousand_idle_connections_starve_none() {
    let limits = fs::read_to_string("/proc/self/limits").unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let soft: u64 = files.split_whitespace().nth(3).unwrap().parse().unwrap_or(u64::MAX);
    if soft < 10_500 {
        return penstock_testkit::skip(
            penstock_testkit::Requirement::Machine,
            &format!("ulimit -n is {soft}, 10500 are needed"),
        );
    }
    crowd(10_000);
}

/// A client that sends a byte now and then is disconnected at the handshake deadline.
#[test]
fn dribbling_clients_are_disconnected() {
    let env = TestEnv::new();
    let agent = env.agent();
    let begun = Instant::now();
    let words = preamble(1, 1);
    let mut sockets: Vec<_> = (0..20).map(|_| TcpStream::connect(&agent.listen).unwrap()).collect();
    let mut said = 0;
    let closed = wait_until("they are cut off", Duration::from_secs(25), || {
        // A byte every half second would go on for eight seconds, and then for minutes in TLS.
        if begun.elapsed() > Duration::from_millis(500 * said as u64) {
            let byte = words.get(said).copied().unwrap_or(22);
            said += 1;
            let mut all = true;
            for socket in &mut sockets {
                all &= socket.write_all(&[byte]).is_err();
            }
            return all.then(|| begun.elapsed());
        }
        None
    });
    assert!(closed < Duration::from_secs(20), "{closed:?}");
    wait_until("their threads end", Duration::from_secs(10), || {
        (size_of(&agent).0 < 20).then_some(())
    });
}

/// A flood from one address evicts its own connections, not an earlier one of another address.
#[test]
fn flood_evicts_only_its_own_connections() {
    let env = TestEnv::new();
    let agent = env.agent();
    let address: SocketAddr = agent.listen.parse().unwrap();
    let honest = TcpStream::connect(address).unwrap();
    let from = |host: [u8; 4]| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((host, 0)).into()).unwrap();
        socket.connect(&address.into()).unwrap();
        TcpStream::from(socket)
    };
    let mut flood: Vec<_> = (0..400).map(|_| from([127, 0, 0, 2])).collect();
    // The first of the flood is closed: its address has most connections.
    flood[0].set_read_timeout(Some(Duration::from_secs(8))).unwrap();
    let begun = Instant::now();
    let _ = flood[0].read(&mut [0]);
    assert!(begun.elapsed() < Duration::from_secs(8));
    // The honest connection is open: it still gets an answer.
    let mut honest = honest;
    honest.write_all(b"PENSTOCK\0\x09\x01\x01\0\0\0\0").unwrap();
    let mut answer = Vec::new();
    honest.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
    honest.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.get(..8), Some(&b"PENSTOCK"[..]), "{answer:?}");
}

#[test]
fn control_characters_are_escaped() {
    let env = TestEnv::new();
    for words in [
        &["cp", "no\u{1b}[2Jfile", "there"][..],
        &["nettest", "no\u{1b}[2Jhost:x"],
        &["plan", "no\u{1b}[2Jfile"],
        &["token", "create", "alice", "--scope", "agent:no\u{1b}[2Jhost"],
        &["no\u{1b}[2Jverb"],
    ] {
        let done = run(env.penstock().args(words));
        assert_ne!(done.code, 0, "{done:?}");
        let line = done.error.strip_suffix('\n').unwrap();
        assert!(!line.contains(char::is_control), "{words:?}: {line:?}");
    }
}
