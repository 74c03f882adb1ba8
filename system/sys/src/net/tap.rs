//! TAP devices with virtio network headers (TUN/TAP), so that super-packets cross them whole.
//!
//! Each frame has `struct virtio_net_hdr_mrg_rxbuf` (12 bytes) in front: segment size and type (GSO), and the checksum that
//! is still to be computed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Size of the virtio network header before each frame.
pub const TAP_HEADER_BYTES: usize = 12;
/// Largest frame: virtio header, Ethernet header, VLAN tag and a super-packet.
pub const TAP_FRAME_BYTES_MAX: usize = TAP_HEADER_BYTES + 14 + 4 + 65_536;

/// A TAP device; dropping it removes the device.
#[derive(Debug)]
pub struct Tap(File);

impl Tap {
    /// Creates a device of this name in the calling thread's network namespace.
    ///
    /// # Errors
    /// `NotFound` where the kernel has no TUN/TAP; `PermissionDenied` without CAP_NET_ADMIN; `ResourceBusy` for a name in use.
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
        request.ifr_ifru.ifru_flags =
            (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        // SAFETY: the kernel reads and writes one `ifreq` at the pointer.
        check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
        let bytes = TAP_HEADER_BYTES as libc::c_int;
        // SAFETY: the kernel reads one int from the pointer.
        check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const bytes) })?;
        let offload = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        let offload = libc::c_ulong::from(offload);
        // SAFETY: TUNSETOFFLOAD takes a number and touches no memory.
        check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, offload) })?;
        Ok(Self(file))
    }

    /// Reads the next frame that the device sent, header first; `None` when no frame waits.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read_frame(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match (&self.0).read(buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes a frame, header first, that the device receives.
    ///
    /// # Errors
    /// `InvalidInput` for a malformed frame; else the kernel's error.
    pub fn write_frame(&self, frame: &[u8]) -> io::Result<()> {
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
