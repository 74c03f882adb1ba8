//! `penstock disk` with the NVMe target and host of the kernel. Most machines have neither: `cargo xtask kernels --room
//! nvmeof` runs these tests in guests with Linux 6.1 and 6.12.
//!
//! One test at a time: they share configfs, the delay of the loopback device and the pair of RDMA devices.

#[path = "../common/mod.rs"]
mod common;

mod agents;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{CommandOutcome, ReadyProcess, TestEnv, run, wait_until};
use penstock_testkit::roce::RocePair;
use penstock_testkit::{Random, Requirement, skip};
use serde_json::Value;

const TARGET: &str = "/sys/kernel/config/nvmet";
const HOST: &str = "nqn.2020-01.org.example:h";
const OTHER_HOST: &str = "nqn.2020-01.org.example:other";
const MIB_BYTES: usize = 1 << 20;

static ALONE: Mutex<()> = Mutex::new(());

/// Machine with the kernel's target and host, used by one test.
struct Machine {
    env: TestEnv,
    port: u16,
    _alone: MutexGuard<'static, ()>,
}

impl Machine {
    /// `None` where the kernel lacks a part, after a report.
    fn start() -> Option<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let env = TestEnv::new();
        let done = run(env.penstock().args(["disk", "check", "--json"]));
        let parts = done.json["parts"].as_array().cloned().unwrap_or_default();
        let missing = parts.iter().find(|one| one["ok"] == false && one["part"] != "secret");
        if let Some(missing) = missing {
            let reason = format!("{}: {}", missing["object"], missing["detail"]);
            println!("skipped: {reason}");
            skip(Requirement::Kernel, &reason);
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Some(Self { env, port, _alone: alone })
    }

    fn disk(&self, arguments: &[&str]) -> CommandOutcome {
        run(self.env.penstock().arg("disk").args(arguments))
    }

    /// True where the kernel's target has DH-HMAC-CHAP, as that of Linux 6.12 of Debian and not of 6.1.
    fn has_secrets(&self) -> bool {
        let checked = self.disk(&["check", "--json"]).json;
        let parts = checked["parts"].as_array().unwrap();
        !parts.iter().any(|one| one["part"] == "secret" && one["ok"] == false)
    }

    fn location(&self) -> String {
        format!("127.0.0.1:{}/run-7", self.port)
    }

    /// File with `bytes` that differ.
    fn image(&self, name: &str, bytes: usize) -> PathBuf {
        let path = self.env.path(name);
        common::write_file(&mut Random::new(7), &path, bytes);
        path
    }

    /// Exports a file as `run-7` on loopback.
    fn export(&self, image: &Path, more: &[&str]) -> ReadyProcess {
        let port = self.port.to_string();
        let mut command = self.env.penstock();
        command.args(["disk", "export", image.to_str().unwrap(), "--name", "run-7", "--json"]);
        command.args(["--address", "127.0.0.1", "--port", &port, "--to", HOST]).args(more);
        ReadyProcess::start(command)
    }

    fn stream(&self, more: &[&str]) -> CommandOutcome {
        let location = self.location();
        let stream = ["stream", location.as_str(), "/dev/null", "--host-nqn", HOST, "--json"];
        self.disk(&[&stream[..], more].concat())
    }

    fn secret(&self, name: &str) -> String {
        let path = self.env.path(name).to_str().unwrap().to_owned();
        self.disk(&["secret", &path]).good();
        path
    }
}

/// Asserts that the target has no object left.
#[track_caller]
fn assert_clean() {
    for kind in ["subsystems", "hosts", "ports"] {
        let left: Vec<_> = fs::read_dir(Path::new(TARGET).join(kind)).unwrap().flatten().collect();
        assert!(left.is_empty(), "{kind}: {left:?}");
    }
}

#[track_caller]
fn fails(done: &CommandOutcome, code: i32, words: &str) {
    assert_eq!(done.code, code, "{done:?}");
    assert!(done.lines().len() == 1 && done.error.contains(words), "{words}: {done:?}");
}

/// Delay of loopback in each direction; removed when dropped.
struct LoopbackDelay;

impl LoopbackDelay {
    fn new(milliseconds: f64) -> Self {
        let delay = format!("{milliseconds}ms");
        tc(&["qdisc", "replace", "dev", "lo", "root", "netem", "delay", &delay, "limit", "100000"]);
        Self
    }
}

impl Drop for LoopbackDelay {
    fn drop(&mut self) {
        tc(&["qdisc", "del", "dev", "lo", "root"]);
    }
}

fn tc(arguments: &[&str]) {
    sh(&format!("tc {}", arguments.join(" ")));
}

fn sh(script: &str) {
    let done = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(done.status.success(), "{script}: {done:?}");
}

#[test]
fn stream_equals_exported_file() {
    let Some(machine) = Machine::start() else { return };
    let image = machine.image("image", 8 * MIB_BYTES + 4096);
    let export = machine.export(&image, &[]);
    let copy = machine.env.path("copy");
    let location = machine.location();
    let stream = ["stream", &location, copy.to_str().unwrap(), "--host-nqn", HOST, "--json"];
    for more in [&["--size", "64KiB", "--queues", "2", "--depth", "16"][..], &[]] {
        let report = machine.disk(&[&stream[..], more].concat()).good().json;
        assert!(fs::read(&copy).unwrap() == fs::read(&image).unwrap(), "{report}");
        println!("stream: {report}");
    }
    let checked = machine.disk(&["check", &location, "--host-nqn", HOST, "--json"]);
    assert_eq!(checked.code, 0, "{checked:?}");
    export.end();
    assert_clean();
}

/// Rows of the law: queues, reads of each, KiB of a read.
const LAW_ROWS: [(u64, u64, u64); 7] =
    [(1, 1, 16), (2, 1, 8), (1, 2, 8), (1, 4, 8), (1, 4, 64), (2, 8, 64), (2, 2, 512)];

/// An emulated processor copies some 10 MB/s: the law is tested where it allows a fortieth of that, and
/// shown elsewhere. Other work on the machine only slows a row, so the best of three counts.
#[test]
fn rate_follows_depth_over_rtt() {
    let Some(machine) = Machine::start() else { return };
    let image = machine.image("image", 16 * MIB_BYTES);
    let export = machine.export(&image, &[]);
    let rate_of = |(queues, reads, kib): (u64, u64, u64), length: u64| {
        let numbers = [queues, reads, length].map(|number| number.to_string());
        let size = format!("{kib}KiB");
        let [queues, reads, length] = &numbers;
        let counts = ["--queues", queues.as_str(), "--depth", reads, "--length", length];
        let rest = ["--size", size.as_str(), "--rtt", "87ms", "--digest", "none"];
        let report = machine.stream(&[counts, rest].concat()).good().json;
        report["bits_per_second"].as_f64().unwrap()
    };
    let processor = rate_of((2, 8, 64), 16 << 20);
    let _delay = LoopbackDelay::new(43.5);
    let (mut misses, mut tested) = (Vec::new(), 0);
    for row in LAW_ROWS {
        let (queues, reads, kib) = row;
        let flight = queues * reads * kib * 1024;
        let law = flight as f64 * 8.0 / 0.087;
        let mut rate: f64 = 0.0;
        for _ in 0..3 {
            rate = rate.max(rate_of(row, (flight * 40).min(16 << 20)));
            if rate > 0.8 * law || law > processor / 40.0 {
                break;
            }
        }
        let is_tested = law < processor / 40.0;
        println!(
            "law: {queues} queues of {reads} reads of {kib} KiB, RTT 87 ms: {:.2} Mb/s, measured {:.2} ({:.0} %){}",
            law / 1e6,
            rate / 1e6,
            rate / law * 100.0,
            if is_tested { "" } else { ", bound by the processor" }
        );
        tested += u32::from(is_tested);
        if is_tested && !(0.8..=1.05).contains(&(rate / law)) {
            misses.push((row, rate / law));
        }
    }
    println!("without delay: {:.1} Mb/s; {tested} rows tested", processor / 1e6);
    export.end();
    assert!(misses.is_empty(), "{misses:?}");
}

#[test]
fn other_hosts_are_refused() {
    let Some(machine) = Machine::start() else { return };
    let image = machine.image("image", MIB_BYTES);
    let export = machine.export(&image, &[]);
    let location = machine.location();
    for verb in ["connect", "check"] {
        let begun = Instant::now();
        let done = machine.disk(&[verb, &location, "--host-nqn", OTHER_HOST]);
        println!("wrong host: {verb} refused after {:?}", begun.elapsed());
        let text = format!("{}{}", done.output, done.error);
        assert!(done.code != 0 && text.contains("does not allow this host"), "{done:?}");
    }
    let stream = ["stream", &location, "/dev/null", "--host-nqn", OTHER_HOST];
    fails(&machine.disk(&stream), 5, "does not allow this host");
    let wrong = format!("127.0.0.1:{}/run-8", machine.port);
    let done = machine.disk(&["connect", &wrong, "--host-nqn", HOST]);
    fails(&done, 1, "nqn.2014-08.org.nvmexpress:penstock:run-7");
    export.end();
    assert_clean();
}

#[test]
fn wrong_secret_is_refused_soon() {
    let Some(machine) = Machine::start() else { return };
    let image = machine.image("image", MIB_BYTES);
    let (right, wrong) = (machine.secret("right"), machine.secret("wrong"));
    if !machine.has_secrets() {
        let port = machine.port.to_string();
        let export = [
            "export",
            image.to_str().unwrap(),
            "--to",
            HOST,
            "--secret-file",
            &right,
            "--port",
            &port,
        ];
        fails(&machine.disk(&export), 1, "CONFIG_NVME_TARGET_AUTH");
        println!("skipped: this kernel has no DH-HMAC-CHAP; an export with a secret is refused");
        return;
    }
    let export = machine.export(&image, &["--secret-file", &right]);
    let location = machine.location();
    let connect = |secret: &str| {
        machine.disk(&["connect", &location, "--host-nqn", HOST, "--secret-file", secret, "--json"])
    };
    let begun = Instant::now();
    fails(&connect(&wrong), 5, "the secret is wrong");
    println!("wrong secret: refused after {:?}", begun.elapsed());
    // Also on a slow guest: the kernel alone waits a minute.
    assert!(begun.elapsed() < Duration::from_secs(10));
    fails(&machine.stream(&[]), 5, "demands a secret");
    machine.stream(&["--secret-file", &right]).good();
    let connected = connect(&right).good();
    assert_eq!(connected.json["state"], "live");
    machine.disk(&["disconnect", "run-7"]).good();
    export.end();
    assert_clean();
}

/// Bytes of a block device.
fn device_bytes(connected: &Value) -> Vec<u8> {
    fs::read(connected["devices"][0].as_str().unwrap()).unwrap()
}

#[test]
fn connected_device_equals_file() {
    let Some(machine) = Machine::start() else { return };
    let image = machine.image("image", 4 * MIB_BYTES);
    let export = machine.export(&image, &[]);
    let location = machine.location();
    let connect = ["connect", &location, "--host-nqn", HOST, "--json"];
    let connected = machine.disk(&connect).good().json;
    assert!(device_bytes(&connected) == fs::read(&image).unwrap());
    fails(&machine.disk(&connect), 1, "connected already");
    let listed = machine.disk(&["list", "--json"]).good().json;
    assert_eq!(listed["connected"][0]["nqn"], connected["nqn"]);
    assert_eq!(listed["exports"][0]["running"], true);
    machine.disk(&["disconnect", &location]).good();
    let gone =
        || machine.disk(&["list", "--json"]).json["connected"].as_array()?.is_empty().then_some(());
    wait_until("the disk is disconnected", Duration::from_secs(10), gone);
    export.end();
    assert_clean();
}

#[test]
fn connected_disk_returns_after_restart() {
    let Some(machine) = Machine::start() else { return };
    let image = machine.image("image", MIB_BYTES);
    let export = machine.export(&image, &[]);
    let location = machine.location();
    let connected = machine.disk(&["connect", &location, "--host-nqn", HOST, "--json"]).good().json;
    export.end();
    let again = machine.export(&image, &[]);
    let live = || {
        let listed = machine.disk(&["list", "--json"]).json;
        (listed["connected"][0]["state"] == "live").then_some(())
    };
    wait_until("the kernel reconnects", Duration::from_secs(60), live);
    assert!(device_bytes(&connected) == fs::read(&image).unwrap());
    machine.disk(&["disconnect", "all"]).good();
    again.end();
    assert_clean();
}

#[test]
fn killed_export_is_removed() {
    let Some(machine) = Machine::start() else { return };
    let image = machine.image("image", MIB_BYTES);
    let mut export = machine.export(&image, &[]);
    export.kill();
    let listed = machine.disk(&["list", "--json"]).good().json;
    assert_eq!(listed["exports"][0]["running"], false);
    assert!(Path::new(TARGET).join("ports/1").exists());
    let again = machine.export(&image, &[]);
    assert_eq!(again.fact("/removed/0"), "nqn.2014-08.org.nvmexpress:penstock:run-7");
    machine.stream(&[]).good();
    again.end();
    assert_clean();
    assert_eq!(machine.disk(&["list", "--json"]).json["exports"].as_array().map(Vec::len), Some(0));
}

#[test]
fn exports_share_host_and_port() {
    let Some(machine) = Machine::start() else { return };
    let (first, second) = (machine.image("first", MIB_BYTES), machine.image("second", MIB_BYTES));
    let export = machine.export(&first, &[]);
    let port = machine.port.to_string();
    let other = |name: &str, image: &Path| {
        let mut command = machine.env.penstock();
        command.args(["disk", "export", image.to_str().unwrap(), "--name", name, "--json"]);
        command.args(["--address", "127.0.0.1", "--port", &port, "--to", HOST]);
        command
    };
    fails(&run(&mut other("run-9", &first)), 1, "exported already");
    fails(&run(&mut other("run-7", &second)), 1, "choose another --name");
    let more = ReadyProcess::start(other("run-8", &second));
    export.end();
    let location = format!("127.0.0.1:{port}/run-8");
    machine.disk(&["stream", &location, "/dev/null", "--host-nqn", HOST]).good();
    more.end();
    assert_clean();
}

#[test]
fn used_devices_are_refused() {
    let Some(machine) = Machine::start() else { return };
    let image = machine.image("image", MIB_BYTES);
    let output = Command::new("losetup").args(["--find", "--show"]).arg(&image).output().unwrap();
    if !output.status.success() {
        println!("skipped: no loop devices here");
        return;
    }
    let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let export = |path: &str| machine.disk(&["export", path, "--name", "run-7", "--to", HOST]);
    let of_file = export(image.to_str().unwrap());
    let held = {
        use std::os::unix::fs::OpenOptionsExt;
        // O_EXCL, as a mount has it.
        fs::OpenOptions::new().read(true).custom_flags(0o200).open(&device).unwrap()
    };
    let of_device = export(&device);
    drop(held);
    let status = Command::new("losetup").args(["-d", &device]).status().unwrap();
    assert!(status.success());
    fails(&of_file, 1, "losetup -d");
    fails(&of_device, 1, "in use");
    assert_clean();
}

/// Reads a block device past the page cache; gives up after 90 s.
fn read_directly(machine: &Machine, device: &str) -> Vec<u8> {
    let copy = machine.env.path("direct");
    let output = format!("of={}", copy.display());
    let mut dd = Command::new("timeout");
    dd.args(["90", "dd", "bs=64K", "iflag=direct", &format!("if={device}"), &output]);
    let done = dd.output().unwrap();
    assert!(done.status.success(), "{device}: {done:?}");
    fs::read(copy).unwrap()
}

impl Machine {
    fn connected(&self) -> Vec<Value> {
        let listed = self.disk(&["list", "--json"]).good().json;
        listed["connected"].as_array().cloned().unwrap_or_default()
    }

    fn wait_disconnected(&self) {
        let gone = || self.connected().is_empty().then_some(());
        wait_until("all disks are disconnected", Duration::from_secs(20), gone);
    }

    /// Exports a file as `run-7` at the second address of the RDMA pair.
    fn export_rdma(&self, image: &Path) -> ReadyProcess {
        let port = self.port.to_string();
        let mut command = self.env.penstock();
        command.args(["disk", "export", image.to_str().unwrap(), "--name", "run-7", "--json"]);
        command.args(["--transport", "rdma", "--address", RocePair::SECOND_ADDRESS]);
        command.args(["--port", &port, "--to", HOST]);
        ReadyProcess::start(command)
    }

    /// Connects from the first address, so that the data crosses the pair.
    fn connect_rdma(&self, host: &str, port: u16) -> CommandOutcome {
        let location = format!("{}:{port}/run-7", RocePair::SECOND_ADDRESS);
        let fixed =
            ["connect", &location, "--transport", "rdma", "--bind", RocePair::FIRST_ADDRESS];
        self.disk(&[&fixed[..], &["--host-nqn", host, "--json"]].concat())
    }
}

#[test]
fn device_over_rdma_equals_file() {
    let Some(machine) = Machine::start() else { return };
    let Some(_pair) = RocePair::new() else { return };
    let checked = machine.disk(&["check", "--transport", "rdma", "--json"]).json;
    let parts = checked["parts"].as_array().unwrap();
    // Linux 6.1 has no secrets of hosts.
    assert!(parts.iter().all(|one| one["ok"] == true || one["part"] == "secret"), "{checked}");
    assert!(parts.iter().any(|one| one["part"] == "device" && one["object"] == "rxe0 rxe1"));
    let image = machine.image("image", MIB_BYTES);
    let export = machine.export_rdma(&image);
    assert_eq!(export.fact("/transport"), "rdma");
    let begun = Instant::now();
    let connected = machine.connect_rdma(HOST, machine.port).good().json;
    println!("NVMe/RDMA: connected after {:?}", begun.elapsed());
    assert_eq!(connected["transport"], "rdma");
    let begun = Instant::now();
    let device = connected["devices"][0].as_str().unwrap();
    assert!(read_directly(&machine, device) == fs::read(&image).unwrap());
    println!("NVMe/RDMA: 1 MiB read after {:?}", begun.elapsed());
    machine.disk(&["disconnect", "run-7"]).good();
    machine.wait_disconnected();
    export.end();
    assert_clean();
}

#[test]
fn rdma_refusals_name_remedies() {
    let Some(machine) = Machine::start() else { return };
    let image = machine.image("image", MIB_BYTES);
    let address_of_none = |machine: &Machine| {
        let port = machine.port.to_string();
        let fixed = ["export", image.to_str().unwrap(), "--to", HOST, "--transport", "rdma"];
        machine.disk(&[&fixed[..], &["--address", "10.0.0.9", "--port", &port]].concat())
    };
    fails(&address_of_none(&machine), 1, "no RDMA device");
    let Some(_pair) = RocePair::new() else { return };
    fails(&address_of_none(&machine), 1, "address of an RDMA device");
    assert_clean();
    let export = machine.export_rdma(&image);
    fails(&machine.connect_rdma(OTHER_HOST, machine.port), 1, "--to nqn.2020-01.org.example:other");
    fails(&machine.connect_rdma(HOST, machine.port ^ 1), 1, "--transport rdma");
    export.end();
    assert_clean();
}

#[test]
fn killed_rdma_export_is_removed() {
    let Some(machine) = Machine::start() else { return };
    let Some(_pair) = RocePair::new() else { return };
    let image = machine.image("image", MIB_BYTES);
    let mut export = machine.export_rdma(&image);
    machine.connect_rdma(HOST, machine.port).good();
    export.kill();
    let listed = machine.disk(&["list", "--json"]).good().json;
    assert_eq!(listed["exports"][0]["running"], false);
    assert_eq!(listed["exports"][0]["transport"], "rdma");
    let again = machine.export_rdma(&image);
    assert_eq!(again.fact("/removed/0"), "nqn.2014-08.org.nvmexpress:penstock:run-7");
    machine.disk(&["disconnect", "all"]).good();
    machine.wait_disconnected();
    again.end();
    assert_clean();
}

/// Target in a network namespace of its own, with two links from this one; removed when dropped.
struct TwoPaths;

impl TwoPaths {
    /// Links at this end, and addresses at the other.
    const LINKS: [(&str, &str); 2] = [("path0", "10.1.0.2"), ("path1", "10.1.1.2")];

    fn new() -> Self {
        sh("ip netns add target");
        for (at, (link, address)) in Self::LINKS.into_iter().enumerate() {
            sh(&format!("ip link add {link} type veth peer name peer{at} netns target"));
            sh(&format!("ip addr add 10.1.{at}.1/24 dev {link}; ip link set {link} up"));
            let inside = format!("addr add {address}/24 dev peer{at}");
            sh(&format!("ip -n target {inside}; ip -n target link set peer{at} up"));
        }
        Self
    }

    fn set(link: &str, state: &str) {
        sh(&format!("ip link set {link} {state}"));
    }
}

impl Drop for TwoPaths {
    fn drop(&mut self) {
        let _ = Command::new("sh").args(["-c", "ip link del path0; ip link del path1"]).status();
        let _ = Command::new("ip").args(["netns", "del", "target"]).status();
    }
}

#[test]
fn reads_survive_loss_of_a_path() {
    let Some(machine) = Machine::start() else { return };
    let multipath = fs::read_to_string("/sys/module/nvme_core/parameters/multipath");
    if multipath.is_ok_and(|on| on.trim() == "N") {
        return skip(Requirement::Kernel, "the kernel's NVMe host without multipath");
    }
    let _paths = TwoPaths::new();
    let image = machine.image("image", MIB_BYTES);
    let bytes = fs::read(&image).unwrap();
    let port = machine.port.to_string();
    // The target listens in the network namespace of the command.
    let mut export = Command::new("nsenter");
    export.arg("--net=/run/netns/target").arg(env!("CARGO_BIN_EXE_penstock"));
    export.env("PENSTOCK_STATE", &machine.env.state);
    export.args(["disk", "export", image.to_str().unwrap(), "--name", "run-7", "--json"]);
    export.args(["--address", "10.1.0.2,10.1.1.2", "--port", &port, "--to", HOST]);
    let export = ReadyProcess::start(export);
    assert_eq!(export.fact("/listens/1"), format!("10.1.1.2:{port}"));
    let devices = TwoPaths::LINKS.map(|(_, address)| {
        let location = format!("{address}:{port}/run-7");
        let done = machine.disk(&["connect", &location, "--host-nqn", HOST, "--json"]).good();
        done.json["devices"].clone()
    });
    assert_eq!(devices[0], devices[1], "one device with two paths");
    // Both paths carry reads, so that the loss of either one concerns them.
    sh("for policy in /sys/class/nvme-subsystem/*/iopolicy; do echo round-robin > $policy; done");
    let device = devices[0][0].as_str().unwrap();
    assert!(read_directly(&machine, device) == bytes);
    let live = || {
        let connected = machine.connected();
        let is_live = connected.len() == 2 && connected.iter().all(|one| one["state"] == "live");
        is_live.then_some(())
    };
    for (link, _) in TwoPaths::LINKS {
        TwoPaths::set(link, "down");
        let begun = Instant::now();
        assert!(read_directly(&machine, device) == bytes);
        println!("multipath: {link} down: 1 MiB read after {:?}", begun.elapsed());
        TwoPaths::set(link, "up");
        wait_until("both paths are live", Duration::from_secs(120), live);
    }
    // The first address becomes inaccessible at the target, as that of a controller in maintenance.
    let states = ["inaccessible", "optimized"];
    for state in states {
        fs::write(format!("{TARGET}/ports/1/ana_groups/1/ana_state"), state).unwrap();
        assert!(read_directly(&machine, device) == bytes);
        println!("ANA: the first path is {state}, the device is read");
    }
    machine.disk(&["disconnect", "run-7"]).good();
    machine.wait_disconnected();
    export.end();
    assert_clean();
}

/// A disk of another machine, which `cargo xtask kernels --room two-hosts` kills and starts again by lines of this test.
#[test]
fn killed_machine_fails_reads_until_return() {
    let Some(machine) = Machine::start() else { return };
    if !Path::new("/sys/class/net/eth0").exists() || std::env::var_os("PENSTOCK_GUEST").is_none() {
        return skip(Requirement::Machine, "a second guest (cargo xtask kernels --room two-hosts)");
    }
    sh("ip addr add 10.8.0.2/24 dev eth0; ip link set eth0 up");
    let location = "10.8.0.1/run-7";
    let check = ["check", location, "--host-nqn", HOST];
    let has_disk = || (machine.disk(&check).code == 0).then_some(());
    wait_until("the peer exports its disk", Duration::from_secs(180), has_disk);
    let connected = machine.disk(&["connect", location, "--host-nqn", HOST, "--json"]).good().json;
    let device = connected["devices"][0].as_str().unwrap();
    let bytes: Vec<u8> = b"penstock\n".iter().copied().cycle().take(MIB_BYTES).collect();
    assert!(read_directly(&machine, device) == bytes);
    println!("\nkernels: kill the peer");
    let begun = Instant::now();
    let input = format!("if={device}");
    let mut dd = Command::new("timeout");
    dd.args(["120", "dd", "bs=64K", "iflag=direct", &input, "of=/dev/null"]);
    let read = dd.output().unwrap();
    println!("killed machine: the read failed after {:?}", begun.elapsed());
    let error = String::from_utf8_lossy(&read.stderr).into_owned();
    assert!(!read.status.success() && error.contains("rror"), "{read:?}");
    // A keep-alive of 5 s is missed, then reads wait for 15 s; an emulated processor is slow.
    assert!((10..60).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(machine.connected()[0]["state"], "connecting");
    let begun = Instant::now();
    let stream = machine.disk(&["stream", location, "/dev/null", "--host-nqn", HOST]);
    println!(
        "killed machine: disk stream ends after {:?}: {}",
        begun.elapsed(),
        stream.error.trim()
    );
    assert!(stream.code != 0 && stream.lines().len() == 1, "{stream:?}");
    println!("\nkernels: start the peer");
    let live = || (machine.connected().first()?["state"] == "live").then_some(());
    wait_until("the kernel reconnects", Duration::from_secs(180), live);
    println!("killed machine: connected again {:?} after its start", begun.elapsed());
    assert!(read_directly(&machine, device) == bytes);
    machine.disk(&["disconnect", "run-7"]).good();
    machine.wait_disconnected();
}

/// Verdict and present value of a rule on `rxe0`.
fn finding_of(machine: &Machine, rule: &str) -> (String, String) {
    let check = ["host", "check", "--json", "--for", "1G", "--rtt", "1ms", "--interface", "v0"];
    let checked = run(machine.env.penstock().args(check)).good().json;
    let findings = checked["findings"].as_array().unwrap();
    let found = findings.iter().find(|one| one["rule"] == rule && one["object"] == "rxe0");
    let found = found.unwrap_or_else(|| panic!("{rule}: {findings:?}"));
    let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    (text("verdict"), text("have"))
}

/// The rules of `penstock host` on a device of the running kernel.
#[test]
fn host_rules_judge_software_roce() {
    let Some(machine) = Machine::start() else { return };
    let Some(_pair) = RocePair::new() else { return };
    let facts = run(machine.env.penstock().args(["host", "facts"])).good().json;
    let port = &facts["rdma"][0];
    assert_eq!((&port["device"], &port["net_device"]), (&"rxe0".into(), &"v0".into()), "{port}");
    assert_eq!(finding_of(&machine, "roce-mtu"), ("ok".to_owned(), "4096, of MTU 9000".to_owned()));
    let (verdict, addresses) = finding_of(&machine, "roce-gid");
    assert!(verdict == "ok" && addresses.contains(RocePair::FIRST_ADDRESS), "{addresses}");
    assert_eq!(finding_of(&machine, "roce-retransmission").0, "not_applicable");
    sh("ip link set v0 mtu 1500");
    let small = finding_of(&machine, "roce-mtu");
    assert_eq!(small, ("differs".to_owned(), "1024, of MTU 1500".to_owned()));
}
