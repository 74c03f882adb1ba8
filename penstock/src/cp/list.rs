//! What `--files-from` names: paths relative to the one source, a line or a NUL behind each.

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

use penstock_protocol::manifest::display_path;

use super::CpArgs;
use super::plan::{StartError, failed, usage};

/// Longest list.
const LIST_BYTES_MAX: u64 = 1 << 30;

/// Reads the list that the arguments name. A path that is there twice is taken once; the directory
/// itself is an empty path.
///
/// # Errors
/// When it cannot be read, or has NUL bytes where lines are meant.
pub(crate) fn read(args: &CpArgs, list: &Path) -> Result<Vec<Vec<u8>>, StartError> {
    let mut text = Vec::new();
    let read = if list == Path::new("-") {
        std::io::stdin().take(LIST_BYTES_MAX).read_to_end(&mut text)
    } else {
        std::fs::File::open(list).and_then(|file| file.take(LIST_BYTES_MAX).read_to_end(&mut text))
    };
    read.map_err(|error| {
        failed(format!("{}: {}", list.display(), penstock_sys::fs::describe(&error)))
    })?;
    let paths = paths(&text, if args.null { 0 } else { b'\n' });
    if let Some(path) = paths.iter().find(|path| path.contains(&0)) {
        return Err(usage(format!(
            "{}: {} holds a NUL byte: give --null where NUL bytes separate paths",
            list.display(),
            display_path(path.split(|byte| *byte == 0).next().unwrap_or_default()),
        )));
    }
    Ok(paths)
}

/// The paths of a list, without what means nothing in them: `./a//b/` is `a/b`.
fn paths(text: &[u8], separator: u8) -> Vec<Vec<u8>> {
    let mut seen = HashSet::new();
    let plain = |path: &[u8]| {
        let absolute = path.first() == Some(&b'/');
        let names: Vec<_> =
            path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
        let mut plain = if absolute { b"/".to_vec() } else { Vec::new() };
        plain.extend(names.join(&b'/'));
        plain
    };
    text.split(|byte| *byte == separator)
        .filter(|path| !path.is_empty())
        .map(plain)
        .filter(|path| seen.insert(path.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_taken_once_and_plain() {
        let list = paths(b"./a\n\nb//c/\na\n.\n/d\n../e\n", b'\n');
        assert_eq!(list, [&b"a"[..], b"b/c", b"", b"/d", b"../e"]);
        assert_eq!(paths(b"a\nb\0./c\0", 0), [&b"a\nb"[..], b"c"]);
    }
}
