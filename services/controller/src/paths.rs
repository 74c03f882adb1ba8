//! Validation of paths from clients: one spelling per file, so that its destination can be locked by name.

/// Longest path, Linux's PATH_MAX.
const PATH_BYTES_MAX: usize = 4096;

/// Validates a directory as exports name it: absolute, without `.` and `..`.
pub(crate) fn directory(path: &str) -> Result<(), String> {
    match path.strip_prefix('/') {
        Some("") => Ok(()),
        Some(rest) => parts(rest, path),
        None => Err(format!("'{}' does not begin with /", shown(path))),
    }
}

/// Validates a path relative to a directory.
pub(crate) fn relative(path: &str) -> Result<(), String> {
    if path.starts_with('/') {
        return Err(format!(
            "'{}' begins with /: write it as it is below the directory",
            shown(path)
        ));
    }
    parts(path, path)
}

fn parts(rest: &str, path: &str) -> Result<(), String> {
    if path.len() > PATH_BYTES_MAX {
        return Err(format!("it is longer than {PATH_BYTES_MAX} bytes"));
    }
    if path.contains('\0') {
        return Err("it has a zero byte".to_owned());
    }
    match rest.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        None => Ok(()),
        Some("") => {
            Err(format!("'{}' has an empty part: write each / once, none at the end", shown(path)))
        }
        Some(part) => Err(format!("'{}' has the part '{part}': write it without", shown(path))),
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
