//! Second virtual machine, with a disk that the first one connects: killed and started again as the test in the first asks
//! by lines on its console. Datagram sockets are the link between both.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::machine_arguments;

/// Test of `penstock/tests/nvmeof/main.rs` that runs in the first machine.
pub(super) const PEER_TEST_NAME: &str = "killed_machine_fails_reads_until_return";

/// Line with which the test kills the second machine.
const KILL_LINE: &str = "kernels: kill the peer";
/// Line with which it starts the second machine again.
const START_LINE: &str = "kernels: start the peer";

/// Command of the second machine: exports a disk of lines that the test knows.
pub(super) fn command(root: &Path) -> String {
    format!(
        "export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PENSTOCK_STATE=/run/state; \
         ip addr add 10.8.0.1/24 dev eth0; ip link set eth0 up; \
         yes penstock | head -c 1048576 > /run/image; \
         {} disk export /run/image --name run-7 --address 10.8.0.1 --to nqn.2020-01.org.example:h",
        root.join("target/debug/penstock").display()
    )
}

/// The second machine; killed when dropped.
#[derive(Debug)]
pub(super) struct PeerMachine {
    arguments: Vec<String>,
    /// Sockets of the second and the first machine.
    sockets: [PathBuf; 2],
    log: PathBuf,
    running: Option<Child>,
}

impl PeerMachine {
    /// Describes the machine; its sockets are in the folder `run`.
    pub(super) fn new(kernel: &Path, image: &Path, run: &Path, log: &Path) -> Self {
        let sockets = ["peer.sock", "first.sock"].map(|name| run.join(name));
        let mut arguments = machine_arguments(kernel, image, "kernels.peer");
        arguments.extend(link(&sockets[0], &sockets[1], 1));
        Self { arguments, sockets, log: log.to_owned(), running: None }
    }

    /// Arguments of QEMU for the first machine.
    pub(super) fn link(&self) -> Vec<String> {
        link(&self.sockets[1], &self.sockets[0], 2)
    }

    pub(super) fn start(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        // It ends with this process, however that ends.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log)
            .spawn()
            .context(
                "cannot run setpriv or qemu-system-x86_64: tools/setup.sh kernels installs it",
            )?;
        self.running = Some(child);
        Ok(())
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills or starts the machine where a line of the first one's console says so.
    pub(super) fn obey(&mut self, line: &str) -> Result<()> {
        match line {
            line if line.contains(KILL_LINE) => self.kill(),
            line if line.contains(START_LINE) => self.start()?,
            _ => {}
        }
        Ok(())
    }
}

impl Drop for PeerMachine {
    fn drop(&mut self) {
        self.kill();
        self.sockets.iter().for_each(|socket| drop(fs::remove_file(socket)));
    }
}

/// Arguments of QEMU for a network device whose packets go from one socket to another.
fn link(own: &Path, other: &Path, number: u8) -> Vec<String> {
    let [own, other] = [own, other].map(|path| path.display().to_string());
    [
        "-netdev".to_owned(),
        format!(
            "dgram,id=link,local.type=unix,local.path={own},remote.type=unix,remote.path={other}"
        ),
        "-device".to_owned(),
        format!("virtio-net-pci,netdev=link,mac=52:54:00:00:00:0{number}"),
    ]
    .into()
}
