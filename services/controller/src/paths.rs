//! Validation of paths from clients: one spelling per file, so that its destination can be locked by name.

/// Longest path, Linux's PATH_MAX.
const PATH_BYTES_MAX: usize = 4096;

/// A path that has another spelling, or that no file can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPath {
    /// A directory without its leading slash.
    #[error("'{}' does not begin with /", shown(.0))]
    Relative(String),
    /// A path below a directory with a leading slash.
    #[error("'{}' begins with /: write it as it is below the directory", shown(.0))]
    Absolute(String),
    /// More bytes than Linux's PATH_MAX.
    #[error("it is longer than {PATH_BYTES_MAX} bytes")]
    TooLong,
    /// A byte that no name has.
    #[error("it has a zero byte")]
    ZeroByte,
    /// Two slashes in a row, or one at the end.
    #[error("'{}' has an empty part: write each / once, none at the end", shown(.0))]
    EmptyPart(String),
    /// A part `.` or `..`.
    #[error("'{}' has the part '{part}': write it without", shown(.path))]
    DotPart {
        /// The whole path.
        path: String,
        /// The part.
        part: String,
    },
}

/// Validates a directory as exports name it: absolute, without `.` and `..`.
pub(crate) fn directory(path: &str) -> Result<(), InvalidPath> {
    match path.strip_prefix('/') {
        Some("") => Ok(()),
        Some(rest) => parts(rest, path),
        None => Err(InvalidPath::Relative(path.to_owned())),
    }
}

/// Validates a path relative to a directory.
///
/// # Errors
/// If it has another spelling, or no file can have it.
pub fn relative(path: &str) -> Result<(), InvalidPath> {
    if path.starts_with('/') {
        return Err(InvalidPath::Absolute(path.to_owned()));
    }
    parts(path, path)
}

fn parts(rest: &str, path: &str) -> Result<(), InvalidPath> {
    if path.len() > PATH_BYTES_MAX {
        return Err(InvalidPath::TooLong);
    }
    if path.contains('\0') {
        return Err(InvalidPath::ZeroByte);
    }
    match rest.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        None => Ok(()),
        Some("") => Err(InvalidPath::EmptyPart(path.to_owned())),
        Some(part) => Err(InvalidPath::DotPart { path: path.to_owned(), part: part.to_owned() }),
    }
}

fn shown(path: &str) -> String {
    path.chars().take(100).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_one_spelling() {
        for path in ["a", "a/b c/ä", "..a", "a..", "..."] {
            assert_eq!(relative(path), Ok(()), "{path}");
        }
        for path in ["", "/a", "a/", "a//b", "./a", "a/../b", "..", "a\0b"] {
            assert!(relative(path).is_err(), "{path}");
        }
        assert!(relative(&"a/".repeat(2048)).is_err());
        assert!(directory("/").is_ok() && directory("/a/b").is_ok());
        assert!(
            directory("a").is_err() && directory("/a/").is_err() && directory("/a/..").is_err()
        );
    }
}
