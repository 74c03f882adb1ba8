//! Programs of Kubernetes, Helm, kubeconform and kube-router, built from Go modules and kept by version.
//!
//! `xtask/kubernetes/go.mod` and `go.sum` pin every module but that of kube-router; one module for all programs, so that what
//! they share compiles once. The programs are in `target/kubernetes/bin/NAME-VERSION`, the caches of Go in `target/go`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::program::output_text;

/// Folder with the Go module, in the checkout.
const MODULE: &str = "xtask/kubernetes";

/// Path of the module of Kubernetes.
const KUBERNETES_MODULE: &str = "k8s.io/kubernetes";

/// Module of the program that enforces network policies. `go.mod` does not name it: it needs older modules of Kubernetes. The
/// database of sums checks it and the modules of its own `go.sum`.
const ROUTER_MODULE: &str = "github.com/cloudnativelabs/kube-router/v2";

/// Version of that module.
const ROUTER_VERSION: &str = "v2.1.0";

/// A program that this module builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Tool {
    /// Renders and installs the chart
    Helm,
    /// Checks manifests against schemas
    Kubeconform,
    /// The scheduler
    KubeScheduler,
    /// Addresses of services
    KubeProxy,
    /// The agent of a node
    Kubelet,
    /// The controllers of Kubernetes's own objects
    KubeControllerManager,
    /// The API server
    KubeApiserver,
    /// The client
    Kubectl,
    /// Network policies, as filters of each node
    KubeRouter,
}

impl Tool {
    /// Programs that a cluster needs, cheap ones first.
    pub(super) const CLUSTER: [Self; 8] = [
        Self::Helm,
        Self::Kubectl,
        Self::KubeRouter,
        Self::KubeScheduler,
        Self::KubeProxy,
        Self::Kubelet,
        Self::KubeControllerManager,
        Self::KubeApiserver,
    ];

    /// Name of the program.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Helm => "helm",
            Self::Kubeconform => "kubeconform",
            Self::KubeScheduler => "kube-scheduler",
            Self::KubeProxy => "kube-proxy",
            Self::Kubelet => "kubelet",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeApiserver => "kube-apiserver",
            Self::Kubectl => "kubectl",
            Self::KubeRouter => "kube-router",
        }
    }

    /// Path of the module that has the program.
    const fn module(self) -> &'static str {
        match self {
            Self::Helm => "helm.sh/helm/v3",
            Self::Kubeconform => "github.com/yannh/kubeconform",
            Self::KubeRouter => ROUTER_MODULE,
            _ => KUBERNETES_MODULE,
        }
    }
}

/// Path at which the program is, built or not.
///
/// # Errors
/// When the module file does not pin it.
pub fn path(root: &Path, tool: Tool) -> Result<PathBuf> {
    let version = match tool {
        Tool::KubeRouter => ROUTER_VERSION.to_owned(),
        _ => version(root, tool.module())?,
    };
    Ok(root.join("target/kubernetes/bin").join(format!("{}-{version}", tool.name())))
}

/// Version of Kubernetes that the module file pins, as `v1.37.2`.
///
/// # Errors
/// When the module file does not name it.
pub fn kubernetes_version(root: &Path) -> Result<String> {
    version(root, KUBERNETES_MODULE)
}

/// Builds a program unless it is there; returns its path.
///
/// # Errors
/// When Go is missing or the build fails.
pub fn build(root: &Path, tool: Tool) -> Result<PathBuf> {
    let program = path(root, tool)?;
    if program.exists() {
        return Ok(program);
    }
    let begun = Instant::now();
    println!("kubernetes: building {}", tool.name());
    let package = format!("{}/cmd/{}", tool.module(), tool.name());
    let flags = link_flags(root, tool)?;
    let folder = root.join("target/kubernetes/new");
    let new = folder.join(tool.name());
    let mut command = go(root)?;
    if tool == Tool::KubeRouter {
        command.args(["install", "-ldflags", &flags]).env("GOBIN", &folder);
        command.arg(format!("{package}@{ROUTER_VERSION}"));
    } else {
        command.args(["build", "-ldflags", &flags, "-o"]).arg(&new).arg(package);
    }
    run(&mut command)?;
    std::fs::rename(&new, &program).with_context(|| new.display().to_string())?;
    println!("kubernetes: {} in {:.0} s", program.display(), begun.elapsed().as_secs_f64());
    Ok(program)
}

/// Folder of the sources of Kubernetes, downloaded if needed.
///
/// # Errors
/// When Go is missing or the download fails.
pub fn kubernetes_sources(root: &Path) -> Result<PathBuf> {
    let output = go(root)?
        .args(["list", "-m", "-f", "{{.Dir}}", KUBERNETES_MODULE])
        .output()
        .context("cannot run go")?;
    let listed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !listed.is_empty() {
        return Ok(listed.into());
    }
    run(go(root)?.args(["mod", "download", KUBERNETES_MODULE]))?;
    let folder = format!("target/go/mod/{KUBERNETES_MODULE}@{}", kubernetes_version(root)?);
    Ok(root.join(folder))
}

/// Folder of the sources of a module that `go.mod` does not name, downloaded if needed and checked by the database of sums.
///
/// # Errors
/// When Go is missing or the download fails.
pub(super) fn module_sources(root: &Path, module: &str, version: &str) -> Result<PathBuf> {
    let mut download = go(root)?;
    download.args(["mod", "download", "-json", &format!("{module}@{version}")]);
    let text = output_text(&mut download, "kubernetes")?;
    let facts: Value = serde_json::from_str(&text)?;
    Ok(facts["Dir"].as_str().with_context(|| format!("{module}: no folder"))?.into())
}

/// Flags of the linker by which the programs know their version: clients refuse a server without one.
fn link_flags(root: &Path, tool: Tool) -> Result<String> {
    let kubernetes = kubernetes_version(root)?;
    let mut numbers = kubernetes.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let base = "k8s.io/component-base/version";
    let set = match tool {
        Tool::Kubeconform | Tool::KubeRouter => Vec::new(),
        Tool::Helm => {
            let module = tool.module();
            let own = version(root, module)?;
            let mut set = vec![format!("{module}/internal/version.version={own}")];
            for package in ["pkg/chartutil", "pkg/lint/rules"] {
                set.push(format!("{module}/{package}.k8sVersionMajor={major}"));
                set.push(format!("{module}/{package}.k8sVersionMinor={minor}"));
            }
            set
        }
        _ => vec![
            format!("{base}.gitVersion={kubernetes}"),
            format!("{base}.gitMajor={major}"),
            format!("{base}.gitMinor={minor}"),
        ],
    };
    let set = set.iter().map(|one| format!(" -X {one}"));
    Ok(format!("-s -w{}", set.collect::<String>()))
}

/// Version of a module in `go.mod`.
fn version(root: &Path, module: &str) -> Result<String> {
    let file = root.join(MODULE).join("go.mod");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("cannot read {}", file.display()))?;
    let line =
        text.lines().map(str::trim).find_map(|line| line.strip_prefix(module)?.strip_prefix(' '));
    let version = line.and_then(|rest| rest.split_whitespace().next());
    Ok(version.with_context(|| format!("{} does not name {module}", file.display()))?.to_owned())
}

/// The command `go` in the module, with its caches in the target folder.
fn go(root: &Path) -> Result<Command> {
    let caches = root.join("target/go");
    let programs = root.join("target/kubernetes");
    for folder in [caches.join("tmp"), programs.join("bin"), programs.join("new")] {
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let mut command = Command::new("go");
    command
        .current_dir(root.join(MODULE))
        .env("GOFLAGS", "-mod=readonly -buildvcs=false -modcacherw -trimpath")
        .env("GOPATH", &caches)
        .env("GOCACHE", caches.join("build"))
        .env("GOMODCACHE", caches.join("mod"))
        .env("GOTMPDIR", caches.join("tmp"))
        .env("GOWORK", "off")
        .env("CGO_ENABLED", "0");
    Ok(command)
}

fn run(command: &mut Command) -> Result<()> {
    let status = match command.status() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!(
                "go is not installed: Kubernetes needs the Go of {MODULE}/go.mod (https://go.dev)"
            )
        }
        other => other.context("cannot run go")?,
    };
    ensure!(status.success(), "go failed: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_module_file() {
        let root = crate::workspace_root();
        let name = path(&root, Tool::Kubelet).unwrap();
        let name = name.file_name().unwrap().to_string_lossy().into_owned();
        let version = kubernetes_version(&root).unwrap();
        assert_eq!(name, format!("kubelet-{version}"));
        assert!(version.starts_with("v1."));
        let flags = link_flags(&root, Tool::Kubelet).unwrap();
        assert!(flags.contains(&format!("gitVersion={version}")), "{flags}");
    }
}
