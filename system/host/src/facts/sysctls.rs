//! Sysctls that rules read, and the rate limit of a TCP stream by its buffers.
//!
//! A missing key does not exist in this kernel, or only in the initial network namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Tree;

/// All keys that are read: those that a rule uses.
pub const KEYS: &[&str] = &[
    "kernel.io_uring_disabled",
    "kernel.numa_balancing",
    "net.core.bpf_jit_enable",
    "net.core.default_qdisc",
    "net.core.max_skb_frags",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.netdev_max_backlog",
    "net.core.optmem_max",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.conf.all.arp_filter",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.conf.default.rp_filter",
    "net.ipv4.fib_multipath_hash_policy",
    "net.ipv4.tcp_adv_win_scale",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_fack",
    "net.ipv4.tcp_low_latency",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_no_ssthresh_metrics_save",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
    "vm.dirty_background_bytes",
    "vm.dirty_background_ratio",
    "vm.dirty_bytes",
    "vm.dirty_ratio",
    "vm.swappiness",
    "vm.zone_reclaim_mode",
];

/// Values of sysctls by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Sysctls {
    /// Values by name, with single spaces between several numbers.
    #[serde(default)]
    #[schema(required)]
    pub values: BTreeMap<String, String>,
    /// Names of those that cannot be written in this network namespace.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub read_only: BTreeSet<String>,
}

/// Reads all of [`KEYS`] that this kernel has.
#[must_use]
pub fn gather(tree: &Tree) -> Sysctls {
    use std::os::unix::fs::PermissionsExt;
    let mut found = Sysctls::default();
    for key in KEYS {
        let path = path_of(key);
        if let Some(text) = tree.text(&path) {
            found.values.insert((*key).to_owned(), normal(&text));
        }
        let place = tree.at(&path);
        let mode = std::fs::metadata(&place).map(|facts| facts.permissions().mode());
        // In a container /proc/sys is mounted read-only, which the file mode does not show. Permissions are checked elsewhere.
        let mounted_read_only =
            || tree.is_live() && access(&place, Access::WRITE_OK) == Err(Errno::ROFS);
        if mode.is_ok_and(|mode| mode & 0o200 == 0 || mounted_read_only()) {
            found.read_only.insert((*key).to_owned());
        }
    }
    found
}

/// Path of a sysctl in procfs.
pub(crate) fn path_of(key: &str) -> String {
    format!("/proc/sys/{}", key.replace('.', "/"))
}

/// Replaces the tabs of procfs by single spaces.
pub(crate) fn normal(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Sysctls {
    /// Value of a key, in normal form.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Value of a key as a number.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<i64> {
        self.get(key)?.parse().ok()
    }

    /// Value of a key with three numbers, as `tcp_rmem`.
    #[must_use]
    pub fn triple(&self, key: &str) -> Option<[u64; 3]> {
        let numbers: Vec<u64> =
            self.get(key)?.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        numbers.try_into().ok()
    }

    /// Largest TCP buffers of a connection, if known.
    #[must_use]
    pub fn buffers(&self) -> Option<Buffers> {
        let [_, _, receive_bytes_max] = self.triple("net.ipv4.tcp_rmem")?;
        let [_, _, send_bytes_max] = self.triple("net.ipv4.tcp_wmem")?;
        Some(Buffers { receive_bytes_max, send_bytes_max })
    }
}

/// Limits of TCP autotuning for the buffers of a connection, assumed equal at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// Maximum of `tcp_rmem`, in bytes.
    pub receive_bytes_max: u64,
    /// Maximum of `tcp_wmem`, in bytes.
    pub send_bytes_max: u64,
}

/// Largest TCP window: 65535 scaled by 14 bits (RFC 7323, section 2.2).
pub const WINDOW_BYTES_MAX: u64 = 65_535 << 14;

impl Buffers {
    /// Largest number of bytes in flight of one connection. The share of a buffer that holds payload was measured with
    /// cubic over 20 Gb/s and 50 ms on Linux 6.18 (docs/host.md); the rest is overhead of the kernel.
    #[must_use]
    pub fn in_flight_bytes(self) -> u64 {
        let sent = self.send_bytes_max as f64 * send_share(self.send_bytes_max);
        let received = self.receive_bytes_max as f64 * 0.94;
        (sent.min(received) as u64).min(WINDOW_BYTES_MAX)
    }

    /// Maximum rate of one stream at this round-trip time, in bits per second; `None` for a round-trip time of zero.
    #[must_use]
    pub fn ceiling_bps(self, rtt: Duration) -> Option<u64> {
        let seconds = rtt.as_secs_f64();
        (seconds > 0.0).then(|| (self.in_flight_bytes() as f64 * 8.0 / seconds) as u64)
    }
}

/// Share of the send buffer that holds payload: measured 0.92 of 4 MiB, 0.69 of 16 MiB, 0.66 of 64 MiB, interpolated by
/// the logarithm of the size.
fn send_share(bytes: u64) -> f64 {
    const MEASURED_RATIOS: [(f64, f64); 3] = [(22.0, 0.92), (24.0, 0.69), (26.0, 0.66)];
    let size = (bytes.max(1) as f64).log2();
    let above = MEASURED_RATIOS.iter().position(|(at, _)| size <= *at);
    match above {
        Some(0) => MEASURED_RATIOS[0].1,
        Some(index) => {
            let ((x0, y0), (x1, y1)) = (MEASURED_RATIOS[index - 1], MEASURED_RATIOS[index]);
            y0 + (y1 - y0) * (size - x0) / (x1 - x0)
        }
        None => MEASURED_RATIOS[2].1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn mib(count: u64) -> u64 {
        count << 20
    }

    /// Measured rates over 20 Gb/s and 50 ms, in Gb/s, compared with the computed ceiling of each row's buffers.
    #[test]
    fn ceilings_are_what_was_measured() {
        for (receive, send, measured) in
            [(32, 4, 0.62), (16, 16, 1.86), (512, 64, 7.03), (64, 512, 10.1)]
        {
            let buffers = Buffers { receive_bytes_max: mib(receive), send_bytes_max: mib(send) };
            let bps = buffers.ceiling_bps(Duration::from_millis(50)).unwrap();
            let ratio = bps as f64 / (measured * 1e9);
            assert!((0.98..1.02).contains(&ratio), "{receive}/{send}: {bps} b/s, {measured} Gb/s");
        }
        let enough = Buffers { receive_bytes_max: mib(512), send_bytes_max: mib(512) };
        assert!(enough.ceiling_bps(Duration::from_millis(50)).unwrap() > 20_000_000_000);
    }

    #[test]
    fn no_buffer_exceeds_the_window() {
        let huge = Buffers { receive_bytes_max: u64::MAX, send_bytes_max: u64::MAX };
        let bps = huge.ceiling_bps(Duration::from_millis(100)).unwrap();
        assert_eq!(bps / 100_000_000, 858, "85.9 Gb/s at 100 ms: {bps}");
        assert_eq!(huge.ceiling_bps(Duration::ZERO), None);
        let none = Buffers { receive_bytes_max: 0, send_bytes_max: 0 };
        assert_eq!(none.ceiling_bps(Duration::from_millis(1)), Some(0));
    }

    #[test]
    fn keys_are_sorted_and_buffers_readable() {
        assert!(gather(&Tree::default()).buffers().is_some());
        assert!(KEYS.is_sorted());
    }

    #[test]
    fn each_key_has_a_rule() {
        let rules = [
            include_str!("../rules/cpu.rs"),
            include_str!("../rules/machine.rs"),
            include_str!("../rules/nic.rs"),
            include_str!("../rules/queues.rs"),
            include_str!("../rules/sockets.rs"),
            include_str!("../rules/tcp.rs"),
        ];
        for key in KEYS {
            assert!(rules.iter().any(|rules| rules.contains(&format!("\"{key}\""))), "{key}");
        }
    }

    #[test]
    fn odd_values_are_no_numbers() {
        let mut sysctls = Sysctls::default();
        for text in ["", "1 2", "1 2 3 4", "1 2 x", "1 2 -3", "99999999999999999999 1 2"] {
            sysctls.values.insert("net.ipv4.tcp_rmem".into(), text.into());
            assert_eq!(sysctls.triple("net.ipv4.tcp_rmem"), None, "{text}");
        }
    }
}
