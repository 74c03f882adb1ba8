//! An in-memory file (memfd) for `sendfile`, as iperf3's zero-copy mode.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create, sendfile};

use super::pattern::fill;

/// An anonymous file with fixed content.
#[derive(Debug)]
pub struct MemoryFile {
    file: File,
    length: u64,
}

impl MemoryFile {
    /// Creates a file of `length` bytes with fixed pseudo-random content.
    ///
    /// # Errors
    /// The kernel lacks memfd or memory.
    pub fn new(length: u64) -> io::Result<Self> {
        let file = File::from(memfd_create("penstock-nettest", MemfdFlags::CLOEXEC)?);
        ftruncate(&file, length)?;
        let mut content = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        fill(&mut content);
        file.write_all_at(&content, 0)?;
        Ok(Self { file, length })
    }

    /// File size in bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Sends up to `count` bytes from `offset`. Returns the bytes that the kernel accepted.
    ///
    /// # Errors
    /// The error of `sendfile`; `WouldBlock` after the socket's send timeout.
    pub fn send(&self, socket: &impl AsFd, offset: u64, count: usize) -> io::Result<usize> {
        let mut offset = offset;
        Ok(sendfile(socket, &self.file, Some(&mut offset), count)?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::MemoryFile;

    #[test]
    fn requested_range_is_sent() {
        let file = MemoryFile::new(10_000).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        assert_eq!(file.send(&client, 9_000, 5_000).unwrap(), 1_000);
        drop(client);
        let mut received = Vec::new();
        server.read_to_end(&mut received).unwrap();
        let mut expected = vec![0; 10_000];
        super::fill(&mut expected);
        assert_eq!(received, expected[9_000..]);
    }
}
