//! Two network namespaces joined by a veth pair, a bpf file system, markers and captures; all are removed when the test
//! ends.

#![allow(unreachable_pub, missing_debug_implementations)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::common::{PENSTOCK, ReadyProcess, wait_until};

/// Bits of a flow label that encode the scitag; the others are entropy.
pub const PAYLOAD_MASK: u32 = 0x3FEFC;

/// Payload of the marker packet that ends a capture, sent to the discard port.
const LAST: &[u8] = b"the last packet of this capture";
const LAST_PORT: u16 = 9;

pub const HERE: &str = "fd00:77::1";
pub const THERE: &str = "fd00:77::2";

/// True if the marker can be tested here; else prints why not.
pub fn possible(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        penstock_testkit::skip(
            penstock_testkit::Requirement::Root,
            &format!("{test}: needs root for namespaces and eBPF"),
        );
        return false;
    }
    for program in ["ip", "nsenter", "iperf3", "tshark", "dumpcap", "ethtool"] {
        if Command::new(program).arg("--version").output().is_err() {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Program,
                &format!("{test}: no {program} (tools/setup.sh test installs it)"),
            );
            return false;
        }
    }
    true
}

pub struct Lab {
    pub here: String,
    pub there: String,
    pub dir: tempfile::TempDir,
    markers: Vec<(String, PathBuf)>,
}

/// Runs a command that must succeed.
#[track_caller]
pub fn sh(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Lab {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pm{}x{number}", std::process::id());
        let lab = Self {
            here: format!("{name}a"),
            there: format!("{name}b"),
            dir: tempfile::tempdir().unwrap(),
            markers: Vec::new(),
        };
        std::fs::create_dir(lab.bpf()).unwrap();
        sh(&format!("mount -t bpf bpf {}", lab.bpf().display()));
        let (here, there) = (&lab.here, &lab.there);
        for ns in [here, there] {
            sh(&format!("ip netns add {ns}"));
            sh(&format!("ip -n {ns} link set lo up"));
        }
        sh(&format!("ip -n {here} link add pm0 type veth peer name pm0 netns {there}"));
        for (ns, last) in [(here, 1), (there, 2)] {
            sh(&format!("ip -n {ns} addr add fd00:77::{last}/64 dev pm0 nodad"));
            sh(&format!("ip -n {ns} addr add 10.77.0.{last}/24 dev pm0"));
            sh(&format!("ip -n {ns} link set pm0 up"));
        }
        lab
    }

    fn bpf(&self) -> PathBuf {
        self.dir.path().join("bpf")
    }

    pub fn pin(&self, name: &str) -> PathBuf {
        self.bpf().join(name)
    }

    pub fn on_both(&self, command: &str) {
        for ns in [&self.here, &self.there] {
            sh(&format!("nsenter --net=/run/netns/{ns} {command}"));
        }
    }

    /// `penstock tag` in a namespace.
    pub fn tag(&self, ns: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{ns}")).arg(PENSTOCK).arg("tag");
        command.env("PENSTOCK_STATE", self.dir.path().join("state")).env("PENSTOCK_LOG", "info");
        command.env_remove("JOURNAL_STREAM");
        command
    }

    /// Starts a marker with these rules.
    pub fn marker(&mut self, ns: &str, pin: &str, rules: &str, more: &[&str]) -> ReadyProcess {
        self.marker_on("pm0", ns, pin, rules, more)
    }

    /// Starts a marker on another device.
    pub fn marker_on(
        &mut self,
        device: &str,
        ns: &str,
        pin: &str,
        rules: &str,
        more: &[&str],
    ) -> ReadyProcess {
        let file = self.dir.path().join(format!("{pin}.toml"));
        std::fs::write(&file, rules).unwrap();
        let pin = self.pin(pin);
        let mut command = self.tag(ns);
        command.args(["run", "--json", "--interface", device, "--pin"]).arg(&pin);
        command.arg("--config").arg(&file).args(more);
        self.markers.push((ns.to_owned(), pin));
        ReadyProcess::start(command)
    }

    pub fn status(&self, pin: &str) -> Value {
        let output = self
            .tag(&self.here)
            .args(["status", "--json", "--rules", "--pin"])
            .arg(self.pin(pin))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs iperf3 from `here` to `there`; its server handles this one test.
    #[track_caller]
    pub fn iperf(&self, arguments: &str) {
        let mut server = Command::new("nsenter");
        server.arg(format!("--net=/run/netns/{}", self.there));
        server.args(["iperf3", "-s", "-1", "--forceflush"]);
        let mut server = server.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        while !lines.next().unwrap().unwrap().contains("listening") {}
        let line = format!("nsenter --net=/run/netns/{} iperf3 {arguments}", self.here);
        let words: Vec<&str> = line.split_whitespace().collect();
        let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
        let _ = server.kill();
        let _ = server.wait();
        assert!(output.status.success(), "{line}: {output:?}");
    }

    /// Sends a packet behind all others: once it is captured, they are too. A broadcast needs no neighbour resolution and
    /// gets no answer.
    fn send_last(&self) {
        inside(&self.here, || {
            let socket = UdpSocket::bind("10.77.0.1:0").unwrap();
            socket.set_broadcast(true).unwrap();
            socket.send_to(LAST, ("10.77.0.255", LAST_PORT)).unwrap();
        });
    }

    /// Captures packets at the far device while `work` runs.
    pub fn capture(&self, work: impl FnOnce()) -> Vec<Packet> {
        self.capture_in(&self.there, work)
    }

    /// Captures packets at the device of a namespace while `work` runs. At the near device a capture has the packets that
    /// leave, also those that a full backlog of the far device drops.
    pub fn capture_in(&self, ns: &str, work: impl FnOnce()) -> Vec<Packet> {
        let file = self.dir.path().join("capture.pcap");
        let _ = std::fs::remove_file(&file);
        let mut dumpcap = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{ns}"))
            .args(["dumpcap", "-i", "pm0", "-s", "160", "-B", "64", "-P", "-w"])
            .arg(&file)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(dumpcap.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("File:") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "dumpcap does not start");
        }
        work();
        self.send_last();
        wait_until("the last packet in the capture", Duration::from_secs(20), || {
            let text = std::fs::read(&file).unwrap();
            text.windows(LAST.len()).any(|bytes| bytes == LAST).then_some(())
        });
        sh(&format!("kill -INT {}", dumpcap.id()));
        let mut rest = String::new();
        while log.read_line(&mut rest).unwrap() > 0 {}
        dumpcap.wait().unwrap();
        let dropped = rest.lines().find(|line| line.contains("received/dropped"));
        assert!(dropped.is_some_and(|line| line.contains("/0 (")), "packets were lost: {rest}");
        decode(&file)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for (ns, pin) in &self.markers {
            let _ = self.tag(ns).arg("stop").arg("--pin").arg(pin).output();
        }
        for ns in [&self.here, &self.there] {
            let _ = Command::new("ip").args(["netns", "del", ns]).output();
        }
        let _ = Command::new("umount").arg(self.bpf()).output();
    }
}

/// A captured packet, as tshark reads it.
#[derive(Debug, Clone)]
pub struct Packet {
    pub source: String,
    pub label: u32,
    pub class: u32,
    pub options: String,
    pub source_port: u32,
    pub destination_port: u32,
    pub length: u32,
    pub fragment: bool,
    pub v4: bool,
}

impl Packet {
    pub fn has_label(&self, base: u32) -> bool {
        self.label & PAYLOAD_MASK == base
    }

    /// True if option 0x1E has these bytes.
    pub fn has_option(&self, bytes: &str) -> bool {
        self.options.replace(':', "") == bytes
    }

    pub fn has_port(&self, port: u32) -> bool {
        self.source_port == port || self.destination_port == port
    }
}

fn decode(file: &Path) -> Vec<Packet> {
    let fields = [
        "ipv6.src",
        "ipv6.flow",
        "ipv6.tclass",
        "ipv6.opt.experimental",
        "tcp.srcport",
        "tcp.dstport",
        "udp.srcport",
        "udp.dstport",
        "frame.len",
        "ipv6.fraghdr.offset",
        "ip.src",
    ];
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-T", "fields", "-E", "separator=|", "-E", "occurrence=f"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).unwrap(),
        None => text.parse().unwrap_or(0),
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| line.split('|').collect::<Vec<_>>());
    lines
        .filter(|words| words.len() == fields.len())
        .map(|words| Packet {
            source: words[0].to_owned(),
            label: number(words[1]),
            class: number(words[2]),
            options: words[3].to_owned(),
            source_port: number(words[4]).max(number(words[6])),
            destination_port: number(words[5]).max(number(words[7])),
            length: number(words[8]),
            fragment: !words[9].is_empty(),
            v4: !words[10].is_empty(),
        })
        .filter(|packet| !(packet.v4 && packet.destination_port == u32::from(LAST_PORT)))
        .collect()
}

/// Runs `work` in a thread of its own inside a namespace.
pub fn inside<T: Send>(ns: &str, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let file = File::open(format!("/run/netns/{ns}")).unwrap();
            use std::os::fd::AsFd;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

/// Waits until the status of a marker satisfies `good`.
pub fn wait_for(lab: &Lab, pin: &str, what: &str, mut good: impl FnMut(&Value) -> bool) {
    wait_until(what, Duration::from_secs(20), || good(&lab.status(pin)).then_some(()));
}

/// Packets and bytes of each tag.
pub fn labelled(status: &Value) -> BTreeMap<(String, String), u64> {
    let list = status["labelled"].as_array().cloned().unwrap_or_default();
    list.iter()
        .map(|one| {
            let text = |name: &str| one[name].as_str().unwrap().to_owned();
            ((text("name"), text("label")), one["packets"].as_u64().unwrap())
        })
        .collect()
}
