//! Two network namespaces joined by a veth pair.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use penstock_testkit::{Requirement, is_root, skip};

use super::{Agent, capture, run};

/// IPv6 address of the near end.
pub const NEAR: &str = "fd00:91::1";
/// IPv6 address of the far end.
pub const FAR: &str = "fd00:91::2";
/// IPv4 address of the near end.
pub const NEAR_IPV4: &str = "10.91.0.1";
/// IPv4 address of the far end.
pub const FAR_IPV4: &str = "10.91.0.2";

/// Two namespaces joined by the devices `pst0` (near) and `pst1` (far); removed when dropped.
pub struct NamespacePair {
    pub near: String,
    pub far: String,
}

/// Runs `ip`; true if it succeeds.
pub fn ip(arguments: &str) -> bool {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    output.is_ok_and(|output| output.status.success())
}

impl NamespacePair {
    /// Creates the pair. Without root, these programs or namespaces it is `None`, and the test is reported as skipped.
    pub fn new(programs: &[&str]) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !is_root() {
            skip(Requirement::Root, "only root makes network namespaces");
            return None;
        }
        for program in programs {
            if Command::new(program).arg("--version").output().is_err() {
                skip(Requirement::Program, &format!("{program} is not installed"));
                return None;
            }
        }
        let id = format!("{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let pair = Self { near: format!("pst-near-{id}"), far: format!("pst-far-{id}") };
        let (near, far) = (&pair.near, &pair.far);
        let made = ip(&format!("netns add {near}"))
            && ip(&format!("netns add {far}"))
            && ip(&format!("-n {near} link add pst0 type veth peer name pst1 netns {far}"))
            && ip(&format!("-n {near} addr add {NEAR}/64 dev pst0 nodad"))
            && ip(&format!("-n {far} addr add {FAR}/64 dev pst1 nodad"))
            && ip(&format!("-n {near} addr add {NEAR_IPV4}/24 dev pst0"))
            && ip(&format!("-n {far} addr add {FAR_IPV4}/24 dev pst1"))
            && [(near, "pst0"), (near, "lo"), (far, "pst1"), (far, "lo")]
                .iter()
                .all(|(space, device)| ip(&format!("-n {space} link set {device} up")));
        if !made {
            skip(Requirement::Kernel, "network namespaces cannot be made here");
        }
        made.then_some(pair)
    }

    /// Runs a command in both namespaces; it must succeed.
    pub fn on_both(&self, command: impl Fn(&str) -> String) {
        for (space, device) in [(&self.near, "pst0"), (&self.far, "pst1")] {
            let command = command(device);
            assert!(ip(&format!("netns exec {space} {command}")), "{command}");
        }
    }

    /// The command inside a namespace.
    pub fn inside(space: &str, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", space]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Logs a client in the near namespace in to an agent, by the token in the agent's state directory.
    pub fn log_in(&self, mut client: Command, agent: &Agent, state: &Path) {
        let token = std::fs::read_to_string(state.join("token")).unwrap();
        client.args(["login", &agent.listen, "--token", token.trim()]);
        client.args(["--fingerprint", &agent.fingerprint]);
        run(Self::inside(&self.near, &client)).good();
    }

    /// Captures packets that match `filter` into `file`, in the far namespace, while `work` runs.
    pub fn capture<T>(&self, filter: &str, file: &Path, work: impl FnOnce() -> T) -> T {
        let tcpdump = Self::inside(&self.far, &capture::tcpdump("pst1", filter));
        capture::capture(tcpdump, file, work)
    }
}

impl Drop for NamespacePair {
    fn drop(&mut self) {
        for space in [&self.near, &self.far] {
            let _ = Command::new("ip").args(["netns", "del", space]).status();
        }
    }
}
