//! Ethernet devices whose packets a program carries (TUN/TAP), whole super-packets at a time.
//!
//! A frame comes and goes behind the twelve bytes of a virtio network header, which say how the kernel is to cut a
//! super-packet into segments and which checksum is still to be made.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// include/uapi/linux/if_tun.h.
const SET_INTERFACE: libc::c_ulong = 0x4004_54CA;
const SET_OFFLOAD: libc::c_ulong = 0x4004_54D0;
const SET_HEADER_SIZE: libc::c_ulong = 0x4004_54D8;
const TAP: libc::c_short = 2;
const NO_PACKET_INFORMATION: libc::c_short = 0x1000;
const VIRTIO_HEADER: libc::c_short = 0x4000;
const OFFLOAD_CHECKSUM: libc::c_ulong = 1;
const OFFLOAD_TCP4: libc::c_ulong = 2;
const OFFLOAD_TCP6: libc::c_ulong = 4;
const OFFLOAD_ECN: libc::c_ulong = 8;

/// Bytes of the header before each frame.
pub const TAP_HEADER_BYTES: usize = 12;
/// The longest frame with its header: a super-packet.
pub const TAP_FRAME_BYTES_MAX: usize = TAP_HEADER_BYTES + 14 + 4 + 65_536;

/// A device that lives as long as this.
#[derive(Debug)]
pub struct Tap(File);

impl Tap {
    /// A device of this name in the network namespace in which the calling thread is.
    ///
    /// # Errors
    /// `NotFound` where the kernel has none; `PermissionDenied` without CAP_NET_ADMIN; `ResourceBusy` for a name that is taken.
    pub fn open(name: &str) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")?;
        // SAFETY: all zeroes are a valid value of this C structure.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.is_empty() || name.len() >= request.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = TAP | NO_PACKET_INFORMATION | VIRTIO_HEADER;
        // SAFETY: the kernel reads and writes one `ifreq` at the pointer.
        check(unsafe { libc::ioctl(file.as_raw_fd(), SET_INTERFACE, &raw mut request) })?;
        let bytes = TAP_HEADER_BYTES as libc::c_int;
        // SAFETY: the kernel reads one int from the pointer.
        check(unsafe { libc::ioctl(file.as_raw_fd(), SET_HEADER_SIZE, &raw const bytes) })?;
        let offload = OFFLOAD_CHECKSUM | OFFLOAD_TCP4 | OFFLOAD_TCP6 | OFFLOAD_ECN;
        // SAFETY: this one takes a number.
        check(unsafe { libc::ioctl(file.as_raw_fd(), SET_OFFLOAD, offload) })?;
        Ok(Self(file))
    }

    /// The next frame that was sent by the device, header first; none when there is none now.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn take(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match (&self.0).read(buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Has the device receive a frame, header first.
    ///
    /// # Errors
    /// `InvalidInput` for what is none; whatever else the kernel says.
    pub fn give(&self, frame: &[u8]) -> io::Result<()> {
        (&self.0).write(frame).map(|_| ())
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
