//! Where a sender's bytes come from, and by which of the kernel's doors they leave.
//!
//! What bounds one stream on loopback (two Zen 3 cores, Linux 6.18, per 64 KiB): the sender's page
//! references and protocol work, about 5 us, and the receiver's copy, per-page checks and protocol
//! work, about 5.5 us. Tried without gain: content or buffer of 128 or 256 KiB, small instead of huge
//! pages, huge pages at the receiver, `SO_RCVLOWAT` of 256 KiB to 4 MiB, a receiver that spins before
//! it sleeps, both threads pinned. The kernel makes one fragment of each 4 KiB page, whatever backs it.
//! On Zen 5 a copying `write` is as fast; how much is handed over at once decides there (`block.rs`).
//!
//! The fastest door is tried first. One that the kernel refuses (a sandbox without splice, an
//! exotic socket) is closed and the next one is taken; the reason goes into the report.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

use penstock_sys::net::{MemoryFile, PatternMemory, SplicePipe};

use super::params::SendPath;

/// Bytes of content, sent over and over.
pub(super) const CONTENT_BYTES: usize = 1 << 20;

#[derive(Debug)]
enum Door {
    Vmsplice(SplicePipe),
    Sendfile(MemoryFile),
    Write,
}

/// An endless supply of bytes for one stream.
#[derive(Debug)]
pub(super) struct Source {
    door: Door,
    memory: Arc<PatternMemory>,
    reason: Option<String>,
}

impl Source {
    /// Opens the door asked for, or the fastest that opens.
    pub(super) fn new(path: SendPath, memory: Arc<PatternMemory>) -> Self {
        let mut source = Self { door: Door::Write, memory, reason: None };
        match path {
            SendPath::Auto | SendPath::Vmsplice => source.open_vmsplice(),
            SendPath::Sendfile => source.open_sendfile(),
            SendPath::Write => {}
        }
        source
    }

    /// The door's name in reports.
    pub(super) const fn name(&self) -> &'static str {
        match self.door {
            Door::Vmsplice(_) => "vmsplice",
            Door::Sendfile(_) => "sendfile(memfd)",
            Door::Write => "write",
        }
    }

    /// Why it is not the first one tried.
    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Hands up to `length` bytes to `socket`; how many it took may be fewer.
    pub(super) fn send(
        &mut self,
        socket: &mut (impl AsFd + Write),
        length: usize,
    ) -> io::Result<usize> {
        let result = match &mut self.door {
            Door::Vmsplice(pipe) => pipe.send(socket, length),
            Door::Sendfile(file) => file.send(socket, 0, length.min(CONTENT_BYTES)),
            Door::Write => {
                let bytes = self.memory.bytes();
                return socket.write(&bytes[..length.min(bytes.len())]);
            }
        };
        match result {
            Err(error) if is_refusal(&error) => {
                match self.door {
                    Door::Vmsplice(_) => {
                        self.note("vmsplice", &error);
                        self.open_sendfile();
                    }
                    _ => {
                        self.note("sendfile", &error);
                        self.door = Door::Write;
                    }
                }
                self.send(socket, length)
            }
            result => result,
        }
    }

    fn open_vmsplice(&mut self) {
        match SplicePipe::new(&self.memory) {
            Ok(pipe) => self.door = Door::Vmsplice(pipe),
            Err(error) => {
                self.note("vmsplice", &error);
                self.open_sendfile();
            }
        }
    }

    fn open_sendfile(&mut self) {
        match MemoryFile::new(CONTENT_BYTES as u64) {
            Ok(file) => self.door = Door::Sendfile(file),
            Err(error) => {
                self.note("sendfile(memfd)", &error);
                self.door = Door::Write;
            }
        }
    }

    fn note(&mut self, door: &str, error: &io::Error) {
        let before = self.reason.take().map_or_else(String::new, |reason| reason + "; ");
        self.reason = Some(format!("{before}{door}: {error}"));
    }
}

/// Whether the kernel refuses the call as such, rather than this connection having ended.
fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    matches!(error.kind(), InvalidInput | PermissionDenied | Unsupported)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    /// splice and sendfile refuse files that are open for appending; write does not.
    #[test]
    fn a_refused_path_is_named_and_the_next_one_sends_the_same_bytes() {
        let place = tempfile::tempdir().unwrap();
        for (path, refused) in [
            (SendPath::Auto, &["vmsplice: ", "sendfile: "][..]),
            (SendPath::Sendfile, &["sendfile: "]),
            (SendPath::Write, &[]),
        ] {
            let memory = Arc::new(PatternMemory::new(CONTENT_BYTES).unwrap());
            let name = place.path().join(format!("{path:?}"));
            let mut file = OpenOptions::new().append(true).create(true).open(&name).unwrap();
            let mut source = Source::new(path, memory.clone());
            let sent = source.send(&mut file, 100_000).unwrap();
            assert_eq!(source.name(), "write");
            let reason = source.reason().unwrap_or_default();
            assert_eq!(reason.split("; ").filter(|part| !part.is_empty()).count(), refused.len());
            assert!(refused.iter().all(|door| reason.contains(door)), "{reason}");
            assert_eq!(std::fs::read(&name).unwrap(), memory.bytes()[..sent]);
        }
    }
}
