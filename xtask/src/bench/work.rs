//! Working folder of a measurement: data sets, destination, caches, and clean-up.
//!
//! Content comes from a seeded generator, so runs are repeatable, and no codec or file system can compress it.

use std::fs::{File, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use penstock_random::Random;

/// A file, or a folder of files of equal size, to copy.
#[derive(Debug, Clone)]
pub(super) struct BenchDataset {
    pub(super) path: PathBuf,
    pub(super) is_folder: bool,
    /// Data and programs stay in the page cache between runs.
    pub(super) is_warm: bool,
    pub(super) files: u64,
    pub(super) bytes: u64,
}

impl BenchDataset {
    pub(super) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// The working folder; removed on drop.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) root: PathBuf,
}

/// File that marks a folder as one of an earlier measurement, which may be removed.
const MARKER_FILE: &str = ".penstock-bench";

impl Work {
    pub(super) fn new(root: &Path) -> Result<Self> {
        let is_used = root.exists()
            && std::fs::read_dir(root)
                .with_context(|| format!("cannot list {}", root.display()))?
                .next()
                .is_some();
        if is_used && !root.join(MARKER_FILE).is_file() {
            bail!(
                "{} holds something else, and would be removed: name an empty folder, or a new one, with --dir",
                root.display()
            );
        }
        if is_used {
            std::fs::remove_dir_all(root)
                .with_context(|| format!("cannot remove {}", root.display()))?;
        }
        std::fs::create_dir_all(root)
            .and_then(|()| std::fs::write(root.join(MARKER_FILE), ""))
            .with_context(|| format!("cannot make {}", root.display()))?;
        let work = Self { root: root.to_path_buf() };
        for folder in ["src", "dst", "conf", "logs"] {
            let path = root.join(folder);
            std::fs::create_dir_all(&path)
                .with_context(|| format!("cannot make {}", path.display()))?;
            // xrootd drops root and writes as another user.
            std::fs::set_permissions(&path, Permissions::from_mode(0o777))?;
        }
        Ok(work)
    }

    pub(super) fn destination(&self) -> PathBuf {
        self.root.join("dst")
    }

    pub(super) fn configuration(&self) -> PathBuf {
        self.root.join("conf")
    }

    pub(super) fn log(&self, name: &str) -> PathBuf {
        let plain: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        self.root.join("logs").join(plain)
    }

    /// One file of `bytes`.
    pub(super) fn make_file(&self, name: &str, bytes: u64) -> Result<BenchDataset> {
        let path = self.root.join("src").join(name);
        let mut random = Random::new(bytes);
        let mut buffer = vec![0; 4 << 20];
        let mut file =
            File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let mut left = bytes;
        while left > 0 {
            let part = left.min(buffer.len() as u64) as usize;
            random.fill(&mut buffer[..part]);
            file.write_all(&buffer[..part])?;
            left -= part as u64;
        }
        file.sync_all()?;
        Ok(BenchDataset { path, is_folder: false, is_warm: false, files: 1, bytes })
    }

    /// A folder of `files` files of `bytes` each, 1,000 to a folder as real data sets have them.
    pub(super) fn make_folder(&self, name: &str, files: u64, bytes: usize) -> Result<BenchDataset> {
        let path = self.root.join("src").join(name);
        let mut random = Random::new(files);
        let mut buffer = vec![0; bytes];
        for number in 0..files {
            let folder = path.join(format!("d{:03}", number / 1000));
            if number % 1000 == 0 {
                std::fs::create_dir_all(&folder)
                    .with_context(|| format!("cannot make {}", folder.display()))?;
            }
            random.fill(&mut buffer);
            std::fs::write(folder.join(format!("f{number:06}.dat")), &buffer)?;
        }
        sync_file_system(&path)?;
        let bytes = files * bytes as u64;
        Ok(BenchDataset { path, is_folder: true, is_warm: false, files, bytes })
    }

    /// Clears the destination and the page cache, so that each run of each program starts alike.
    ///
    /// Folders of `many` files are moved aside and not removed: for minutes after a removal, ext4 steps around the
    /// inodes that were freed, and creating files would cost several times what it costs on a file system at rest.
    pub(super) fn reset(&self, many: bool) -> Result<()> {
        self.clear_destination(many)?;
        drop_caches()
    }

    /// Clears the destination as [`Self::reset`] does; sources stay in the page cache.
    pub(super) fn reset_kept_cache(&self) -> Result<()> {
        self.clear_destination(false)
    }

    fn clear_destination(&self, many: bool) -> Result<()> {
        let destination = self.destination();
        let aside = self.root.join("aside");
        std::fs::create_dir_all(&aside)?;
        for entry in std::fs::read_dir(&destination)? {
            let entry = entry?;
            let number = PUT_AWAY.fetch_add(1, Ordering::Relaxed);
            let gone = match entry.file_type()?.is_dir() {
                true if many => std::fs::rename(entry.path(), aside.join(number.to_string())),
                true => std::fs::remove_dir_all(entry.path()),
                false => std::fs::remove_file(entry.path()),
            };
            gone.with_context(|| format!("cannot put away {}", entry.path().display()))?;
        }
        // Some peers need an existing folder.
        let inner = destination.join("in");
        std::fs::create_dir(&inner)?;
        std::fs::set_permissions(&inner, Permissions::from_mode(0o777))?;
        sync_file_system(&destination)
    }

    /// Time until all delivered data is on the device.
    pub(super) fn time_to_durable(&self) -> Result<Duration> {
        let started = Instant::now();
        sync_file_system(&self.destination())?;
        Ok(started.elapsed())
    }

    /// Fails unless the destination has the files and bytes of `source`, and for a single file the same sampled content.
    pub(super) fn check_delivered(&self, source: &BenchDataset) -> Result<()> {
        let (mut files, mut bytes, mut any) = (0, 0, PathBuf::new());
        let mut folders = vec![self.destination()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                let entry = entry?;
                if entry.file_name().to_string_lossy().starts_with('.') {
                    continue;
                }
                let facts = entry.metadata()?;
                if facts.is_dir() {
                    folders.push(entry.path());
                } else {
                    files += 1;
                    bytes += facts.len();
                    any = entry.path();
                }
            }
        }
        if (files, bytes) != (source.files, source.bytes) {
            bail!(
                "delivered {files} files of {} and {bytes} bytes of {}",
                source.files,
                source.bytes
            );
        }
        if source.is_folder { Ok(()) } else { same_samples(&source.path, &any, bytes) }
    }
}

/// Number of folders moved aside, for unique names.
static PUT_AWAY: AtomicU64 = AtomicU64::new(0);

impl Drop for Work {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn same_samples(left: &Path, right: &Path, bytes: u64) -> Result<()> {
    const SAMPLE_COUNT: u64 = 64;
    if bytes < SAMPLE_COUNT << 16 {
        ensure!(std::fs::read(left)? == std::fs::read(right)?, "what was delivered differs");
        return Ok(());
    }
    let (mut left, mut right) = (File::open(left)?, File::open(right)?);
    let mut buffers = [vec![0; 65_536], vec![0; 65_536]];
    for sample in 0..SAMPLE_COUNT {
        let at = bytes / SAMPLE_COUNT * sample;
        for (file, buffer) in [&mut left, &mut right].into_iter().zip(&mut buffers) {
            file.seek(SeekFrom::Start(at))?;
            file.read_exact(buffer)?;
        }
        if buffers[0] != buffers[1] {
            bail!("what was delivered differs from the source near byte {at}");
        }
    }
    Ok(())
}

pub(super) fn sync_file_system(path: &Path) -> Result<()> {
    rustix::fs::syncfs(File::open(path)?).with_context(|| format!("cannot sync {}", path.display()))
}

fn drop_caches() -> Result<()> {
    std::fs::write("/proc/sys/vm/drop_caches", "3")
        .context("cannot drop the page cache, and a source in memory would not measure the disk: run as root")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_folder_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let project = folder.path().join("project");
        std::fs::create_dir_all(project.join("src")).unwrap();
        std::fs::write(project.join("src/main.rs"), "fn main() {}").unwrap();
        let refused = Work::new(&project).unwrap_err();
        assert!(refused.to_string().contains("--dir"), "{refused}");
        assert!(project.join("src/main.rs").exists());
    }

    #[test]
    fn interrupted_measurement_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("work");
        std::mem::forget(Work::new(&root).unwrap());
        std::fs::write(root.join("src/large.bin"), "old").unwrap();
        let work = Work::new(&root).unwrap();
        assert!(!root.join("src/large.bin").exists());
        drop(work);
        assert!(!root.exists());
    }
}
