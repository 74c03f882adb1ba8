//! Records the process names of existing sockets, once when a rule for a program is added.
//!
//! The eBPF program records later sockets. In a program whose threads have different names, the name of the thread that
//! creates the socket counts.

use std::collections::BTreeSet;
use std::{fs, io};

use rustix::io::Errno;
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
            Ok(sockets) => walk.sockets += sockets,
            Err(error) if has_ended(&error) => {}
            Err(_) => walk.refused += 1,
        }
    }
    Ok(walk)
}

fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

fn note_process(number: i32, name: &str, tags: &mut SocketTags) -> io::Result<usize> {
    let process = Pid::from_raw(number).ok_or(io::ErrorKind::NotFound)?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    let mut noted = 0;
    for entry in fs::read_dir(format!("/proc/{number}/fd"))?.flatten() {
        let is_socket = fs::read_link(entry.path())
            .is_ok_and(|target| target.to_string_lossy().starts_with("socket:"));
        let descriptor = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let (true, Some(descriptor)) = (is_socket, descriptor) else { continue };
        let socket = match pidfd_getfd(&process, descriptor, PidfdGetfdFlags::empty()) {
            // The process has closed it meanwhile: its other sockets count.
            Err(Errno::BADF) => continue,
            result => result?,
        };
        if tags.note(&socket, name).is_ok() {
            noted += 1;
        }
    }
    Ok(noted)
}
