//! Path lists of `--files-from`: relative to the one source, terminated by newlines or NUL.

use std::sync::Arc;

use penstock_protocol::list::{PathList, TEXT_BYTES_MAX};
use penstock_protocol::manifest::display_path;
use penstock_protocol::sender::LIST_BYTES_MAX;
use penstock_units::ByteCount;

use super::CpArgs;
use super::plan::{StartError, failed, usage};
use crate::input;

/// Reads the list of `--files-from`, if given.
///
/// # Errors
/// When the list cannot be read, is too long, has NUL bytes without `--null`, or there is more than one source.
pub(crate) fn read(args: &CpArgs, sources: usize) -> Result<Option<PathList>, StartError> {
    let Some(file) = &args.files_from else { return Ok(None) };
    if sources != 1 {
        return Err(usage("--files-from takes one SRC, the directory its paths are relative to"));
    }
    let shown = file.display();
    let text = input::read(file, TEXT_BYTES_MAX)
        .map_err(|error| failed(format!("{shown}: {}", penstock_sys::fs::describe(&error))))?;
    if text.len() > TEXT_BYTES_MAX {
        let most = ByteCount(TEXT_BYTES_MAX as u64);
        return Err(usage(format!("{shown}: a list has at most {most}: split it")));
    }
    let list = PathList::of(text, if args.null { 0 } else { b'\n' });
    if let Some(path) = list.iter().find(|path| path.contains(&0)) {
        return Err(usage(format!(
            "{shown}: {} holds a NUL byte: give --null where NUL bytes separate paths",
            display_path(path.split(|byte| *byte == 0).next().unwrap_or_default()),
        )));
    }
    Ok(Some(list))
}

/// Prepares a list for a local source, without the directory itself unless `--recursive`, as it means all contents.
///
/// # Errors
/// When the list is empty.
pub(crate) fn for_here(args: &CpArgs, mut list: PathList) -> Result<Arc<PathList>, StartError> {
    if !args.recursive {
        list.take_root();
    }
    if list.is_empty() { Err(StartError::Nothing) } else { Ok(Arc::new(list)) }
}

/// Prepares a list for a remote source, which keeps it in memory.
///
/// # Errors
/// When the list is empty or exceeds the limits of the protocol.
pub(crate) fn for_there(mut list: PathList) -> Result<Arc<PathList>, StartError> {
    if list.is_empty() {
        return Err(StartError::Nothing);
    }
    if list.take_root() {
        return Err(usage("the list names the directory itself: copy that with -r and no list"));
    }
    if list.bytes() > LIST_BYTES_MAX {
        let most = ByteCount(LIST_BYTES_MAX as u64);
        return Err(usage(format!("a list for a remote source has at most {most}: split it")));
    }
    Ok(Arc::new(list))
}
