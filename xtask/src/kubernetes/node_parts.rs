//! Parts of the chart that change the kernel of a node: tuning, marker and sampler.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::cluster::{KubernetesCluster, node_address_v6, output};
use super::installed_chart::{
    CHART_NAMESPACE, InstalledChart, MARKED_PORT, MARKED_SCITAG, pod_name,
};

/// Settings of the network that `penstock host tune` may change, with the queueing discipline and the device.
const LIST_SETTINGS: &str = "grep -s . /proc/sys/net/ipv4/tcp_* /proc/sys/net/core/* /proc/sys/net/ipv6/conf/eth0/* \
                             /sys/class/net/eth0/gro_flush_timeout; tc qdisc show dev eth0 | sed 's/^/qdisc:/'";

/// Settings that change by themselves.
const VOLATILE_SETTINGS: [&str; 2] = ["netdev_rss_key", "tcp_fastopen_key"];

/// Bytes of the program whose packets are labelled.
const MARKED_BYTES: u64 = 100_000_000;

/// Rate of that program.
const MARKED_RATE: &str = "200M";

/// Time for samples to reach the answers of the collector.
const TELEMETRY_LIMIT: Duration = Duration::from_secs(30);

/// Greatest relative difference between the bytes that were sent and those that samples give.
const SAMPLED_DIFFERENCE_MAX: f64 = 0.3;

/// Settings of each node's network by their name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NodeSettings(Vec<BTreeMap<String, String>>);

impl NodeSettings {
    /// Reads the settings of both nodes.
    pub(super) fn read(cluster: &KubernetesCluster) -> Result<Self> {
        let nodes = [1, 2].into_iter().map(|node| {
            let mut list = cluster.node_command(node, "sh");
            let text = output(list.args(["-c", LIST_SETTINGS]))?;
            let settings = text.lines().filter_map(|line| line.split_once(':'));
            let settings = settings.filter(|(name, _)| {
                !VOLATILE_SETTINGS.iter().any(|volatile| name.ends_with(volatile))
            });
            Ok(settings.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
        });
        Ok(Self(nodes.collect::<Result<_>>()?))
    }

    /// Names of settings with other values, for each node.
    fn differences(&self, other: &Self) -> Vec<String> {
        let pairs = self.0.iter().zip(&other.0).enumerate();
        pairs
            .flat_map(|(index, (own, other))| {
                let names = own.keys().chain(other.keys().filter(|name| !own.contains_key(*name)));
                names.filter(|name| own.get(*name) != other.get(*name)).map(move |name| {
                    let value = |settings: &BTreeMap<String, String>| {
                        settings.get(name).cloned().unwrap_or_default()
                    };
                    format!("n{} {name}: {} -> {}", index + 1, value(own), value(other))
                })
            })
            .collect()
    }

    /// Fails unless the init containers have changed settings of both nodes.
    pub(super) fn check_tuned(&self, cluster: &KubernetesCluster) -> Result<()> {
        let changed = self.differences(&Self::read(cluster)?);
        for node in ["n1 ", "n2 "] {
            ensure!(
                changed.iter().any(|change| change.starts_with(node)),
                "{node}was not tuned: {changed:?}"
            );
        }
        println!("kubernetes: tuned: {}", changed.join("; "));
        Ok(())
    }

    /// Fails unless all settings are as they were.
    pub(super) fn check_restored(&self, cluster: &KubernetesCluster) -> Result<()> {
        let changed = self.differences(&Self::read(cluster)?);
        ensure!(changed.is_empty(), "not restored: {}", changed.join("; "));
        println!("kubernetes: all settings of both nodes are restored");
        Ok(())
    }
}

impl InstalledChart<'_> {
    /// Sends packets of a program that knows nothing of labels; the marker labels them, and the collector counts them under
    /// their label by the samples of both nodes.
    pub(super) fn check_labels(&self) -> Result<()> {
        let marker = self.node_pod("marker", 1)?;
        let before = self.labelled(&marker)?;
        self.send_marked()?;
        let labelled = self.labelled(&marker)? - before;
        ensure!(labelled >= MARKED_BYTES, "{labelled} bytes were labelled, not {MARKED_BYTES}");
        let collector =
            self.pods("collector")?.iter().find_map(pod_name).context("no collector")?;
        let sampled = self.cluster.wait("samples have the label", TELEMETRY_LIMIT, |_| {
            let sampled = self.sampled_bytes(&collector)?;
            let difference = (sampled / labelled as f64 - 1.0).abs();
            if difference > SAMPLED_DIFFERENCE_MAX {
                bail!("samples give {sampled:.0} of {labelled} labelled bytes");
            }
            Ok(Some(sampled))
        })?;
        println!(
            "kubernetes: {MARKED_BYTES} bytes sent, {labelled} labelled {MARKED_SCITAG} by the marker, {sampled:.0} by \
             the samples at the collector"
        );
        Ok(())
    }

    /// Bytes of packets that a marker has labelled.
    fn labelled(&self, marker: &str) -> Result<u64> {
        let words =
            ["exec", "-n", CHART_NAMESPACE, marker, "--", "penstock", "tag", "--json", "status"];
        let status: Value = serde_json::from_str(&self.cluster.kubectl(&words)?)?;
        let all = status["labelled"].as_array().with_context(|| status.to_string())?;
        Ok(all.iter().filter_map(|one| one["bytes"].as_u64()).sum())
    }

    /// Bytes with the label by the samples of the last minutes.
    fn sampled_bytes(&self, collector: &str) -> Result<f64> {
        let path = "/api/v1/telemetry/series?by=owner&from=-120&step=1";
        let series: Value = serde_json::from_str(&self.http_get(collector, path)?)?;
        let lines = series["series"].as_array().context("no series")?;
        let (owner, _) = MARKED_SCITAG.split_once('/').context("no owner")?;
        let line = lines.iter().find(|line| line["key"] == owner);
        let line = line.with_context(|| format!("no series of {owner}: {}", series["series"]))?;
        let rates = line["bps"].as_array().context("no rates")?;
        Ok(rates.iter().filter_map(Value::as_f64).sum::<f64>() / 8.0)
    }

    fn send_marked(&self) -> Result<()> {
        let address = format!("[{}]:{MARKED_PORT}", node_address_v6(2));
        let mut listener = self.node_penstock(2, &["nettest", "--listen", &address]);
        let listener = listener.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let _listener = NettestListener(listener.spawn()?);
        let bytes = MARKED_BYTES.to_string();
        self.cluster.wait("the listener answers", TELEMETRY_LIMIT, |_| {
            let words = ["nettest", &address, "-b", MARKED_RATE, "-n", &bytes, "--json"];
            output(&mut self.node_penstock(1, &words)).map(Some)
        })?;
        Ok(())
    }

    /// Fails if a marker has left something on a node.
    pub(super) fn check_detached(&self) -> Result<()> {
        for node in [1, 2] {
            let mut list = self.cluster.node_mounts_command(node, "ls");
            let listed = output(list.args(["-A", "/sys/fs/bpf"]))?;
            // The kernel's own files end in .debug.
            let left: Vec<&str> = listed.lines().filter(|name| !name.ends_with(".debug")).collect();
            ensure!(left.is_empty(), "node {node} still has in /sys/fs/bpf: {left:?}");
        }
        println!("kubernetes: no pinned eBPF program is left on a node");
        Ok(())
    }
}

/// A process that ends when dropped.
struct NettestListener(Child);

impl Drop for NettestListener {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
