//! The chart on a cluster: installation, copies with faults, upgrade, and a removal that leaves nothing.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::IMAGE_TAG;
use super::cluster::{KubernetesCluster, START_LIMIT, is_ready, items, node_name, output};

const CHART_NAMESPACE: &str = "dtn";

/// Addresses of the services: the cluster has no DNS.
const CONTROLLER_ADDRESS: &str = "10.97.0.20";
const COLLECTOR_ADDRESS: &str = "10.97.0.21";

/// User of the daemons in the image.
const DAEMON_USER_ID: u32 = 8620;

const FILES_PER_COPY: usize = 500;

/// Time of one copy with its fault.
const COPY_LIMIT: Duration = Duration::from_secs(240);

/// The chart on a cluster, and a client of its controller.
struct InstalledChart<'a> {
    root: &'a Path,
    cluster: &'a KubernetesCluster,
    binary: &'a Path,
    folder: tempfile::TempDir,
}

/// Runs the scenario; `is_short` ends it after the first copy.
pub(super) fn run(
    root: &Path,
    cluster: &KubernetesCluster,
    binary: &Path,
    is_short: bool,
) -> Result<()> {
    let site = InstalledChart { root, cluster, binary, folder: tempfile::tempdir()? };
    site.prepare()?;
    let begun = Instant::now();
    site.helm("install", "100M")?;
    site.wait_ready(4)?;
    println!("kubernetes: installed and ready in {:.1} s", begun.elapsed().as_secs_f64());
    site.cluster.helm(&["test", "penstock", "-n", CHART_NAMESPACE, "--timeout", "2m"])?;
    site.login()?;
    site.copy("plain", "no fault", || Ok(()))?;
    if !is_short {
        site.copy("killed", "the receiver's pod is killed", || site.kill_receiver())?;
        site.copy("drained", "the controller's node is drained", || site.drain())?;
        site.copy("upgraded", "every pod is replaced", || {
            site.helm("upgrade", "200M")?;
            site.wait_ready(4)
        })?;
    }
    site.uninstall()
}

impl InstalledChart<'_> {
    /// Namespace, volumes, and the directories of the nodes.
    fn prepare(&self) -> Result<()> {
        for node in [1, 2] {
            for folder in ["store", "controller", "collector"] {
                let folder = self.cluster.host_files(node).join(folder);
                fs::create_dir_all(&folder)?;
                chown(&folder, Some(DAEMON_USER_ID), Some(DAEMON_USER_ID))?;
            }
        }
        // The kubelet of a hostPath of type Directory looks for it on its own node.
        let host = self.cluster.host_path();
        let mut manifest = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {CHART_NAMESPACE}\n  labels: {{ pod-security.kubernetes.io/enforce: privileged }}\n\
             ---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {{ name: local }}\n\
             provisioner: kubernetes.io/no-provisioner\nvolumeBindingMode: WaitForFirstConsumer\n"
        );
        for (volume, node) in [("controller", 1), ("collector", 2)] {
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

    /// Values of the chart; `rate` limits the agents, so that faults meet a running copy.
    fn values(&self, rate: &str) -> String {
        let host = self.cluster.host_path();
        let host = host.display();
        let storage = "storage: { size: 1Gi, storageClassName: local }";
        let small = "resources: { requests: { cpu: 50m, memory: 64Mi } }";
        format!(
            "image: {{ tag: {IMAGE_TAG}, pullPolicy: Never }}\n\
             hostAliases:\n  - {{ ip: {CONTROLLER_ADDRESS}, hostnames: [penstock-controller.{CHART_NAMESPACE}.svc] }}\n  \
             - {{ ip: {COLLECTOR_ADDRESS}, hostnames: [penstock-collector.{CHART_NAMESPACE}.svc] }}\n\
             agents:\n  hosts:\n    - {{ name: dtn1, site: a, node: n1, rate: 1G }}\n    - {{ name: dtn2, site: b, node: n2, rate: 1G }}\n  \
             state: {{ path: {host}/state }}\n  \
             exports: [{{ name: /store, hostPath: {host}/store, mode: read-write, who: [controller] }}]\n  \
             limits: {{ rate: {rate} }}\n  {small}\n\
             controller:\n  {storage}\n  service: {{ clusterIP: {CONTROLLER_ADDRESS} }}\n  {small}\n\
             collector:\n  read: open\n  {storage}\n  service: {{ clusterIP: {COLLECTOR_ADDRESS} }}\n  {small}\n"
        )
    }

    fn helm(&self, verb: &str, rate: &str) -> Result<()> {
        let values = self.folder.path().join("values.yaml");
        fs::write(&values, self.values(rate))?;
        let chart = self.root.join("deploy/helm/penstock").display().to_string();
        let values = values.display().to_string();
        let words = [
            verb,
            "penstock",
            &chart,
            "-n",
            CHART_NAMESPACE,
            "-f",
            &values,
            "--wait",
            "--timeout",
            "4m",
        ];
        let notes = self.cluster.helm(&words)?;
        fs::write(self.folder.path().join("notes"), notes)?;
        Ok(())
    }

    fn wait_ready(&self, pods: usize) -> Result<()> {
        self.cluster.wait("all pods ready", START_LIMIT, |cluster| {
            let list = cluster.get("pods", CHART_NAMESPACE)?;
            let ready = items(&list).iter().filter(|pod| is_ready(pod)).count();
            Ok((ready == pods && items(&list).len() == pods).then_some(()))
        })
    }

    /// A command of the client in the cluster's network.
    fn penstock(&self, arguments: &[&str]) -> Command {
        let mut command = self.cluster.command(self.binary);
        command.env("PENSTOCK_STATE", self.folder.path().join("client")).args(arguments);
        command
    }

    /// Address of the controller's pod, which changes when it is replaced.
    fn controller(&self) -> Result<String> {
        let pods =
            ["get", "pods", "-n", CHART_NAMESPACE, "-o", "jsonpath={.items[0].status.podIP}", "-l"];
        let mut arguments = pods.to_vec();
        arguments.push("app.kubernetes.io/component=controller");
        Ok(format!("{}:8621", self.cluster.kubectl(&arguments)?))
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

    /// Copies files from the first to the second site, with a fault after some of them have arrived.
    fn copy(&self, name: &str, what: &str, fault: impl FnOnce() -> Result<()>) -> Result<()> {
        let source = self.cluster.host_files(1).join("store").join(name);
        let target = self.cluster.host_files(2).join("store").join(name);
        write_files(&source)?;
        let begun = Instant::now();
        let (from, to) = (format!("a:/store/{name}"), format!("b:/store/{name}"));
        let address = self.controller()?;
        let words = ["submit", &from, &to, "--json", "--controller", &address];
        let request: Value = serde_json::from_str(&output(&mut self.penstock(&words))?)?;
        let number = request["id"].to_string();
        if name != "plain" {
            self.cluster.wait("the first files are in place", COPY_LIMIT, |_| {
                Ok((count_files(&target) > 0).then_some(()))
            })?;
        }
        fault()?;
        let shown = self.cluster.wait("the request has ended", COPY_LIMIT, |_| {
            let address = self.controller()?;
            let words = ["show", &number, "--json", "--controller", &address];
            let shown: Value = serde_json::from_str(&output(&mut self.penstock(&words))?)?;
            let state = shown["request"]["state"].as_str().unwrap_or_default();
            Ok(["done", "partial", "failed", "cancelled"].contains(&state).then_some(shown.clone()))
        })?;
        let request = &shown["request"];
        ensure!(request["state"] == "done", "{what}: {request}");
        // Each file settled once: more would count more than there are.
        ensure!(request["files_done"] == FILES_PER_COPY, "{what}: {request}");
        output(Command::new("diff").arg("-r").args([&source, &target]))?;
        println!(
            "kubernetes: {FILES_PER_COPY} files, {what}: arrived in {:.1} s",
            begun.elapsed().as_secs_f64()
        );
        Ok(())
    }

    fn kill_receiver(&self) -> Result<()> {
        let list = self.cluster.get("pods", CHART_NAMESPACE)?;
        let is_receiver = |pod: &&Value| {
            pod["metadata"]["labels"]["app.kubernetes.io/component"] == "agent"
                && pod["spec"]["nodeName"] == "n2"
        };
        let pod = items(&list).iter().find(is_receiver).context("no agent on n2")?;
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let words = ["delete", "pod", name, "-n", CHART_NAMESPACE, "--grace-period=0", "--force"];
        self.cluster.kubectl(&words)?;
        self.wait_ready(4)
    }

    fn drain(&self) -> Result<()> {
        let words =
            ["drain", "n1", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"];
        self.cluster.kubectl(&words)?;
        self.cluster.kubectl(&["uncordon", "n1"])?;
        self.wait_ready(4)
    }

    fn uninstall(&self) -> Result<()> {
        self.cluster.helm(&["uninstall", "penstock", "-n", CHART_NAMESPACE, "--wait"])?;
        let kinds = "pods,services,configmaps,secrets,pvc,serviceaccounts,daemonsets,statefulsets,deployments,jobs,\
                     poddisruptionbudgets,networkpolicies,ingresses";
        self.cluster.wait("nothing is left", START_LIMIT, |cluster| {
            let left = cluster.kubectl(&["get", kinds, "-n", CHART_NAMESPACE, "-o", "name"])?;
            let own = ["serviceaccount/default", "configmap/kube-root-ca.crt"];
            let left: Vec<&str> = left.lines().filter(|line| !own.contains(line)).collect();
            if left.is_empty() { Ok(Some(())) } else { bail!("left: {}", left.join(" ")) }
        })
    }
}

/// Writes a tree of small files and some large ones.
fn write_files(folder: &Path) -> Result<()> {
    for number in 0..FILES_PER_COPY {
        let place = folder.join(format!("{}", number % 10));
        fs::create_dir_all(&place)?;
        let bytes = if number % 50 == 0 { 4 << 20 } else { 40 << 10 };
        let text = format!("file {number} ").repeat(bytes / 8);
        fs::write(place.join(format!("f{number}")), text)?;
    }
    output(
        Command::new("chown")
            .args(["-R", &format!("{DAEMON_USER_ID}:{DAEMON_USER_ID}")])
            .arg(folder),
    )
    .map(drop)
}

/// Files under their own names.
fn count_files(folder: &Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.path() {
            path if path.is_dir() => count_files(&path),
            path => usize::from(is_named(&path)),
        })
        .sum()
}

fn is_named(path: &Path) -> bool {
    path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.'))
}
