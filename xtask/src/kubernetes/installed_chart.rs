//! The chart on a cluster: values, installation, clients of its parts, and a removal that leaves nothing.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::IMAGE_TAG;
use super::cluster::{
    KubernetesCluster, START_LIMIT, control_address, is_ready, items, node_address,
    node_address_v6, node_name, output, stranger_address,
};
use super::database::ClusterDatabase;

/// Namespace of the release.
pub(super) const CHART_NAMESPACE: &str = "dtn";

/// Addresses of the services: the cluster has no DNS.
const CONTROLLER_ADDRESS: &str = "10.97.0.20";
const COLLECTOR_ADDRESS: &str = "10.97.0.21";

/// User of the daemons in the image.
pub(super) const DAEMON_USER_ID: u32 = 8620;

/// TCP port at which agents take transfers.
pub(super) const MOVER_PORT: u16 = 8620;

/// Port of HTTPS of all parts.
const HTTP_PORT: u16 = 8621;

/// Port of the programs whose packets the marker labels.
pub(super) const MARKED_PORT: u16 = 8630;

/// Label of those packets.
pub(super) const MARKED_SCITAG: &str = "dune/default";

/// Sampling rate of the sampler.
const SAMPLING_RATE: u32 = 50;

/// Secret with the password of the database; not of the chart.
const DATABASE_SECRET: &str = "database";

/// Parts of the chart that are enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChartParts {
    /// Agents in the IPv4 network, a controller with SQLite, a collector.
    Basic,
    /// Agents in the IPv6 network, tuned nodes, marker, sampler, collector, network policies, and two controllers with
    /// PostgreSQL.
    All,
}

impl ChartParts {
    /// Pods of two nodes.
    pub(super) const fn pods(self) -> usize {
        match self {
            Self::Basic => 4,
            Self::All => 9,
        }
    }
}

/// The chart on a cluster, and a client of its controller.
#[derive(Debug)]
pub(super) struct InstalledChart<'a> {
    pub(super) cluster: &'a KubernetesCluster,
    root: &'a Path,
    binary: &'a Path,
    folder: tempfile::TempDir,
}

impl<'a> InstalledChart<'a> {
    /// Makes namespace, storage class and directories of the nodes.
    pub(super) fn prepare(
        root: &'a Path,
        cluster: &'a KubernetesCluster,
        binary: &'a Path,
    ) -> Result<Self> {
        for node in [1, 2] {
            for folder in ["store", "controller", "collector"] {
                let folder = cluster.host_files(node).join(folder);
                fs::create_dir_all(&folder)?;
                chown(&folder, Some(DAEMON_USER_ID), Some(DAEMON_USER_ID))?;
            }
        }
        cluster.apply(&format!(
            "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {CHART_NAMESPACE}\n  labels: {{ pod-security.kubernetes.io/enforce: privileged }}\n\
             ---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {{ name: local }}\n\
             provisioner: kubernetes.io/no-provisioner\nvolumeBindingMode: WaitForFirstConsumer\n"
        ))?;
        Ok(Self { cluster, root, binary, folder: tempfile::tempdir()? })
    }

    /// Installs the chart, waits until its pods are ready, runs its test, and logs in.
    pub(super) fn install(&self, parts: ChartParts, rate: &str) -> Result<()> {
        self.make_volumes()?;
        self.helm("install", parts, rate)?;
        self.wait_ready(parts)?;
        self.cluster.helm(&["test", "penstock", "-n", CHART_NAMESPACE, "--timeout", "2m"])?;
        self.login()
    }

    /// Volumes of controller and collector, which a claim of an earlier release had.
    fn make_volumes(&self) -> Result<()> {
        let host = self.cluster.host_path();
        let mut manifest = String::new();
        for (volume, node) in [("controller", 1), ("collector", 2)] {
            self.cluster.kubectl(&["delete", "pv", volume, "--ignore-not-found"])?;
            manifest += &format!(
                "---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {{ name: {volume} }}\nspec:\n  capacity: {{ storage: 1Gi }}\n  \
                 accessModes: [ReadWriteOnce]\n  persistentVolumeReclaimPolicy: Retain\n  storageClassName: local\n  \
                 local: {{ path: {}/{volume} }}\n  claimRef: {{ namespace: {CHART_NAMESPACE}, name: state-penstock-{volume}-0 }}\n  \
                 nodeAffinity:\n    required:\n      nodeSelectorTerms:\n        \
                 - matchExpressions: [{{ key: kubernetes.io/hostname, operator: In, values: [{}] }}]\n",
                host.display(),
                node_name(node)
            );
        }
        self.cluster.apply(&manifest)
    }

    /// Secret with the password of the database.
    pub(super) fn add_database_secret(&self, database: &ClusterDatabase) -> Result<()> {
        self.cluster.apply(&format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{ name: {DATABASE_SECRET}, namespace: {CHART_NAMESPACE} }}\n\
             stringData: {{ password: {} }}\n",
            database.password
        ))
    }

    /// Values of the chart; `rate` limits the agents, so that faults meet a running copy.
    fn values(&self, parts: ChartParts, rate: &str) -> String {
        let host = self.cluster.host_path();
        let host = host.display();
        let storage = "storage: { size: 1Gi, storageClassName: local }";
        let small = "resources: { requests: { cpu: 50m, memory: 64Mi } }";
        let has_all = parts == ChartParts::All;
        // The collector believes labels of the nodes.
        let marking = format!("  extraConfig: 'marking = [\"{}/128\"]'\n", node_address_v6(1));
        let marking = if has_all { &marking } else { "" };
        let mut hosts = String::new();
        for (node, site) in [(1, "a"), (2, "b")] {
            let address = format!(", addresses: [\"[{}]:{MOVER_PORT}\"]", node_address_v6(node));
            let address = if has_all { &address } else { "" };
            hosts += &format!(
                "    - {{ name: dtn{node}, site: {site}, node: {}, rate: 1G{address} }}\n",
                node_name(node)
            );
        }
        let mut values = format!(
            "image: {{ tag: {IMAGE_TAG}, pullPolicy: Never }}\n\
             hostAliases:\n  - {{ ip: {CONTROLLER_ADDRESS}, hostnames: [penstock-controller.{CHART_NAMESPACE}.svc] }}\n  \
             - {{ ip: {COLLECTOR_ADDRESS}, hostnames: [penstock-collector.{CHART_NAMESPACE}.svc] }}\n\
             agents:\n  hosts:\n{hosts}  state: {{ path: {host}/state }}\n  \
             exports: [{{ name: /store, hostPath: {host}/store, mode: read-write, who: [controller] }}]\n  \
             limits: {{ rate: {rate} }}\n  tune: {{ enabled: {has_all}, rate: 10G, rtt: 50ms }}\n  {small}\n\
             collector:\n  read: open\n{marking}  {storage}\n  service: {{ clusterIP: {COLLECTOR_ADDRESS} }}\n  {small}\n\
             controller:\n  {storage}\n  service: {{ clusterIP: {CONTROLLER_ADDRESS} }}\n  {small}\n"
        );
        if has_all {
            values += &format!(
                "  replicas: 2\n  database: {{ url: {}, existingSecret: {DATABASE_SECRET} }}\n\
                 listenAddress: \"[::]\"\n\
                 marker:\n  enabled: true\n  tags: |\n    [[rule]]\n    scitag = \"{MARKED_SCITAG}\"\n    \
                 destination_port = {MARKED_PORT}\n    protocol = \"tcp\"\n  {small}\n\
                 sampler:\n  enabled: true\n  interfaces: [eth0]\n  \
                 options: [\"--rate\", \"{SAMPLING_RATE}\", \"--polling\", \"2s\"]\n  {small}\n\
                 networkPolicy:\n  enabled: true\n  from:\n",
                ClusterDatabase::url()
            );
            for address in [node_address(1), node_address(2), control_address()] {
                values += &format!("    - {{ ipBlock: {{ cidr: {address}/32 }} }}\n");
            }
        }
        values
    }

    /// Installs or upgrades the release.
    pub(super) fn helm(&self, verb: &str, parts: ChartParts, rate: &str) -> Result<()> {
        let values = self.folder.path().join("values.yaml");
        fs::write(&values, self.values(parts, rate))?;
        let chart = self.root.join("deploy/helm/penstock").display().to_string();
        let values = values.display().to_string();
        let release = [verb, "penstock", &chart, "-n", CHART_NAMESPACE, "-f", &values];
        let notes = self.cluster.helm(&[&release[..], &["--wait", "--timeout", "4m"]].concat())?;
        fs::write(self.folder.path().join("notes"), notes)?;
        Ok(())
    }

    /// Waits until the release has all its pods, and they are ready.
    pub(super) fn wait_ready(&self, parts: ChartParts) -> Result<()> {
        self.cluster.wait("all pods ready", START_LIMIT, |cluster| {
            let list = cluster.get("pods", CHART_NAMESPACE)?;
            let ready = items(&list).iter().filter(|pod| is_ready(pod)).count();
            let pods = parts.pods();
            Ok((ready == pods && items(&list).len() == pods).then_some(()))
        })
    }

    /// Pods of a component.
    pub(super) fn pods(&self, component: &str) -> Result<Vec<Value>> {
        let list = self.cluster.get("pods", CHART_NAMESPACE)?;
        let is_part =
            |pod: &&Value| pod["metadata"]["labels"]["app.kubernetes.io/component"] == component;
        Ok(items(&list).iter().filter(is_part).cloned().collect())
    }

    /// Name of the pod of a DaemonSet on a node.
    pub(super) fn node_pod(&self, component: &str, node: usize) -> Result<String> {
        let pods = self.pods(component)?;
        let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == node_name(node).as_str());
        pod.and_then(pod_name).with_context(|| format!("no {component} on node {node}"))
    }

    /// Name of the agent of a node.
    pub(super) fn agent_pod(&self, node: usize) -> Result<String> {
        self.node_pod("agent", node)
    }

    /// Removes a pod at once, without a chance to end its work.
    pub(super) fn kill_pod(&self, name: &str) -> Result<()> {
        let words = ["delete", "pod", name, "-n", CHART_NAMESPACE, "--grace-period=0", "--force"];
        self.cluster.kubectl(&words).map(drop)
    }

    /// Answer of a pod to a path over HTTPS.
    pub(super) fn http_get(&self, pod: &str, path: &str) -> Result<String> {
        let path = format!(
            "/api/v1/namespaces/{CHART_NAMESPACE}/pods/https:{pod}:{HTTP_PORT}/proxy{path}"
        );
        self.cluster.kubectl(&["get", "--raw", &path])
    }

    /// Metrics of a pod.
    pub(super) fn metrics(&self, pod: &str) -> Result<String> {
        self.http_get(pod, "/metrics")
    }

    /// A command of the client in the cluster's network.
    pub(super) fn penstock(&self, arguments: &[&str]) -> Command {
        let mut command = self.cluster.command(self.binary);
        command.env("PENSTOCK_STATE", self.folder.path().join("client")).args(arguments);
        command
    }

    /// A command of the client in the network of a node.
    pub(super) fn node_penstock(&self, node: usize, arguments: &[&str]) -> Command {
        let mut command = self.cluster.node_command(node, self.binary);
        command.env("PENSTOCK_STATE", self.folder.path().join("client")).args(arguments);
        command
    }

    /// Address of a ready controller's pod, which changes when it is replaced.
    pub(super) fn controller(&self) -> Result<String> {
        let pods = self.pods("controller")?;
        let pod = pods.iter().find(|pod| is_ready(pod)).context("no controller is ready")?;
        let address = pod["status"]["podIP"].as_str().context("no address")?;
        Ok(format!("{address}:{HTTP_PORT}"))
    }

    /// Logs in as the notes of the chart say.
    fn login(&self) -> Result<()> {
        let secret = self.cluster.get("secret/penstock-tokens", CHART_NAMESPACE)?;
        let token = secret["data"]["operator"].as_str().context("no token of the operator")?;
        let file = self.folder.path().join("operator.token");
        fs::write(&file, token)?;
        let token = output(Command::new("base64").arg("-d").arg(&file))?;
        fs::write(&file, token)?;
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let notes = fs::read_to_string(self.folder.path().join("notes"))?;
        let fingerprint = notes.split_whitespace().find(|word| word.starts_with("SHA256:"));
        let fingerprint = fingerprint.context("the notes name no fingerprint")?;
        let address = self.controller()?;
        let file = file.display().to_string();
        let words = ["login", &address, "--token-file", &file, "--fingerprint", fingerprint];
        output(&mut self.penstock(&words)).map(drop)
    }

    /// Fails unless controllers and collector answer an address that the network policies name, and no other.
    pub(super) fn check_policies(&self) -> Result<()> {
        for component in ["controller", "collector"] {
            for pod in self.pods(component)? {
                let pod = pod["status"]["podIP"].as_str().context("no address")?;
                let url = format!("https://{pod}:{HTTP_PORT}/healthz");
                let answers = |source: &str| {
                    let mut curl = self.cluster.command("curl");
                    curl.args(["-sk", "--max-time", "5", "--interface", source, &url]);
                    output(&mut curl).is_ok_and(|answer| answer.trim() == "ok")
                };
                ensure!(answers(&control_address()), "{component} {pod} does not answer its peers");
                ensure!(!answers(&stranger_address()), "{component} {pod} answers strangers");
            }
        }
        println!("kubernetes: network policies admit their peers and no other address");
        Ok(())
    }

    /// Removes the release; fails if an object of it stays.
    pub(super) fn uninstall(&self) -> Result<()> {
        self.cluster.helm(&["uninstall", "penstock", "-n", CHART_NAMESPACE, "--wait"])?;
        let kinds = "pods,services,configmaps,secrets,pvc,serviceaccounts,daemonsets,statefulsets,deployments,jobs,\
                     poddisruptionbudgets,networkpolicies,ingresses";
        self.cluster.wait("nothing is left", START_LIMIT, |cluster| {
            let left = cluster.kubectl(&["get", kinds, "-n", CHART_NAMESPACE, "-o", "name"])?;
            let secret = format!("secret/{DATABASE_SECRET}");
            let own = ["serviceaccount/default", "configmap/kube-root-ca.crt", &secret];
            let left: Vec<&str> = left.lines().filter(|line| !own.contains(line)).collect();
            if left.is_empty() { Ok(Some(())) } else { bail!("left: {}", left.join(" ")) }
        })
    }
}

/// Name of a pod.
pub(super) fn pod_name(pod: &Value) -> Option<String> {
    pod["metadata"]["name"].as_str().map(str::to_owned)
}
