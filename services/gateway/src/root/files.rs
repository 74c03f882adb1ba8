//! Paths: metadata, listings, and opening for reading.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use penstock_mover::{Caller, ResolvedPath, is_temporary_name};
use penstock_protocol::open::{Refusal, RefusalKind};
use penstock_scopes::PathAccess;
use penstock_sys::fs::{self, Dir, Entries, Kind, Stat};
use penstock_xrootd::response::{DataStatus, ListedKind, ListingBody, XrdStat};
use penstock_xrootd::{XrdError, XrdErrorCode};

use crate::dispatch::{Gateway, blocking};
use crate::read::{self, OpenedPath};

/// Length of one part of a listing, in bytes.
const LISTING_PART_BYTES: usize = 64 << 10;

/// Error of a refusal by the agent or its gatekeeper.
pub(super) fn refused(refusal: Refusal) -> XrdError {
    let code = match refusal.kind {
        RefusalKind::Identity => XrdErrorCode::AuthFailed,
        RefusalKind::Permission => XrdErrorCode::NotAuthorized,
        RefusalKind::NotFound => XrdErrorCode::NotFound,
        RefusalKind::Busy => XrdErrorCode::Overloaded,
        RefusalKind::Request => XrdErrorCode::ArgInvalid,
        RefusalKind::UnknownSession | RefusalKind::Agent => XrdErrorCode::ServerError,
    };
    XrdError::new(code, refusal.text)
}

/// Error of a file operation on the path `shown`.
pub(super) fn failed(shown: &str, error: &io::Error) -> XrdError {
    let code = match error.kind() {
        io::ErrorKind::NotFound => XrdErrorCode::NotFound,
        io::ErrorKind::PermissionDenied => XrdErrorCode::NotAuthorized,
        io::ErrorKind::InvalidFilename => XrdErrorCode::ArgInvalid,
        io::ErrorKind::InvalidInput => XrdErrorCode::NotFile,
        _ => XrdErrorCode::FsError,
    };
    XrdError::new(code, format!("{shown}: {}", fs::describe(error)))
}

/// Metadata as clients see it.
pub(super) fn listed(stat: &Stat) -> XrdStat {
    XrdStat {
        // Inode numbers of two file systems rarely meet so.
        id: stat.inode ^ stat.device.rotate_left(32),
        size: stat.size,
        kind: match stat.kind {
            Kind::File => ListedKind::File,
            Kind::Directory => ListedKind::Directory,
            _ => ListedKind::Other,
        },
        mtime_s: stat.mtime.seconds,
        ctime_s: stat.ctime.seconds,
        mode: stat.mode,
        owner: (stat.uid, stat.gid),
    }
}

/// Reads the metadata of a path.
pub(super) async fn stat(
    gateway: &Gateway,
    caller: &Caller,
    path: &[u8],
) -> Result<XrdStat, XrdError> {
    let Some(place) = gateway.resolve(caller, path, PathAccess::Stat).map_err(refused)? else {
        return Ok(XrdStat::VIRTUAL_DIRECTORY);
    };
    let shown = place.shown.clone();
    let stat = blocking(move || match place.path.is_empty() {
        true => place.root.stat_self(),
        false => place.root.stat_follow(as_path(&place.path)),
    });
    stat.await.map(|stat| listed(&stat)).map_err(|error| failed(&shown, &error))
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Opens a regular file for reading; returns it with its metadata and its path for people.
pub(super) async fn open(
    gateway: &Gateway,
    caller: &Caller,
    path: &[u8],
) -> Result<(std::fs::File, Stat, String), XrdError> {
    let directory = |shown: &str| {
        XrdError::new(XrdErrorCode::IsDirectory, format!("{shown} is a directory: list it"))
    };
    let Some(place) = gateway.resolve(caller, path, PathAccess::Read).map_err(refused)? else {
        return Err(directory(&path.escape_ascii().to_string()));
    };
    let shown = place.shown.clone();
    match blocking(move || read::open(&place)).await.map_err(|error| failed(&shown, &error))? {
        OpenedPath::File(file, stat) => Ok((file, stat, shown)),
        OpenedPath::Collection => Err(directory(&shown)),
    }
}

/// A listing that is read part by part.
pub(super) struct ListingReader {
    body: ListingBody,
    source: ListingSource,
    shown: String,
    /// Entry that did not fit.
    waiting: Option<(Vec<u8>, XrdStat)>,
}

enum ListingSource {
    Directory(Dir, Entries),
    Names(std::vec::IntoIter<String>),
}

impl ListingReader {
    /// Opens a directory, or what is above the exports.
    pub(super) async fn open(
        gateway: &Gateway,
        caller: &Caller,
        path: &[u8],
        with_stat: bool,
    ) -> Result<Self, XrdError> {
        let body = ListingBody::new(with_stat);
        let Some(place) = gateway.resolve(caller, path, PathAccess::List).map_err(refused)? else {
            let names = gateway.members_of(caller, path).into_iter();
            let shown = path.escape_ascii().to_string();
            return Ok(Self { body, source: ListingSource::Names(names), shown, waiting: None });
        };
        let shown = place.shown.clone();
        let opened = blocking(move || {
            let dir = open_directory(&place)?;
            let entries = dir.entries()?;
            Ok((dir, entries))
        });
        let (dir, entries) = opened.await.map_err(|error| failed(&shown, &error))?;
        Ok(Self { body, source: ListingSource::Directory(dir, entries), shown, waiting: None })
    }

    /// Reads the next part as a response, and whether it is the last.
    pub(super) async fn next_part(
        mut self,
        stream_id: [u8; 2],
    ) -> Result<(Self, Vec<u8>, DataStatus), XrdError> {
        let shown = self.shown.clone();
        let read = blocking(move || {
            let status = self.fill()?;
            let part = self.body.take(stream_id, status);
            Ok((self, part, status))
        });
        read.await.map_err(|error| failed(&shown, &error))
    }

    fn fill(&mut self) -> io::Result<DataStatus> {
        if let Some((name, stat)) = self.waiting.take() {
            self.body.push(&name, &stat);
        }
        while let Some((name, stat)) = self.next_entry()? {
            if self.body.bytes() >= LISTING_PART_BYTES {
                self.waiting = Some((name, stat));
                return Ok(DataStatus::Partial);
            }
            if !self.body.push(&name, &stat) {
                tracing::debug!("a name with a line feed is left out of a listing");
            }
        }
        Ok(DataStatus::Final)
    }

    fn next_entry(&mut self) -> io::Result<Option<(Vec<u8>, XrdStat)>> {
        let (dir, entries) = match &mut self.source {
            ListingSource::Names(names) => {
                let name = names.next().map(String::into_bytes);
                return Ok(name.map(|name| (name, XrdStat::VIRTUAL_DIRECTORY)));
            }
            ListingSource::Directory(dir, entries) => (dir, entries),
        };
        for entry in entries {
            let (name, _) = entry?;
            if is_temporary_name(name.as_bytes()) {
                continue;
            }
            match dir.stat_follow(Path::new(&name)) {
                Ok(stat) if matches!(stat.kind, Kind::File | Kind::Directory) => {
                    return Ok(Some((name.as_bytes().to_vec(), listed(&stat))));
                }
                // A special file, a link out of the export, or a file that was removed meanwhile.
                _ => {}
            }
        }
        Ok(None)
    }
}

/// Opens the directory of a place.
pub(super) fn open_directory(place: &ResolvedPath) -> io::Result<Dir> {
    match place.path.is_empty() {
        true => place.root.try_clone(),
        false => place.root.open_dir(as_path(&place.path)),
    }
}

/// Total and available bytes of the file system of a path.
pub(super) async fn space(
    gateway: &Gateway,
    caller: &Caller,
    path: &[u8],
) -> Result<fs::FileSystemSpace, XrdError> {
    let Some(place) = gateway.resolve(caller, path, PathAccess::Stat).map_err(refused)? else {
        let text = "the path is above the exports: name an export";
        return Err(XrdError::new(XrdErrorCode::ArgInvalid, text));
    };
    let shown = place.shown.clone();
    let place = Arc::new(place);
    let space = blocking(move || fs::space(&place.root));
    space.await.map_err(|error| failed(&shown, &error))
}
