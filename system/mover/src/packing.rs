//! Packs: many whole small files read into one buffer, with their table behind them.
//!
//! For: one reader thread. Not for: what becomes of a pack, nor which files go into one. Files that begin on a page
//! of the pack are read past the page cache, many at the device at once; smaller ones through it. A file
//! that cannot be read, or has changed, is left out.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use penstock_protocol::block::{self, FrameKind, Header, PACK_ALIGN_BYTES_MIN, PackItem};
use penstock_protocol::digest;
use penstock_protocol::sender::{Read, Source, Work};
use penstock_protocol::wire::Wire;
use penstock_sys::buffer::{BUFFER_ALIGNMENT, Buffer};
use penstock_sys::fs::{self, Open};
use penstock_sys::ring::{Batch, Part};

use crate::reading::failed;
use crate::sending::{Ready, SenderEnd};

/// Small files that are opened before the first of them is read.
const FILES_AT_ONCE: usize = 32;

/// Below this size a file is not worth asking for ahead.
const READ_AHEAD_BYTES_MIN: u64 = 4096;

/// Makes packs.
#[derive(Debug)]
pub(crate) struct Packer<'a> {
    end: &'a Arc<SenderEnd>,
    batch: Batch,
    /// Files are read past the page cache, as far as is known.
    direct: bool,
}

/// A small file that is open.
struct Small {
    file: File,
    direct: bool,
}

impl<'a> Packer<'a> {
    pub(crate) fn new(end: &'a Arc<SenderEnd>) -> Self {
        let depth = if end.engine.uring { FILES_AT_ONCE as u32 } else { 1 };
        // One after the other, it is the page cache that reads ahead.
        Self { end, batch: Batch::new(depth), direct: end.engine.direct && end.engine.uring }
    }

    /// Reads whole files one behind the other, and their table after them.
    pub(crate) fn read(&mut self, work: Work, sources: &[Arc<Source>], mut buffer: Buffer) {
        let algorithm = self.end.algorithm();
        let mut at = 0;
        let mut table = Vec::new();
        let mut items = 0;
        let mut results = Vec::with_capacity(sources.len());
        for some in sources.chunks(FILES_AT_ONCE) {
            let files: Vec<_> = some.iter().map(|source| self.open(source)).collect();
            let mut ahead = self.read_direct(some, &files, at, &mut buffer).into_iter();
            for (source, file) in some.iter().zip(files) {
                let bytes = len(source);
                let start = block::pack_start(at, bytes);
                let read = file.and_then(|small| {
                    let read = if small.direct {
                        let (from, read) = ahead.next().expect("one for each direct file");
                        // Files before it were left out.
                        if from != start {
                            buffer.copy_within(from..from + bytes, start);
                        }
                        read?
                    } else {
                        fs::read_at_most(&small.file, &mut buffer[start..start + bytes], 0)?
                    };
                    match self.end.changed(source, &small.file) {
                        None if read < bytes => Err(io::ErrorKind::UnexpectedEof.into()),
                        changed => Ok(changed),
                    }
                });
                results.push(match read {
                    Ok(None) => {
                        buffer[at..start].fill(0);
                        let data = &buffer[start..start + bytes];
                        let crc = digest::crc32c(data);
                        let part = digest::part(algorithm, 0, source.entry.bytes, data, crc);
                        at = start + bytes;
                        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                        PackItem { file: source.file, bytes, crc, part: part.0 }.put(&mut table);
                        items += 1;
                        Read::Good(part)
                    }
                    Ok(Some(changed)) => changed,
                    Err(error) => failed(&error),
                });
            }
        }
        self.end.read_whole(sources, results);
        if items == 0 {
            return;
        }
        buffer[at..at + table.len()].copy_from_slice(&table);
        let payload = &buffer[..at + table.len()];
        let header = Header {
            kind: FrameKind::Pack,
            items,
            payload_bytes: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            sequence: work.sequence,
            bytes: at as u64,
            payload_crc: digest::crc32c(payload),
            ..Header::end()
        };
        self.end.ready.push(Ready { work, header, buffer: Some(buffer) });
    }

    /// Opens a small file; has the device begin to read it, if that is not done by a batch.
    fn open(&mut self, source: &Source) -> io::Result<Small> {
        let (dir, path): (_, &Path) = self.end.locate(source);
        let how = Open { brief: true, ..Open::reading() };
        if self.direct && len(source) >= PACK_ALIGN_BYTES_MIN {
            match dir.open_file(path, &Open { direct: true, ..how }) {
                Ok(file) => {
                    // What is no file could keep a batch waiting for ever.
                    if fs::stat_file(&file)?.kind != fs::Kind::File {
                        return Err(io::Error::other("it is no file any more"));
                    }
                    self.end.session.name_engine(self.end.engine.name(true));
                    return Ok(Small { file, direct: true });
                }
                Err(error) if error.kind() == io::ErrorKind::Unsupported => self.direct = false,
                Err(error) => return Err(error),
            }
        }
        let file = dir.open_file(path, &how)?;
        self.end.session.name_engine(self.end.engine.name(false));
        if source.entry.bytes >= READ_AHEAD_BYTES_MIN {
            // Advice that is not taken costs speed only.
            let _ = fs::advise_will_need(&file, source.entry.bytes);
        }
        Ok(Small { file, direct: false })
    }

    /// Reads those of `files` that are direct, to where they lie if all that are open go into the pack from `at` on;
    /// where that is, and how many bytes came. Direct I/O moves whole sectors: what is behind a file is
    /// overwritten up to the next.
    fn read_direct(
        &mut self,
        sources: &[Arc<Source>],
        files: &[io::Result<Small>],
        mut at: usize,
        buffer: &mut Buffer,
    ) -> Vec<(usize, io::Result<usize>)> {
        let mut parts = Vec::with_capacity(files.len());
        for (source, small) in sources.iter().zip(files) {
            let Ok(small) = small else { continue };
            let bytes = len(source);
            let start = block::pack_start(at, bytes);
            at = start + bytes;
            if small.direct {
                let end = start + bytes.next_multiple_of(BUFFER_ALIGNMENT);
                parts.push(Part { file: &small.file, range: start..end });
            }
        }
        let read = self.batch.read(buffer, &parts);
        parts.into_iter().map(|part| part.range.start).zip(read).collect()
    }
}

fn len(source: &Source) -> usize {
    usize::try_from(source.entry.bytes).unwrap_or(usize::MAX)
}
