//! Network, user and mount namespaces.
//!
//! A network namespace created here has no name and no mount: the kernel removes it when no process runs in it and none
//! holds its descriptor, so a crash leaves nothing behind.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// A descriptor of a network namespace, which keeps it alive.
#[derive(Debug)]
pub struct NetworkNamespace(File);

impl NetworkNamespace {
    /// Creates a namespace. Its loopback device is down.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_SYS_ADMIN; the kernel's error beyond `user.max_net_namespaces`.
    pub fn new() -> io::Result<Self> {
        // On its own thread: unshare(2) moves the calling thread.
        on_own_thread(|| {
            // SAFETY: a new network namespace changes nothing that memory safety rests on; file descriptors and
            // memory stay shared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            Self::current()
        })?
    }

    /// Opens the calling thread's namespace.
    ///
    /// # Errors
    /// Where `/proc` is not mounted.
    pub fn current() -> io::Result<Self> {
        Self::at(Path::new("/proc/thread-self/ns/net"))
    }

    /// Opens a namespace by a file under `/proc/PID/ns`, `/proc/PID/fd` or `/run/netns`.
    ///
    /// # Errors
    /// The error of `open`.
    pub fn at(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// Inode number: identifies the namespace while it lives.
    ///
    /// # Errors
    /// The error of `fstat`.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.ino())
    }

    /// Moves the calling thread into the namespace (setns(2)).
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_SYS_ADMIN over it.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Runs `work` on a new thread in the namespace. Sockets that it opens stay in the namespace.
    ///
    /// # Errors
    /// As [`Self::enter`].
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_own_thread(|| self.enter().map(|()| work()))?
    }
}

/// Cookie of the calling thread's network namespace (SO_NETNS_COOKIE), unique until the machine restarts.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 5.14.
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

/// Moves the calling process into a new user namespace in which it is root and may create network namespaces. The process
/// must have one thread.
///
/// # Errors
/// Where the machine forbids it (`kernel.unprivileged_userns_clone`, `user.max_user_namespaces`, a security module).
pub fn unshare_user_namespace() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: credentials are those of the whole process, which has one thread; memory and descriptors stay.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?;
    // A group map needs this first: user_namespaces(7).
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

/// Moves the calling process into the user namespace at `path`. The process must have one thread.
///
/// # Errors
/// `PermissionDenied` where it belongs to another user.
pub fn enter_user_namespace(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::User))?)
}

/// Moves the calling process into a new mount namespace: other processes do not see its later mounts.
///
/// # Errors
/// `PermissionDenied` without CAP_SYS_ADMIN.
pub fn unshare_mounts() -> io::Result<()> {
    use rustix::mount::{MountPropagationFlags, mount_change};
    // SAFETY: only the view of the file system changes.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    let flags = MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM;
    Ok(mount_change("/", flags)?)
}

/// Bind-mounts `source` over `target`.
///
/// # Errors
/// Where either is missing, or without CAP_SYS_ADMIN.
pub fn bind_mount(source: &Path, target: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_bind(source, target)?)
}

/// Mounts a `/sys` that shows the devices of the calling process's network namespace.
///
/// # Errors
/// As [`bind_mount`].
pub fn mount_sys() -> io::Result<()> {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let _ = unmount("/sys", UnmountFlags::DETACH);
    Ok(mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::LinkAttributes;

    #[test]
    fn new_namespace_has_own_loopback() {
        let Ok(namespace) = NetworkNamespace::new() else {
            penstock_testkit::skip(penstock_testkit::Requirement::Root, "needs root");
            return;
        };
        let here = NetworkNamespace::current().unwrap().inode().unwrap();
        let there = namespace.inside(|| NetworkNamespace::current().unwrap().inode().unwrap());
        assert_eq!(there.unwrap(), namespace.inode().unwrap());
        assert_ne!(namespace.inode().unwrap(), here);
        assert_eq!(namespace.inside(|| LinkAttributes::named("lo").unwrap().name).unwrap(), "lo");
        let cookie = network_cookie().unwrap();
        assert_ne!(namespace.inside(network_cookie).unwrap().unwrap(), cookie);
        // The test's thread did not move.
        assert_eq!(network_cookie().unwrap(), cookie);
        assert_eq!(NetworkNamespace::current().unwrap().inode().unwrap(), here);
    }
}
