//! Files and devices that may be exported: none that is mounted, swapped to, part of another device, or exported already.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::DiskError;

/// `O_EXCL` without `O_CREAT`: the kernel refuses a block device that is mounted or part of another one, and refuses both
/// while this descriptor is open.
const OPEN_EXCLUSIVE_FLAG: i32 = 0o200;
/// Largest block of a namespace that Linux makes of a file, in bytes.
const FILE_BLOCK_BYTES: u64 = 4096;

/// File or device that is held for an export.
#[derive(Debug)]
pub struct DiskUse {
    /// Path without symbolic links, as the target opens it.
    pub path: PathBuf,
    /// Size in bytes; 0 for a device.
    pub bytes: u64,
    /// True where the target must use the page cache, as the file system has no `O_DIRECT`.
    pub buffered: bool,
    /// Holds the file or device.
    _held: File,
}

impl DiskUse {
    /// Checks that `path` is free, and holds it.
    ///
    /// # Errors
    /// The use of the file or device, with a remedy.
    pub fn hold(path: &Path) -> Result<Self, DiskError> {
        Self::hold_on(path, Path::new("/"))
    }

    fn hold_on(path: &Path, root: &Path) -> Result<Self, DiskError> {
        let refuse = |reason: String| DiskError::Local { path: path.display().to_string(), reason };
        let io = |error: io::Error| refuse(penstock_sys::fs::describe(&error));
        let path_found = path.canonicalize().map_err(io)?;
        let found = fs::metadata(&path_found).map_err(io)?;
        let kind = found.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(refuse("only files and block devices can be exported".to_owned()));
        }
        if let Some(reason) =
            user_of(&path_found, kind.is_block_device().then_some(found.rdev()), root)
        {
            return Err(refuse(reason));
        }
        let mut how = OpenOptions::new();
        how.read(true).write(true);
        if kind.is_block_device() {
            let held = how.custom_flags(OPEN_EXCLUSIVE_FLAG).open(&path_found).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::ResourceBusy => refuse(
                        "the device or one of its partitions is in use: unmount it, or remove it from its RAID or LVM, \
                         first"
                            .to_owned(),
                    ),
                    _ => io(error),
                }
            })?;
            return Ok(Self { path: path_found, bytes: 0, buffered: false, _held: held });
        }
        let bytes = found.len();
        if bytes == 0 || bytes % FILE_BLOCK_BYTES != 0 {
            return Err(refuse(format!(
                "its {bytes} B are no multiple of {FILE_BLOCK_BYTES}: a disk has whole blocks (truncate -s %{FILE_BLOCK_BYTES} extends it)"
            )));
        }
        let held = how.open(&path_found).map_err(io)?;
        if !penstock_sys::fs::try_lock(&held).map_err(io)? {
            return Err(refuse(
                "another process holds a lock on it: is it exported already?".to_owned(),
            ));
        }
        // The target's direct I/O fails on tmpfs before Linux 6.6.
        let is_tmpfs = penstock_sys::fs::file_system_name(&held).is_ok_and(|name| name == "tmpfs");
        let buffered =
            is_tmpfs || !matches!(penstock_sys::fs::direct_alignment(&held), Ok(Some(_)));
        Ok(Self { path: path_found, bytes, buffered, _held: held })
    }
}

/// User of a file or device, with a remedy.
fn user_of(path: &Path, device: Option<u64>, root: &Path) -> Option<String> {
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    let text = path.display().to_string();
    let swaps = read("proc/swaps");
    if swaps.lines().any(|line| line.split_whitespace().next() == Some(text.as_str())) {
        return Some(format!("the kernel swaps to it: swapoff {text}"));
    }
    if let Some(device) = device {
        let number = format!("{}:{}", major(device), minor(device));
        let mounts = read("proc/self/mountinfo");
        let mounted = mounts.lines().find_map(|line| {
            let mut fields = line.split_whitespace();
            let mount_point = fields.clone().nth(4)?;
            (fields.nth(2)? == number).then(|| mount_point.to_owned())
        });
        if let Some(place) = mounted {
            return Some(format!("it is mounted on {place}: umount {place}"));
        }
        let holders = root.join(format!("sys/dev/block/{number}/holders"));
        if let Some(holder) = fs::read_dir(holders).ok()?.flatten().next() {
            return Some(format!("it is part of {}", holder.file_name().to_string_lossy()));
        }
        return None;
    }
    for entry in fs::read_dir(root.join("sys/block")).ok()?.flatten() {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file"));
        if backing.is_ok_and(|backing| backing.trim_end() == text) {
            let name = entry.file_name().to_string_lossy().into_owned();
            return Some(format!("it is the file of /dev/{name}: losetup -d /dev/{name}"));
        }
    }
    None
}

/// Major number of a device (gnu_dev_major of glibc).
const fn major(device: u64) -> u64 {
    (device >> 8 & 0xFFF) | (device >> 32 & !0xFFF)
}

const fn minor(device: u64) -> u64 {
    (device & 0xFF) | (device >> 12 & !0xFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: u64) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        File::create(&path).unwrap().set_len(bytes).unwrap();
        (folder, path)
    }

    #[test]
    fn held_file_is_not_held_twice() {
        let (_folder, path) = file(8192);
        let held = DiskUse::hold(&path).unwrap();
        assert_eq!(held.bytes, 8192);
        assert!(DiskUse::hold(&path).unwrap_err().to_string().contains("exported already"));
        drop(held);
        DiskUse::hold(&path).unwrap();
    }

    #[test]
    fn partial_blocks_are_refused() {
        let (_folder, path) = file(8193);
        assert!(DiskUse::hold(&path).unwrap_err().to_string().contains("truncate"));
        let folder = path.parent().unwrap();
        assert!(DiskUse::hold(folder).unwrap_err().to_string().contains("block devices"));
        assert!(DiskUse::hold(&folder.join("none")).is_err());
    }

    #[test]
    fn used_objects_name_their_user() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/swaps", "Filename Type\n/data/swap file 1 2\n");
        write("proc/self/mountinfo", "36 35 8:17 / /mnt/data rw - ext4 /dev/sdb1 rw\n");
        write("sys/block/loop3/loop/backing_file", "/data/image\n");
        write("sys/dev/block/8:32/holders/md0", "");
        let user = |path: &str, device| user_of(Path::new(path), device, root.path());
        assert!(user("/data/swap", None).unwrap().contains("swapoff"));
        assert!(user("/data/image", None).unwrap().contains("losetup -d /dev/loop3"));
        assert_eq!(user("/data/other", None), None);
        assert!(user("/dev/sdb1", Some(8 << 8 | 17)).unwrap().contains("/mnt/data"));
        assert!(user("/dev/sdc", Some(8 << 8 | 32)).unwrap().contains("md0"));
        assert_eq!(user("/dev/sdd", Some(8 << 8 | 48)), None);
    }
}
