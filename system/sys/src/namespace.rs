//! Network namespaces: made, entered, and gone with the last that holds them.
//!
//! A namespace made here has no name and no mount. It lives as long as a process runs in it or holds its descriptor,
//! so that nothing is left of it however its maker ends.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// A network namespace.
#[derive(Debug)]
pub struct NetworkNamespace(File);

impl NetworkNamespace {
    /// A new one, with a loopback device that is down.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_SYS_ADMIN, or when the kernel has no room for more.
    pub fn new() -> io::Result<Self> {
        // A thread of its own: the rest of the process stays where it is.
        on_own_thread(|| {
            // SAFETY: a new network namespace changes nothing that memory safety rests on; file descriptors and
            // memory stay shared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            Self::current()
        })?
    }

    /// The one in which the calling thread is.
    ///
    /// # Errors
    /// Where `/proc` is not mounted.
    pub fn current() -> io::Result<Self> {
        Self::at(Path::new("/proc/thread-self/ns/net"))
    }

    /// The one that a file under `/proc/PID/ns`, `/proc/PID/fd` or `/run/netns` stands for.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn at(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// What the kernel calls it: the same number for the same namespace while it lives.
    ///
    /// # Errors
    /// Never on Linux as it is.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.ino())
    }

    /// Moves the calling thread into it for good.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_SYS_ADMIN over it.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Does some work in it, on a thread of its own: sockets made there belong to it wherever they go.
    ///
    /// # Errors
    /// As [`Self::enter`]; what the work gives is inside.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_own_thread(|| self.enter().map(|()| work()))?
    }
}

/// The number of the network namespace in which the calling thread is: no other has it until the machine restarts.
///
/// # Errors
/// Before Linux 5.14 there is none.
pub fn network_cookie() -> io::Result<u64> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))
        .or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
    let mut cookie = 0_u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: the socket is open; the kernel writes eight bytes at most, and how many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

impl AsFd for NetworkNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let started =
            thread::Builder::new().name("namespace".to_owned()).spawn_scoped(scope, work)?;
        Ok(started.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Gives the calling process, which must have one thread only, a user namespace in which it is root, and with it
/// the right to make network namespaces.
///
/// # Errors
/// Where the machine forbids it (`kernel.unprivileged_userns_clone`, `user.max_user_namespaces`, a security module).
pub fn become_root_of_own_user_namespace() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: credentials are those of the whole process, which has one thread; memory and descriptors stay.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?;
    // A group map needs this first: user_namespaces(7).
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

/// Moves the calling process, which must have one thread only, into the user namespace that `path` stands for.
///
/// # Errors
/// `PermissionDenied` where it belongs to someone else.
pub fn enter_user_namespace(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::User))?)
}

/// Gives the calling process mounts of its own: what it mounts from now on nobody else sees.
///
/// # Errors
/// `PermissionDenied` without CAP_SYS_ADMIN.
pub fn own_mounts() -> io::Result<()> {
    use rustix::mount::{MountPropagationFlags, mount_change};
    // SAFETY: only the view of the file system changes.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    let flags = MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM;
    Ok(mount_change("/", flags)?)
}

/// Puts `file` over `place`, in the mounts that the process has.
///
/// # Errors
/// Where either is not there, or without CAP_SYS_ADMIN.
pub fn mount_over(file: &Path, place: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_bind(file, place)?)
}

/// A `/sys` that shows the devices of the network namespace in which the calling process is.
///
/// # Errors
/// As [`mount_over`].
pub fn mount_sys() -> io::Result<()> {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let _ = unmount("/sys", UnmountFlags::DETACH);
    Ok(mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Link;

    #[test]
    fn a_new_namespace_has_a_loopback_of_its_own_and_goes_with_its_holder() {
        let Ok(namespace) = NetworkNamespace::new() else {
            println!("skipped: needs root");
            return;
        };
        let here = NetworkNamespace::current().unwrap().inode().unwrap();
        let there = namespace.inside(|| NetworkNamespace::current().unwrap().inode().unwrap());
        assert_eq!(there.unwrap(), namespace.inode().unwrap());
        assert_ne!(namespace.inode().unwrap(), here);
        assert_eq!(namespace.inside(|| Link::named("lo").unwrap().name).unwrap(), "lo");
        let cookie = network_cookie().unwrap();
        assert_ne!(namespace.inside(network_cookie).unwrap().unwrap(), cookie);
        // The thread of the test stayed where it was.
        assert_eq!(network_cookie().unwrap(), cookie);
        assert_eq!(NetworkNamespace::current().unwrap().inode().unwrap(), here);
    }
}
