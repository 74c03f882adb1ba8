//! Two RDMA devices of software RoCE, in the virtual machine of `cargo xtask kernels`.
//!
//! Both devices are in the initial namespace, because software RoCE sends and receives only there; so no test makes them
//! on the machine itself. TCP between the two addresses goes over loopback: the delay concerns RDMA alone.

use std::process::Command;
use std::time::Duration;

use crate::requirement::{Requirement, skip};

/// Set by `cargo xtask kernels` in its virtual machines.
const GUEST_VARIABLE: &str = "PENSTOCK_GUEST";

/// Devices `rxe0` at 10.0.0.1 and `rxe1` at 10.0.0.2 on one veth pair, `v0` and `v1`; removed when dropped.
#[derive(Debug)]
pub struct RocePair;

impl RocePair {
    /// IPv4 address of `rxe0`.
    pub const FIRST_ADDRESS: &str = "10.0.0.1";
    /// IPv4 address of `rxe1`.
    pub const SECOND_ADDRESS: &str = "10.0.0.2";

    /// Creates the pair. Outside the virtual machine it is `None`, and the test is reported as skipped.
    ///
    /// # Panics
    /// If the machine lacks a module or program.
    #[must_use]
    pub fn new() -> Option<Self> {
        if std::env::var_os(GUEST_VARIABLE).is_none() {
            skip(Requirement::Machine, "cargo xtask kernels --room rdma");
            return None;
        }
        sh("ip link add v0 type veth peer name v1");
        sh("ip addr add 10.0.0.1/24 dev v0; ip addr add 10.0.0.2/24 dev v1");
        // Both addresses are of this host: without these settings neither end answers the other.
        for device in ["all", "v0", "v1"] {
            let settings =
                [("accept_local", 1), ("rp_filter", 0), ("arp_ignore", 1), ("arp_announce", 2)];
            for (name, value) in settings {
                let path = format!("/proc/sys/net/ipv4/conf/{device}/{name}");
                std::fs::write(&path, value.to_string())
                    .unwrap_or_else(|error| panic!("{path}: {error}"));
            }
        }
        sh("ip link set v0 mtu 9000 up; ip link set v1 mtu 9000 up");
        sh("rdma link add rxe0 type rxe netdev v0; rdma link add rxe1 type rxe netdev v1");
        Some(Self)
    }

    /// Sets the round-trip time of RDMA.
    pub fn delay(&self, round_trip: Duration) {
        let half = round_trip.as_micros() / 2;
        for device in ["v0", "v1"] {
            sh(&format!("tc qdisc replace dev {device} root netem delay {half}us limit 100000"));
        }
    }

    /// Takes the link of `rxe0` down and up again: its queue pairs fail at once.
    pub fn flap(&self) {
        sh("ip link set v0 down; ip link set v0 up");
    }

    /// Packets that `rxe0` has sent.
    ///
    /// # Panics
    /// If the device is gone.
    #[must_use]
    pub fn sent_packets(&self) -> u64 {
        let path = "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts";
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        text.trim().parse().unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Drops every packet of `rxe0`.
    pub fn cut(&self) {
        sh("tc qdisc replace dev v0 root netem loss 100%");
    }
}

impl Drop for RocePair {
    fn drop(&mut self) {
        let removed = Command::new("ip").args(["link", "del", "v0"]).status();
        assert!(removed.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

fn sh(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().expect("sh starts");
    assert!(status.success(), "{script}: {status}");
}
