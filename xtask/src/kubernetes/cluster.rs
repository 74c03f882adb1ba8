//! A cluster of Kubernetes on this machine: etcd and the control plane in one network namespace, and each node, kubelet
//! with containerd, in one of its own.
//!
//! A node has also its own process and mount namespace, so that the end of one process ends all containers and mounts of
//! the node. Nothing is configured in the network namespace of the machine. Dropping the cluster removes everything but
//! images in its folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::tools::{self, Tool};
use crate::program::output_text;

/// Time for the control plane to answer, and for nodes and pods to be ready.
pub(super) const START_LIMIT: Duration = Duration::from_secs(240);

/// Network of the nodes; the control plane has the first address, node N the address 10 + N.
const NODE_NETWORK: &str = "10.99.0";

/// The same of IPv6, which nodes alone have: flow labels exist there only.
const NODE_NETWORK_V6: &str = "fd00:99:";

/// Networks of the pods: node N has the third number N.
const POD_NETWORK: &str = "10.98";

/// Addresses of services.
const SERVICE_NETWORK: &str = "10.97.0.0/24";

/// Directory at which each node mounts its own directory of host files.
const HOST_FILES: &str = "host";

const KUBELET_CONFIG: &str = include_str!("kubelet.yaml");
const CONTAINERD_CONFIG: &str = include_str!("containerd.toml");
const NODE_SCRIPT: &str = include_str!("node.sh");
const PROXY_CONFIG: &str = include_str!("proxy.yaml");

/// A running control plane with its nodes; ends when dropped.
#[derive(Debug)]
pub(super) struct KubernetesCluster {
    root: PathBuf,
    folder: tempfile::TempDir,
    /// Prefix of the network namespaces.
    name: String,
    token: String,
    processes: Vec<(&'static str, Child)>,
    nodes: Vec<ClusterNode>,
}

#[derive(Debug)]
struct ClusterNode {
    name: String,
    child: Child,
}

impl KubernetesCluster {
    /// Starts a cluster of `nodes` nodes and waits until they are ready. `images` are archives that every node loads.
    pub(super) fn start(root: &Path, nodes: usize, images: &[PathBuf]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("kube").tempdir_in("/tmp")?;
        let token = random_token()?;
        let name = format!("kube{}", std::process::id());
        let mut cluster = Self {
            root: root.to_owned(),
            folder,
            name,
            token,
            processes: Vec::new(),
            nodes: Vec::new(),
        };
        cluster.start_control_plane(nodes)?;
        for number in 1..=nodes {
            cluster.start_node(number, images)?;
        }
        cluster.wait("all nodes ready", START_LIMIT, |cluster| {
            let list = cluster.get("nodes", "")?;
            let ready = items(&list).iter().filter(|node| is_ready(node)).count();
            Ok((ready == nodes).then_some(()))
        })?;
        Ok(cluster)
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The directory that a host path below [`Self::host_path`] means on a node.
    pub(super) fn host_files(&self, node: usize) -> PathBuf {
        self.path(format!("n{node}")).join(HOST_FILES)
    }

    /// The path of a directory of each node's own.
    pub(super) fn host_path(&self) -> PathBuf {
        self.path(HOST_FILES)
    }

    /// A command in the network of the control plane.
    pub(super) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        in_network(&self.network(0), program)
    }

    /// A command in the network of a node.
    pub(super) fn node_command(
        &self,
        node: usize,
        program: impl AsRef<std::ffi::OsStr>,
    ) -> Command {
        in_network(&self.network(node), program)
    }

    /// A command in the network and among the mounts of a node.
    pub(super) fn node_mounts_command(&self, node: usize, program: &str) -> Command {
        let process = self.nodes[node - 1].child.id();
        let mut command = self.node_command(node, "nsenter");
        command.arg(format!("--mount=/proc/{process}/ns/mnt")).arg(program);
        command
    }

    fn network(&self, node: usize) -> String {
        format!("{}-{node}", self.name)
    }

    /// `kubectl` with this cluster.
    pub(super) fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.command(tools::path(&self.root, Tool::Kubectl)?);
        command.env("KUBECONFIG", self.path("admin.conf")).args(arguments);
        output(&mut command)
    }

    /// Creates or changes the objects of a manifest (YAML).
    pub(super) fn apply(&self, manifest: &str) -> Result<()> {
        let file = self.path("manifest.yaml");
        fs::write(&file, manifest)?;
        self.kubectl(&["apply", "-f", &file.display().to_string()]).map(drop)
    }

    /// `helm` with this cluster.
    pub(super) fn helm(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.command(tools::path(&self.root, Tool::Helm)?);
        command.env("KUBECONFIG", self.path("admin.conf")).args(arguments);
        for (variable, folder) in [
            ("HELM_CACHE_HOME", "cache"),
            ("HELM_CONFIG_HOME", "config"),
            ("HELM_DATA_HOME", "data"),
        ] {
            command.env(variable, self.path("helm").join(folder));
        }
        output(&mut command)
    }

    /// Objects of a kind, as `kubectl get` prints them.
    pub(super) fn get(&self, kind: &str, namespace: &str) -> Result<Value> {
        let mut arguments = vec!["get", kind, "-o", "json"];
        if !namespace.is_empty() {
            arguments.extend(["-n", namespace]);
        }
        Ok(serde_json::from_str(&self.kubectl(&arguments)?)?)
    }

    /// Asks until there is an answer; an error is one only after `within`.
    pub(super) fn wait<T>(
        &self,
        what: &str,
        within: Duration,
        mut ask: impl FnMut(&Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let begun = Instant::now();
        loop {
            let answer = ask(self);
            if let Ok(Some(found)) = answer {
                println!("kubernetes: {what} after {:.1} s", begun.elapsed().as_secs_f64());
                return Ok(found);
            }
            if begun.elapsed() > within {
                let why = answer.err().map(|error| format!(": {error:#}")).unwrap_or_default();
                bail!("not {what} within {} s{why}\n{}", within.as_secs(), self.diagnosis());
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// Pods, events and ends of logs, for the message of a failure.
    fn diagnosis(&self) -> String {
        let mut text = self.kubectl(&["get", "pods,pvc", "-A", "-o", "wide"]).unwrap_or_default();
        let events = ["get", "events", "-A", "--sort-by=.lastTimestamp"];
        let events = self.kubectl(&events).unwrap_or_default();
        let lines: Vec<&str> = events.lines().collect();
        text += &lines[lines.len().saturating_sub(15)..].join("\n");
        for log in fs::read_dir(self.folder.path()).into_iter().flatten().flatten() {
            let path = log.path();
            if path.extension().is_some_and(|end| end == "log") {
                let log = fs::read_to_string(&path).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                text += &format!("\n--- {}\n", path.display());
                text += &lines[lines.len().saturating_sub(6)..].join("\n");
            }
        }
        text
    }

    fn start_control_plane(&mut self, nodes: usize) -> Result<()> {
        self.make_networks(nodes)?;
        let key = self.path("accounts.key").display().to_string();
        output(Command::new("openssl").args(["genrsa", "-out", &key, "2048"]))?;
        let mut tokens = format!("{},admin,admin,\"system:masters\"\n", self.token);
        for number in 1..=nodes {
            let name = node_name(number);
            tokens +=
                &format!("{}-{name},system:node:{name},{name},\"system:nodes\"\n", self.token);
        }
        let token_file = self.path("tokens.csv");
        fs::write(&token_file, tokens)?;
        let server = format!("https://{NODE_NETWORK}.1:6443");
        self.write_kubeconfig("admin.conf", &server, &self.token.clone())?;
        let data = self.path("etcd").display().to_string();
        let flags = ["--data-dir", &data, "--unsafe-no-fsync", "--log-level", "warn"];
        self.spawn("etcd", Command::new("etcd").args(flags))?;
        let certificates = self.path("apiserver");
        let mut api = Command::new(tools::path(&self.root, Tool::KubeApiserver)?);
        api.args(["--etcd-servers=http://127.0.0.1:2379", "--authorization-mode=Node,RBAC"])
            .arg(format!("--bind-address={NODE_NETWORK}.1"))
            .arg(format!("--advertise-address={NODE_NETWORK}.1"))
            .arg(format!("--cert-dir={}", certificates.display()))
            .arg(format!("--token-auth-file={}", token_file.display()))
            .arg(format!("--service-cluster-ip-range={SERVICE_NETWORK}"))
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(format!("--service-account-key-file={key}"))
            .arg(format!("--service-account-signing-key-file={key}"))
            // Without it `kubectl logs` looks for the node by its name.
            .arg("--kubelet-preferred-address-types=InternalIP")
            .args(["--allow-privileged", "--endpoint-reconciler-type=none"]);
        self.spawn("kube-apiserver", &mut api)?;
        self.wait("the API server answers", START_LIMIT, |cluster| {
            cluster.kubectl(&["get", "--raw", "/readyz"]).map(Some)
        })?;
        let config = format!("--kubeconfig={}", self.path("admin.conf").display());
        let mut manager = Command::new(tools::path(&self.root, Tool::KubeControllerManager)?);
        manager.args([&config, "--leader-elect=false"]);
        manager.arg(format!("--service-account-private-key-file={key}"));
        self.spawn("kube-controller-manager", &mut manager)?;
        let mut scheduler = Command::new(tools::path(&self.root, Tool::KubeScheduler)?);
        self.spawn("kube-scheduler", scheduler.args([&config, "--leader-elect=false"]))
    }

    /// A bridge in the namespace of the control plane, to which the namespace of each node is connected.
    fn make_networks(&self, nodes: usize) -> Result<()> {
        let control = self.network(0);
        ip(&["netns", "add", &control])?;
        let inside = |network: &str, words: &[&str]| {
            let mut all = vec!["-n", network];
            all.extend(words);
            ip(&all)
        };
        inside(&control, &["link", "set", "lo", "up"])?;
        inside(&control, &["link", "add", "br0", "type", "bridge"])?;
        inside(&control, &["address", "add", &format!("{NODE_NETWORK}.1/24"), "dev", "br0"])?;
        inside(&control, &["address", "add", &format!("{}/24", stranger_address()), "dev", "br0"])?;
        inside(&control, &["link", "set", "br0", "up"])?;
        for number in 1..=nodes {
            let network = self.network(number);
            let port = format!("n{number}");
            ip(&["netns", "add", &network])?;
            inside(
                &control,
                &["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &network],
            )?;
            inside(&control, &["link", "set", &port, "master", "br0", "up"])?;
            inside(&network, &["link", "set", "lo", "up"])?;
            let address = format!("{}/24", node_address(number));
            inside(&network, &["address", "add", &address, "dev", "eth0"])?;
            let address = format!("{}/64", node_address_v6(number));
            inside(&network, &["address", "add", &address, "dev", "eth0", "nodad"])?;
            inside(&network, &["link", "set", "eth0", "up"])?;
        }
        for here in 0..=nodes {
            let network = self.network(here);
            let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
            output(in_network(&network, "sh").args(["-c", forward]))?;
            for other in (1..=nodes).filter(|other| *other != here) {
                let pods = format!("{POD_NETWORK}.{other}.0/24");
                inside(&network, &["route", "add", &pods, "via", &node_address(other)])?;
            }
            if here > 0 {
                let control = format!("{NODE_NETWORK}.1");
                inside(&network, &["route", "add", "default", "via", &control])?;
            }
        }
        Ok(())
    }

    fn start_node(&mut self, number: usize, images: &[PathBuf]) -> Result<()> {
        let name = node_name(number);
        let own = self.path(&name);
        for folder in ["cni", "kubelet", HOST_FILES] {
            fs::create_dir_all(own.join(folder))?;
        }
        fs::create_dir_all(self.host_path())?;
        let token = format!("{}-{name}", self.token);
        let server = format!("https://{NODE_NETWORK}.1:6443");
        self.write_kubeconfig(&format!("{name}/kubelet.conf"), &server, &token)?;
        let fill = |text: &str| {
            text.replace("@NODE@", &own.display().to_string())
                .replace("@NAME@", &name)
                .replace("@CLUSTER@", &self.name)
                .replace("@PODS@", &format!("{POD_NETWORK}.{number}.0/24"))
                .replace("@SERVICES@", SERVICE_NETWORK)
                .replace("@ADMIN@", &self.path("admin.conf").display().to_string())
                .replace("@HOST_FILES@", &self.host_path().display().to_string())
                .replace("@ADDRESS@", &node_address(number))
        };
        for (file, text) in [
            ("kubelet.yaml", KUBELET_CONFIG),
            ("containerd.toml", CONTAINERD_CONFIG),
            ("proxy.yaml", PROXY_CONFIG),
            ("cni/10-pods.conflist", include_str!("pods.conflist")),
        ] {
            fs::write(own.join(file), fill(text))?;
        }
        let log = fs::File::create(self.path(format!("{name}.log")))?;
        let images = images.iter().map(|image| image.display().to_string());
        let child = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", self.network(number)))
            .args(["unshare", "--mount", "--propagation", "private"])
            .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-euc", &fill(NODE_SCRIPT)])
            .env("KUBELET", tools::path(&self.root, Tool::Kubelet)?)
            .env("KUBE_PROXY", tools::path(&self.root, Tool::KubeProxy)?)
            .env("KUBE_ROUTER", tools::path(&self.root, Tool::KubeRouter)?)
            .env("IMAGES", images.collect::<Vec<_>>().join(" "))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot run nsenter")?;
        self.nodes.push(ClusterNode { name, child });
        Ok(())
    }

    fn spawn(&mut self, name: &'static str, command: &mut Command) -> Result<()> {
        let log = fs::File::create(self.path(format!("{name}.log")))?;
        let mut inside = self.command(command.get_program());
        let child = inside
            .args(command.get_args())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {name}: tools/setup.sh kubernetes installs it"))?;
        self.processes.push((name, child));
        Ok(())
    }

    fn write_kubeconfig(&self, file: &str, server: &str, token: &str) -> Result<()> {
        let text = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            // The API server makes a certificate of its own; its network is this machine's memory.
            "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": true}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        });
        Ok(fs::write(self.path(file), text.to_string())?)
    }
}

impl Drop for KubernetesCluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.child.kill();
            let _ = node.child.wait();
        }
        for (_, child) in self.processes.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for number in 0..=self.nodes.len() {
            let _ = ip(&["netns", "delete", &self.network(number)]);
        }
        for node in &self.nodes {
            remove_cgroups(&format!("{}-{}", self.name, node.name));
        }
    }
}

/// Removes the control groups of a node, in all hierarchies.
fn remove_cgroups(name: &str) {
    let remove = format!(
        "find /sys/fs/cgroup -depth -type d -path '*/{name}*' -exec rmdir {{}} + 2>/dev/null"
    );
    // Processes leave their groups a moment after they end.
    for _ in 0..20 {
        let _ = Command::new("sh").args(["-c", &remove]).status();
        let find = format!("find /sys/fs/cgroup -type d -name '{name}'");
        if output(Command::new("sh").args(["-c", &find])).is_ok_and(|left| left.is_empty()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Name of a node.
pub(super) fn node_name(number: usize) -> String {
    format!("n{number}")
}

/// IPv4 address of a node.
pub(super) fn node_address(number: usize) -> String {
    format!("{NODE_NETWORK}.{}", 10 + number)
}

/// IPv6 address of a node.
pub(super) fn node_address_v6(number: usize) -> String {
    format!("{NODE_NETWORK_V6}:{}", 10 + number)
}

/// IPv4 address of the control plane, which pods reach.
pub(super) fn control_address() -> String {
    format!("{NODE_NETWORK}.1")
}

/// A second address there, which network policies do not name.
pub(super) fn stranger_address() -> String {
    format!("{NODE_NETWORK}.2")
}

/// Items of a list.
pub(super) fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

/// True if the condition `Ready` of a node or pod is true.
pub(super) fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

fn in_network(network: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{network}")).arg(program);
    command
}

fn ip(arguments: &[&str]) -> Result<()> {
    output(Command::new("ip").args(arguments)).map(drop)
}

fn random_token() -> Result<String> {
    output(Command::new("openssl").args(["rand", "-hex", "16"]))
}

/// Runs a program without input; returns its standard output without white space around it. An error has the whole command.
pub(super) fn output(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    output_text(command.stdin(Stdio::null()), "kubernetes").context(shown)
}
