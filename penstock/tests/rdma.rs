//! RDMA of the binary: its messages where RDMA is not possible, and tests between two devices in the virtual machine of
//! `cargo xtask kernels --room rdma`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use penstock_testkit::roce::RocePair;
use penstock_testkit::{Requirement, skip};
use serde_json::Value;

const PENSTOCK: &str = env!("CARGO_BIN_EXE_penstock");

/// `penstock nettest --listen`, killed when dropped.
struct NettestListener {
    child: Child,
    address: String,
}

impl NettestListener {
    fn at(address: &str) -> Self {
        let mut child = Command::new(PENSTOCK)
            .args(["nettest", "--json", "--listen", address])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let object: Value = serde_json::from_str(&line).expect("one JSON object");
        Self { child, address: object["listening"].as_str().expect("its address").to_owned() }
    }
}

impl Drop for NettestListener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn client(address: &str, flags: &[&str]) -> Output {
    let fixed = ["nettest", address, "--transport", "rdma"];
    Command::new(PENSTOCK).args(fixed).args(flags).output().expect("it runs")
}

/// The error line of a client that fails with `code`.
#[track_caller]
fn failure(output: &Output, code: i32) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    println!("{}", text.trim_end());
    text
}

#[test]
fn missing_device_names_remedy() {
    let devices = Path::new("/sys/class/infiniband");
    if devices.read_dir().is_ok_and(|mut devices| devices.next().is_some()) {
        return skip(Requirement::Machine, "a machine without RDMA devices");
    }
    let listener = NettestListener::at("127.0.0.1:0");
    let text = failure(&client(&listener.address, &[]), 1);
    assert!(text.contains("rdma link add") || text.contains("libibverbs1"), "{text}");
}

#[test]
fn flags_of_rdma_need_transport() {
    let nettest = |flags: &[&str]| {
        Command::new(PENSTOCK).args(["nettest", "127.0.0.1"]).args(flags).output().unwrap()
    };
    assert!(failure(&nettest(&["--depth", "8"]), 2).contains("--transport rdma"));
    let text = failure(&nettest(&["--transport", "rdma", "--depth", "99999"]), 2);
    assert!(text.contains("depth 99999"), "{text}");
}

#[test]
fn result_shows_depth_law() {
    let Some(pair) = RocePair::new() else { return };
    pair.delay(Duration::from_millis(87));
    let listener = NettestListener::at("10.0.0.2:0");
    let flags = ["-B", RocePair::FIRST_ADDRESS, "-l", "16KiB", "--depth", "8", "-t", "4"];
    let output = client(&listener.address, &[&flags[..], &["--json"]].concat());
    let result: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let rdma = &result["rdma"];
    let ratio = result["bits_per_second"].as_f64().unwrap()
        / rdma["limit_bits_per_second"].as_f64().unwrap();
    assert!((0.8..1.1).contains(&ratio), "{result:#}");
    assert_eq!((rdma["sender_device"].as_str(), rdma["depth"].as_u64()), (Some("rxe0"), Some(8)));
    assert_eq!(result["flows"][0]["bound_by"], "depth");
    let output = client(&listener.address, &flags);
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn low_memory_limit_names_remedy() {
    let Some(_pair) = RocePair::new() else { return };
    let listener = NettestListener::at("10.0.0.2:0");
    let script = format!(
        "ulimit -l 64; exec setpriv --reuid 65534 --clear-groups {PENSTOCK} nettest {} -B {} --transport rdma",
        listener.address,
        RocePair::FIRST_ADDRESS
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let text = failure(&output, 1);
    assert!(text.contains("locked memory is 65536 B") && text.contains("ulimit -l"), "{text}");
}

#[test]
fn missing_library_names_package() {
    let Some(_pair) = RocePair::new() else { return };
    let listener = NettestListener::at("10.0.0.2:0");
    // A mount namespace in which the library is an empty file.
    let script = format!(
        "for library in /usr/lib/*/libibverbs.so.1; do mount --bind /dev/null $library; done; exec {PENSTOCK} nettest {} -B {} --transport rdma",
        listener.address,
        RocePair::FIRST_ADDRESS
    );
    let output = Command::new("unshare").args(["-m", "sh", "-ec", &script]).output().unwrap();
    let text = failure(&output, 1);
    assert!(text.contains("libibverbs.so.1") && text.contains("ibverbs-providers"), "{text}");
}
