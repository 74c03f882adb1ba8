//! Records the process names of existing sockets, once when a rule for a program is added.
//!
//! The eBPF program records later sockets. In a program whose threads have different names, the name of the thread that
//! creates the socket counts.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::error::MarkerError;
use crate::sockets::SocketTags;

/// Result of a scan of all processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketScan {
    /// Sockets that belong to a program with a rule.
    pub sockets: usize,
    /// Processes of such programs whose sockets could not be opened.
    pub refused: usize,
}

/// Records the sockets of all processes whose name is in `programs`.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn note_sockets(
    programs: &BTreeSet<String>,
    tags: &mut SocketTags,
) -> Result<SocketScan, MarkerError> {
    let mut walk = SocketScan::default();
    if programs.is_empty() {
        return Ok(walk);
    }
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        // A process may end at any moment.
        let Ok(name) = fs::read_to_string(entry.path().join("comm")) else { continue };
        let name = name.trim_end_matches('\n');
        if !programs.contains(name) {
            continue;
        }
        match note_process(number, name, tags) {
            Some(sockets) => walk.sockets += sockets,
            None => walk.refused += 1,
        }
    }
    Ok(walk)
}

fn note_process(number: i32, name: &str, tags: &mut SocketTags) -> Option<usize> {
    let process = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
    let mut noted = 0;
    for entry in fs::read_dir(format!("/proc/{number}/fd")).ok()?.flatten() {
        let is_socket = fs::read_link(entry.path())
            .is_ok_and(|target| target.to_string_lossy().starts_with("socket:"));
        let descriptor = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let (true, Some(descriptor)) = (is_socket, descriptor) else { continue };
        let socket = pidfd_getfd(&process, descriptor, PidfdGetfdFlags::empty()).ok()?;
        if tags.note(&socket, name).is_ok() {
            noted += 1;
        }
    }
    Some(noted)
}
