//! `COPY` inside the exports: built under a hidden name where a directory is involved, then put in place at once.

use std::cell::Cell;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use penstock_http::ProblemDetails;
use penstock_mover::{
    FileUpload, GatewayTransfer, HiddenNames, ResolvedPath, UploadDurability, is_temporary_name,
    lock_name,
};
use penstock_sys::fs::{self, Dir, Kind, Open, Stat};

use crate::error::failed;
use crate::namespace::native;
use crate::staged::{DEPTH_MAX, StagedTree, too_deep};

/// Bytes copied at once.
const COPY_BYTES: usize = 1 << 20;

/// Longest time in which a copy that the rate limit delays misses its end.
const WANTED_INTERVAL: Duration = Duration::from_millis(100);

/// Permission bits of a new directory, before the umask.
pub(crate) const DIRECTORY_MODE: u32 = 0o777;

/// A copy from one path to another, both resolved.
pub(crate) struct TreeCopy<'a> {
    pub(crate) from: &'a ResolvedPath,
    pub(crate) to: &'a ResolvedPath,
    /// Members of a directory are copied.
    pub(crate) recursive: bool,
    /// An existing destination may be replaced.
    pub(crate) replace: bool,
    /// Hidden names for what is built.
    pub(crate) names: &'a HiddenNames,
    /// The transfer of the agent, which may be cancelled.
    pub(crate) transfer: &'a GatewayTransfer,
    /// False once the client has gone, which ends the copy.
    pub(crate) is_wanted: &'a dyn Fn() -> bool,
    /// Files copied so far, and the sum of their sizes.
    pub(crate) copied: Cell<(u64, u64)>,
}

/// Reason for which a copy ends; the destination is as it was.
#[derive(Debug)]
pub(crate) enum CopyFault {
    File(io::Error),
    /// Path below the source of a member that cannot be copied, and the reason.
    Member(String, &'static str),
}

impl From<io::Error> for CopyFault {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

impl CopyFault {
    /// Problem that names the end at fault.
    pub(crate) fn problem(&self, from: &str, to: &str) -> ProblemDetails {
        use io::ErrorKind::{AlreadyExists, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        match self {
            Self::File(error) => match error.kind() {
                StorageFull | QuotaExceeded | ReadOnlyFilesystem | AlreadyExists => {
                    failed(to, error)
                }
                _ => failed(from, error),
            },
            Self::Member(path, reason) => ProblemDetails::new(
                StatusCode::CONFLICT,
                format!(
                    "{from}/{path} {reason}, so nothing was copied: remove it, or copy the other members one by one"
                ),
            ),
        }
    }
}

impl TreeCopy<'_> {
    /// Copies `source`, the metadata of the source, over `there`, that of the destination. Returns true if the name is new.
    pub(crate) fn run(&self, source: &Stat, there: Option<&Stat>) -> Result<bool, CopyFault> {
        let to = native(&self.to.path);
        let replaces_directory = there.is_some_and(|there| there.kind == Kind::Directory);
        if source.kind != Kind::Directory && !replaces_directory {
            return Ok(self.copy_file(native(&self.from.path), to, self.replace)?);
        }
        let (parent, name) = self.to.root.parent(to)?;
        let staged = StagedTree::reserve(self.names, parent.try_clone()?)?;
        let hidden = to.with_file_name(staged.name());
        if source.kind == Kind::Directory {
            self.copy_directory(native(&self.from.path), &hidden, source.mode, DEPTH_MAX)?;
        } else {
            self.copy_file(native(&self.from.path), &hidden, false)?;
        }
        self.check_wanted()?;
        let _locked = lock_name(&parent, &name)?;
        Ok(staged.put(&name, self.replace)?)
    }

    fn check_wanted(&self) -> io::Result<()> {
        if self.transfer.is_cancelled() {
            return Err(io::Error::other("the transfer was cancelled"));
        }
        match (self.is_wanted)() {
            true => Ok(()),
            false => Err(io::Error::other("the client disconnected")),
        }
    }

    /// Counts copied bytes, and waits as the limits of the rate ask.
    fn count(&self, bytes: usize) -> io::Result<()> {
        let end = Instant::now() + self.transfer.count_moved(bytes);
        loop {
            self.check_wanted()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(WANTED_INTERVAL));
        }
    }

    fn copy_directory(
        &self,
        from: &Path,
        to: &Path,
        mode: u32,
        depth_left: usize,
    ) -> Result<(), CopyFault> {
        let Some(depth_left) = depth_left.checked_sub(1) else { return Err(too_deep().into()) };
        let root = &self.to.root;
        root.create_dir(to, DIRECTORY_MODE)?;
        if self.recursive {
            self.copy_members(from, to, depth_left)?;
        }
        // A private directory stays private.
        let present = root.stat(to)?.mode;
        let kept = present & (mode | !0o077);
        if kept != present {
            root.set_mode(to, kept)?;
        }
        Ok(root.open_dir(to)?.sync_all()?)
    }

    fn copy_members(&self, from: &Path, to: &Path, depth_left: usize) -> Result<(), CopyFault> {
        let source: Dir = match from.as_os_str().is_empty() {
            true => self.from.root.try_clone()?,
            false => self.from.root.open_dir(from)?,
        };
        for entry in source.entries()? {
            let (name, _) = entry?;
            if is_temporary_name(name.as_bytes()) {
                continue;
            }
            let (from, to) = (from.join(&name), to.join(&name));
            let stat = self.from.root.stat(&from)?;
            match stat.kind {
                Kind::Directory => self.copy_directory(&from, &to, stat.mode, depth_left)?,
                Kind::File => drop(self.copy_file(&from, &to, false)?),
                Kind::Symlink => self.copy_link(&from, &to)?,
                Kind::Other(_) => return Err(self.member(&from, "is a special file")),
            }
        }
        Ok(())
    }

    /// Copies a link as a link, unless it leads out of an export at its old or its new place.
    fn copy_link(&self, from: &Path, to: &Path) -> Result<(), CopyFault> {
        let leads_out = |root: &Dir, path: &Path| {
            let followed = root.stat_follow(path);
            followed.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        };
        if leads_out(&self.from.root, from) {
            return Err(self.member(from, "is a link that leads out of the export"));
        }
        self.to.root.symlink(self.from.root.read_link(from)?, to)?;
        if leads_out(&self.to.root, to) {
            let reason = "is a link that would lead out of the export at the destination";
            return Err(self.member(from, reason));
        }
        Ok(())
    }

    fn member(&self, path: &Path, reason: &'static str) -> CopyFault {
        let path = path.strip_prefix(native(&self.from.path)).unwrap_or(path);
        CopyFault::Member(path.as_os_str().as_bytes().escape_ascii().to_string(), reason)
    }

    fn copy_file(&self, from: &Path, to: &Path, replace: bool) -> io::Result<bool> {
        let file = self.from.root.open_file(from, &Open { follow: true, ..Open::reading() })?;
        let source = fs::stat_file(&file)?;
        self.transfer.begin_file(&self.to.shown, Some(source.size));
        let place = ResolvedPath {
            root: self.to.root.try_clone()?,
            path: to.as_os_str().as_bytes().to_vec(),
            shown: self.to.shown.clone(),
        };
        let synced = UploadDurability::Synced;
        let upload = FileUpload::begin(&place, Some(source.size), &[], self.names, synced)?;
        upload.take_mode(source.mode)?;
        let mut content = upload.whole();
        let mut buffer = vec![0; COPY_BYTES];
        self.check_wanted()?;
        while let count @ 1.. = fs::read_at_most(&file, &mut buffer, content.received())? {
            content.write(&buffer[..count])?;
            self.count(count)?;
        }
        let bytes = content.received();
        let joined = upload.join(vec![content.finish(true)?], bytes)?;
        let created = joined.commit(replace, &[])?.created;
        let (files, sum) = self.copied.get();
        self.copied.set((files + 1, sum + bytes));
        Ok(created)
    }
}
