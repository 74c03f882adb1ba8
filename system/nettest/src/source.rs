//! Data source of a sender: endless test data, sent by one of several system calls.
//!
//! Limits of one stream on loopback (two Zen 3 cores, Linux 6.18, per 64 KiB): the sender's page
//! references and protocol work, about 5 us, and the receiver's copy, per-page checks and protocol
//! work, about 5.5 us. Tried without gain: content or buffer of 128 or 256 KiB, small instead of huge
//! pages, huge pages at the receiver, `SO_RCVLOWAT` of 256 KiB to 4 MiB, a receiver that spins before
//! it sleeps, both threads pinned. The kernel makes one fragment of each 4 KiB page, whatever backs it.
//! On Zen 5 a copying `write` is as fast; there the block size matters (`block.rs`).
//!
//! The fastest system call is tried first. If the kernel refuses it (a sandbox without splice, an
//! unusual socket), the next one is used and the reason reported.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

use penstock_sys::net::{MemoryFile, PatternMemory, SplicePipe};

use crate::params::SendPath;

/// Size of the content in bytes, sent repeatedly.
pub(crate) const CONTENT_BYTES: usize = 1 << 20;

#[derive(Debug)]
enum SendCall {
    Vmsplice(SplicePipe),
    Sendfile(MemoryFile),
    Write,
}

/// Endless data source of one stream.
#[derive(Debug)]
pub(crate) struct DataSource {
    call: SendCall,
    memory: Arc<PatternMemory>,
    reason: Option<String>,
}

impl DataSource {
    /// Creates a source with the requested system call, or the fastest that works.
    pub(crate) fn new(path: SendPath, memory: Arc<PatternMemory>) -> Self {
        let mut source = Self { call: SendCall::Write, memory, reason: None };
        match path {
            SendPath::Auto | SendPath::Vmsplice => source.open_vmsplice(),
            SendPath::Sendfile => source.open_sendfile(),
            SendPath::Write => {}
        }
        source
    }

    /// Name of the system call in reports.
    pub(crate) const fn name(&self) -> &'static str {
        match self.call {
            SendCall::Vmsplice(_) => "vmsplice",
            SendCall::Sendfile(_) => "sendfile(memfd)",
            SendCall::Write => "write",
        }
    }

    /// Reason why the first one tried is not used.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Sends up to `length` bytes to `socket`; returns the number sent, which may be smaller.
    pub(crate) fn send(
        &mut self,
        socket: &mut (impl AsFd + Write),
        length: usize,
    ) -> io::Result<usize> {
        let result = match &mut self.call {
            SendCall::Vmsplice(pipe) => pipe.send(socket, length),
            SendCall::Sendfile(file) => file.send(socket, 0, length.min(CONTENT_BYTES)),
            SendCall::Write => {
                let bytes = self.memory.bytes();
                return socket.write(&bytes[..length.min(bytes.len())]);
            }
        };
        match result {
            Err(error) if is_refusal(&error) => {
                match self.call {
                    SendCall::Vmsplice(_) => {
                        self.note("vmsplice", &error);
                        self.open_sendfile();
                    }
                    _ => {
                        self.note("sendfile", &error);
                        self.call = SendCall::Write;
                    }
                }
                self.send(socket, length)
            }
            result => result,
        }
    }

    fn open_vmsplice(&mut self) {
        match SplicePipe::new(&self.memory) {
            Ok(pipe) => self.call = SendCall::Vmsplice(pipe),
            Err(error) => {
                self.note("vmsplice", &error);
                self.open_sendfile();
            }
        }
    }

    fn open_sendfile(&mut self) {
        match MemoryFile::new(CONTENT_BYTES as u64) {
            Ok(file) => self.call = SendCall::Sendfile(file),
            Err(error) => {
                self.note("sendfile(memfd)", &error);
                self.call = SendCall::Write;
            }
        }
    }

    fn note(&mut self, call: &str, error: &io::Error) {
        let before = self.reason.take().map_or_else(String::new, |reason| reason + "; ");
        self.reason = Some(format!("{before}{call}: {error}"));
    }
}

/// True if the kernel refuses the system call itself; false if the connection ended.
fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    matches!(error.kind(), InvalidInput | PermissionDenied | Unsupported)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    /// splice and sendfile refuse files opened for appending; write does not.
    #[test]
    fn refused_path_falls_back_to_next() {
        let place = tempfile::tempdir().unwrap();
        for (path, refused) in [
            (SendPath::Auto, &["vmsplice: ", "sendfile: "][..]),
            (SendPath::Sendfile, &["sendfile: "]),
            (SendPath::Write, &[]),
        ] {
            let memory = Arc::new(PatternMemory::new(CONTENT_BYTES).unwrap());
            let name = place.path().join(format!("{path:?}"));
            let mut file = OpenOptions::new().append(true).create(true).open(&name).unwrap();
            let mut source = DataSource::new(path, memory.clone());
            let sent = source.send(&mut file, 100_000).unwrap();
            assert_eq!(source.name(), "write");
            let reason = source.reason().unwrap_or_default();
            assert_eq!(reason.split("; ").filter(|part| !part.is_empty()).count(), refused.len());
            assert!(refused.iter().all(|call| reason.contains(call)), "{reason}");
            assert_eq!(std::fs::read(&name).unwrap(), memory.bytes()[..sent]);
        }
    }
}
