//! Destinations of a stream: a file written by direct I/O, standard output in order, or none.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use penstock_sys::buffer::Buffer;
use penstock_sys::fs;

use crate::DiskError;

/// Opens a block device that nothing else has open for itself (mount, swap, RAID).
const OPEN_EXCLUSIVE_FLAG: i32 = 0o200;

/// Destination of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamDestination {
    /// Bytes are received and dropped.
    Discard,
    /// Standard output, in order.
    Standard,
    /// File or block device.
    Path(PathBuf),
}

impl StreamDestination {
    /// Destination of this name: `-` is standard output, `/dev/null` none.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        match path.to_str() {
            Some("-") => Self::Standard,
            Some("/dev/null") => Self::Discard,
            _ => Self::Path(path.to_owned()),
        }
    }
}

/// Destination that is open for writing.
#[derive(Debug)]
pub(crate) enum StreamOutput {
    Discard,
    Standard(Mutex<OrderedOutput>),
    File(FileOutput),
}

impl StreamOutput {
    /// Opens a destination for `bytes`.
    pub(crate) fn open(destination: &StreamDestination, bytes: u64) -> Result<Self, DiskError> {
        match destination {
            StreamDestination::Discard => Ok(Self::Discard),
            StreamDestination::Standard => Ok(Self::Standard(Mutex::default())),
            StreamDestination::Path(path) => FileOutput::open(path, bytes)
                .map(Self::File)
                .map_err(|error| DiskError::Output { path: path.display().to_string(), error }),
        }
    }

    /// Writes `buffer[..length]` at `offset`.
    pub(crate) fn write(
        &self,
        buffer: Buffer,
        length: usize,
        offset: u64,
    ) -> Result<(), DiskError> {
        let failed = |path: String| move |error| DiskError::Output { path, error };
        match self {
            Self::Discard => Ok(()),
            Self::Standard(order) => {
                let mut order = order.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                order.write(buffer, length, offset).map_err(failed("standard output".to_owned()))
            }
            Self::File(file) => {
                let written = file.write(&buffer[..length], offset);
                written.map_err(failed(file.path.display().to_string()))
            }
        }
    }

    /// Makes the destination durable and gives it its name.
    pub(crate) fn finish(&self) -> Result<(), DiskError> {
        match self {
            Self::Discard => Ok(()),
            Self::Standard(_) => io::stdout()
                .flush()
                .map_err(|error| DiskError::Output { path: "standard output".to_owned(), error }),
            Self::File(file) => file.finish().map_err(|error| DiskError::Output {
                path: file.path.display().to_string(),
                error,
            }),
        }
    }

    /// Reason for which the destination is not written by direct I/O; `None` where it is, or is no file.
    pub(crate) fn indirect_reason(&self) -> Option<String> {
        match self {
            Self::File(file) => file.indirect.clone(),
            _ => None,
        }
    }

    /// True where data is written by direct I/O.
    pub(crate) const fn is_direct(&self) -> bool {
        matches!(self, Self::File(file) if file.direct.is_some())
    }
}

/// Blocks that wait for those before them.
#[derive(Debug, Default)]
pub(crate) struct OrderedOutput {
    next: u64,
    waiting: BTreeMap<u64, (Buffer, usize)>,
}

impl OrderedOutput {
    fn write(&mut self, buffer: Buffer, length: usize, offset: u64) -> io::Result<()> {
        self.waiting.insert(offset, (buffer, length));
        let mut out = io::stdout().lock();
        while let Some((buffer, length)) = self.waiting.remove(&self.next) {
            out.write_all(&buffer[..length])?;
            self.next += length as u64;
        }
        Ok(())
    }
}

/// File under a temporary name until it is whole, or a block device.
#[derive(Debug)]
pub(crate) struct FileOutput {
    path: PathBuf,
    /// Temporary name; `None` for a device.
    partial: Option<PathBuf>,
    buffered: File,
    direct: Option<File>,
    alignment: u64,
    indirect: Option<String>,
}

impl FileOutput {
    fn open(path: &Path, bytes: u64) -> io::Result<Self> {
        let kind = std::fs::metadata(path).ok().map(|found| found.file_type());
        let is_device = kind.is_some_and(|kind| kind.is_block_device());
        if kind.is_some_and(|kind| !kind.is_file() && !is_device) {
            let text = "it is neither a file nor a block device: name one of these, - or /dev/null";
            return Err(io::Error::other(text));
        }
        let name = path.file_name().ok_or_else(|| io::Error::other("names no file"))?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(".penstock-part");
        let partial = (!is_device).then(|| path.with_file_name(hidden));
        let mut how = OpenOptions::new();
        how.write(true);
        let buffered = match &partial {
            Some(partial) => how.create(true).truncate(false).open(partial)?,
            None => how.custom_flags(OPEN_EXCLUSIVE_FLAG).open(path).map_err(in_use)?,
        };
        if let Some(partial) = &partial {
            // Another stream may have given the file its final name before this one had the lock.
            if !fs::try_lock(&buffered)? || !has_name(&buffered, partial) {
                return Err(io::Error::other("another stream writes this file"));
            }
            buffered.set_len(0)?;
        }
        if !is_device && !fs::preallocate(&buffered, bytes).unwrap_or(false) {
            buffered.set_len(bytes)?;
        }
        let opened = OpenOptions::new().write(true).open(partial.as_deref().unwrap_or(path))?;
        let (direct, alignment, indirect) = match fs::direct_alignment(&opened) {
            Ok(Some(alignment)) => match fs::set_direct(&opened, true) {
                Ok(()) => (Some(opened), u64::from(alignment), None),
                Err(error) => (None, 1, Some(error.to_string())),
            },
            Ok(None) => (None, 1, Some("the file system does not support O_DIRECT".to_owned())),
            Err(error) => (None, 1, Some(error.to_string())),
        };
        Ok(Self { path: path.to_owned(), partial, buffered, direct, alignment, indirect })
    }

    fn write(&self, data: &[u8], offset: u64) -> io::Result<()> {
        match &self.direct {
            Some(direct) if (data.len() as u64 | offset).is_multiple_of(self.alignment) => {
                fs::write_all_at(direct, data, offset)
            }
            _ => fs::write_all_at(&self.buffered, data, offset),
        }
    }

    fn finish(&self) -> io::Result<()> {
        fs::sync_all(&self.buffered)?;
        let Some(partial) = &self.partial else { return Ok(()) };
        std::fs::rename(partial, &self.path)?;
        let directory = self.path.parent().filter(|path| !path.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for FileOutput {
    /// Removes an unfinished file; a finished one has its final name, and the temporary one may be of another stream.
    fn drop(&mut self) {
        if let Some(partial) = self.partial.as_ref().filter(|name| has_name(&self.buffered, name)) {
            let _ = std::fs::remove_file(partial);
        }
    }
}

/// True if `path` is a name of `file`.
fn has_name(file: &File, path: &Path) -> bool {
    let (Ok(file), Ok(named)) = (file.metadata(), std::fs::symlink_metadata(path)) else {
        return false;
    };
    (file.dev(), file.ino()) == (named.dev(), named.ino())
}

fn in_use(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::ResourceBusy {
        return io::Error::new(error.kind(), "the device is mounted or in use: unmount it first");
    }
    error
}
