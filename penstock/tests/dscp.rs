//! DSCP of packets: copies and network tests between two namespaces, by what tcpdump captures.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use penstock_testkit::raw::free_port;
use penstock_testkit::{Requirement, skip};
use serde_json::Value;

use common::capture::{self, CapturedPacket};
use common::veth::{FAR, FAR_IPV4, NEAR, NEAR_IPV4, NamespacePair};
use common::{
    Agent, CommandOutcome, PENSTOCK, TestEnv, assert_same, fails, run, seeded, wait_until,
    write_file,
};

/// Addresses of the near and the far end by family.
const ADDRESSES: [(&str, &str); 2] = [(NEAR, FAR), (NEAR_IPV4, FAR_IPV4)];

/// Code points, with their numbers.
const LOWER_EFFORT: (&str, u8) = ("le", 1);
const ASSURED_31: (&str, u8) = ("af31", 26);
const BEST_EFFORT: u8 = 0;

/// Data of one direction after which every packet of a stream carries the DSCP: the handshakes are over.
const HANDSHAKE_BYTES_MAX: usize = 64 << 10;

fn bracketed(address: &str) -> String {
    SocketAddr::new(address.parse().expect("an address"), 0).to_string()
}

/// Agents in both namespaces, and a client in the near one that has logged in to both.
struct Site {
    pair: NamespacePair,
    near: Agent,
    near_env: TestEnv,
    far: Agent,
    far_env: TestEnv,
    data: PathBuf,
}

impl Site {
    /// `config` is that of the far agent.
    fn new(addresses: (&str, &str), config: &str) -> Option<Self> {
        let pair = NamespacePair::new(&["tcpdump"])?;
        let (near_env, far_env) = (TestEnv::new(), TestEnv::new());
        let data = near_env.root.join("data");
        fs::create_dir(&data).unwrap();
        write_file(&mut seeded(31), &data.join("one"), 6 << 20);
        let start = |env: &TestEnv, space: &str, address: &str, config: &str| {
            let file = env.path("penstock.toml");
            fs::write(&file, config).unwrap();
            let mut serve = env.penstock();
            serve.args(["serve", "--http", "none", "--json", "--config"]).arg(file);
            serve.arg("--root").arg(&env.root).args(["--listen", &bracketed(address)]);
            Agent::spawn(NamespacePair::inside(space, &serve))
        };
        let near = start(&near_env, &pair.near, addresses.0, "");
        let far = start(&far_env, &pair.far, addresses.1, config);
        let site = Self { pair, near, near_env, far, far_env, data };
        for (agent, env) in [(&site.near, &site.near_env), (&site.far, &site.far_env)] {
            let client = common::penstock(&site.near_env.path("client"));
            site.pair.log_in(client, agent, &env.state);
        }
        Some(site)
    }

    fn copy(&self, flags: &[&str], from: &str, to: &str) -> CommandOutcome {
        let mut command = common::penstock(&self.near_env.path("client"));
        command.args(["cp", "--json", "-r", "--streams", "2", "--block", "256KiB"]);
        // Slow enough that both streams carry data.
        command.args(["--rate", "200M"]).args(flags).args([from, to]);
        run(NamespacePair::inside(&self.pair.near, &command))
    }

    fn push(&self, flags: &[&str]) -> CommandOutcome {
        let _ = fs::remove_dir_all(self.far_env.root.join("data"));
        self.copy(flags, self.data.to_str().unwrap(), &self.far.url(""))
    }

    fn pull(&self, flags: &[&str]) -> CommandOutcome {
        let back = self.near_env.path("back");
        let _ = fs::remove_dir_all(&back);
        fs::create_dir(&back).unwrap();
        self.copy(flags, &self.far.url("data"), back.to_str().unwrap())
    }

    /// Copy from the near agent to the far one.
    fn copy_between(&self, flags: &[&str]) -> CommandOutcome {
        let _ = fs::remove_dir_all(self.far_env.root.join("data"));
        self.copy(flags, &self.near.url("data"), &self.far.url(""))
    }

    /// Streams of data in the packets that pass while `work` runs.
    fn capture<T>(&self, work: impl FnOnce() -> T) -> (T, Vec<CapturedStream>) {
        let file = self.near_env.path("capture.pcap");
        let done = self.pair.capture("tcp or udp", &file, work);
        (done, data_streams(&file))
    }
}

/// Packets of a connection with much data, once its handshakes are over.
#[derive(Debug)]
struct CapturedStream {
    /// End that sends the data.
    sender: IpAddr,
    /// DSCP of the packets of the sender, and of the receiver, with their numbers.
    sent: BTreeMap<u8, usize>,
    acknowledged: BTreeMap<u8, usize>,
    /// Packets with ECT(0), which the kernel sets.
    ecn_capable: usize,
}

fn data_streams(file: &Path) -> Vec<CapturedStream> {
    let mut connections: BTreeMap<[SocketAddr; 2], Vec<CapturedPacket>> = BTreeMap::new();
    for packet in capture::read(file).into_iter().filter(|packet| !packet.is_end) {
        let mut ends = [packet.source, packet.destination];
        ends.sort_unstable();
        connections.entry(ends).or_default().push(packet);
    }
    let bytes_from = |packets: &[CapturedPacket], end: SocketAddr| -> usize {
        packets.iter().filter(|one| one.source == end).map(|one| one.data_bytes).sum()
    };
    let mut streams = Vec::new();
    for (ends, packets) in connections {
        for sender in ends {
            if bytes_from(&packets, sender) < 4 * HANDSHAKE_BYTES_MAX {
                continue;
            }
            let mut stream = CapturedStream {
                sender: sender.ip(),
                sent: BTreeMap::new(),
                acknowledged: BTreeMap::new(),
                ecn_capable: 0,
            };
            let mut passed = 0;
            for packet in &packets {
                let is_sent = packet.source == sender;
                passed += if is_sent { packet.data_bytes } else { 0 };
                if passed > HANDSHAKE_BYTES_MAX {
                    let side = if is_sent { &mut stream.sent } else { &mut stream.acknowledged };
                    *side.entry(packet.dscp).or_default() += 1;
                    stream.ecn_capable += usize::from(packet.ecn == 2);
                }
            }
            streams.push(stream);
        }
    }
    streams
}

/// Asserts that data comes from `sender` with the DSCP `sent`, and acknowledgements with `acknowledged`.
#[track_caller]
fn assert_dscp(streams: &[CapturedStream], sender: &str, sent: u8, acknowledged: Option<u8>) {
    assert!(!streams.is_empty(), "no stream of data was captured");
    for stream in streams {
        assert_eq!(stream.sender, sender.parse::<IpAddr>().unwrap(), "{streams:?}");
        assert_eq!(stream.sent.keys().collect::<Vec<_>>(), [&sent], "{streams:?}");
        if let Some(acknowledged) = acknowledged {
            let seen: Vec<_> = stream.acknowledged.keys().collect();
            assert_eq!(seen, [&acknowledged], "{streams:?}");
        }
    }
}

#[test]
fn copies_carry_dscp_both_ways() {
    for addresses in ADDRESSES {
        let Some(site) = Site::new(addresses, "") else { return };
        site.pair.on_both(|_| "sysctl -q -w net.ipv4.tcp_ecn=1".to_owned());
        let (near, far) = addresses;
        for protect in ["full", "integrity"] {
            let flags = ["--dscp", LOWER_EFFORT.0, "--protect", protect];
            let (done, streams) = site.capture(|| site.push(&flags));
            done.good();
            assert_dscp(&streams, near, LOWER_EFFORT.1, Some(LOWER_EFFORT.1));
            assert!(streams.iter().all(|stream| stream.ecn_capable > 0), "{streams:?}");
            let (done, streams) = site.capture(|| site.pull(&flags));
            done.good();
            assert_dscp(&streams, far, LOWER_EFFORT.1, Some(LOWER_EFFORT.1));
            assert!(streams.iter().all(|stream| stream.ecn_capable > 0), "{streams:?}");
            assert_same(&site.data, &site.near_env.path("back/data"));
        }
        // Without the option packets are as before.
        let (done, streams) = site.capture(|| site.push(&[]));
        done.good();
        assert_dscp(&streams, near, BEST_EFFORT, Some(BEST_EFFORT));
    }
}

#[test]
fn copy_between_agents_carries_dscp() {
    for addresses in ADDRESSES {
        let Some(site) = Site::new(addresses, "") else { return };
        let (done, streams) = site.capture(|| site.copy_between(&["--dscp", LOWER_EFFORT.0]));
        done.good();
        assert_dscp(&streams, addresses.0, LOWER_EFFORT.1, Some(LOWER_EFFORT.1));
        assert_same(&site.data, &site.far_env.root.join("data"));
    }
}

#[test]
fn agent_sends_with_its_own_dscp() {
    let Some(site) = Site::new((NEAR, FAR), "[agent]\ndscp = \"af31\"\n") else { return };
    let (done, streams) = site.capture(|| site.push(&[]));
    done.good();
    assert_dscp(&streams, NEAR, BEST_EFFORT, Some(ASSURED_31.1));
    let (done, streams) = site.capture(|| site.pull(&[]));
    done.good();
    assert_dscp(&streams, FAR, ASSURED_31.1, Some(BEST_EFFORT));
    let (done, streams) = site.capture(|| site.pull(&["--dscp", ASSURED_31.0]));
    done.good();
    assert_dscp(&streams, FAR, ASSURED_31.1, Some(ASSURED_31.1));
}

#[test]
fn disallowed_dscp_is_refused() {
    let Some(site) = Site::new((NEAR, FAR), "[agent]\ndscp = \"af31\"\n") else { return };
    let refused = |done: CommandOutcome| {
        fails(&done, 5, "clients may not choose DSCP ef here, but af31, default, le: its operator");
    };
    refused(site.push(&["--dscp", "ef"]));
    assert!(!site.far_env.root.join("data").exists());
    site.push(&[]).good();
    refused(site.pull(&["--dscp", "46"]));
    // The agents of a copy decide each for itself: the near one would send.
    fails(&site.copy_between(&["--dscp", "af31"]), 5, "DSCP af31 here, but default, le:");
    let config = "[agent]\ndscp = \"af31\"\n[limits]\ndscp = [\"ef\"]\n";
    let site = Site::new((NEAR, FAR), config).expect("as before");
    site.push(&["--dscp", "ef"]).good();
    fails(&site.push(&["--dscp", "le"]), 5, "DSCP le here, but af31, ef:");
}

#[test]
fn impossible_dscp_is_refused() {
    let env = TestEnv::new();
    write_file(&mut seeded(1), &env.source.join("file"), 1);
    let source = env.source.join("file").to_str().unwrap().to_owned();
    let target = env.path("target").to_str().unwrap().to_owned();
    fails(&run(env.cp(&["--dscp", "gold", &source, &target])), 2, "or default, le, ef");
    fails(&run(env.cp(&["--dscp", "le", &source, &target])), 2, "another host");
    let by_ssh = ["--dscp", "le", "--via-ssh", &source, "host:/tmp/"];
    fails(&run(env.cp(&by_ssh)), 2, "IPQoS");
}

/// A program that listens in the far namespace; killed when dropped.
struct FarListener(Child);

impl Drop for FarListener {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `penstock nettest --listen`; returns its address, too.
fn nettest_listener(pair: &NamespacePair, address: &str) -> (FarListener, String) {
    let mut command = Command::new(PENSTOCK);
    command.args(["nettest", "--json", "--listen", &bracketed(address)]);
    let mut command = NamespacePair::inside(&pair.far, &command);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let facts: Value = serde_json::from_str(&line).unwrap();
    (FarListener(child), facts["listening"].as_str().unwrap().to_owned())
}

/// Runs a client in the near namespace; returns the streams of data.
fn nettest_client(pair: &NamespacePair, command: &Command) -> Vec<CapturedStream> {
    let env = TestEnv::new();
    let file = env.path("capture.pcap");
    let mut command = NamespacePair::inside(&pair.near, command);
    let output = pair.capture("tcp or udp", &file, || command.output().unwrap());
    assert!(output.status.success(), "{output:?}");
    data_streams(&file)
}

#[test]
fn network_tests_carry_dscp() {
    let Some(pair) = NamespacePair::new(&["tcpdump"]) else { return };
    for (near, far) in ADDRESSES {
        let (_listener, address) = nettest_listener(&pair, far);
        let udp = ["--udp", "--datagram-size", "1200", "--rate", "40M"];
        for (flags, acknowledged) in
            [(&[][..], Some(LOWER_EFFORT.1)), (&udp, None), (&["--iperf3"], Some(LOWER_EFFORT.1))]
        {
            for (reverse, sender) in [(&[][..], near), (&["-R"], far)] {
                let mut client = Command::new(PENSTOCK);
                client.args(["nettest", &address, "-J", "-n", "2MiB", "--dscp", LOWER_EFFORT.0]);
                let streams = nettest_client(&pair, client.args(flags).args(reverse));
                assert_dscp(&streams, sender, LOWER_EFFORT.1, acknowledged);
            }
        }
    }
}

#[test]
fn iperf3_exchanges_type_of_service() {
    let Some(pair) = NamespacePair::new(&["tcpdump"]) else { return };
    if Command::new("iperf3").arg("--version").output().is_err() {
        skip(Requirement::Program, "iperf3 is not installed");
        return;
    }
    let (_listener, address) = nettest_listener(&pair, FAR);
    let port = address.rsplit_once(':').expect("a port").1.to_owned();
    for (reverse, sender) in [(&[][..], NEAR), (&["-R"], FAR)] {
        let mut client = Command::new("iperf3");
        client.args(["-c", FAR, "-p", &port, "-n", "2M", "-S", "0x68"]).args(reverse);
        let streams = nettest_client(&pair, &client);
        assert_dscp(&streams, sender, ASSURED_31.1, Some(ASSURED_31.1));
    }
    let port = free_port().to_string();
    let mut server = Command::new("iperf3");
    server.args(["-s", "-p", &port]);
    let mut server = NamespacePair::inside(&pair.far, &server);
    let _server = FarListener(server.stdout(Stdio::null()).spawn().unwrap());
    wait_until("the server listens", std::time::Duration::from_secs(10), || {
        let mut probe = Command::new("ss");
        probe.args(["-Hltn", &format!("sport = :{port}")]);
        let output = NamespacePair::inside(&pair.far, &probe).output().unwrap();
        (!output.stdout.is_empty()).then_some(())
    });
    for (reverse, sender) in [(&[][..], NEAR), (&["-R"], FAR)] {
        let mut client = Command::new(PENSTOCK);
        client.args(["nettest", FAR, "-p", &port, "--iperf3", "-J", "-n", "2MiB", "-S", "0x68"]);
        let streams = nettest_client(&pair, client.args(reverse));
        assert_dscp(&streams, sender, ASSURED_31.1, Some(ASSURED_31.1));
    }
}
