//! Names of temporary files of transfers: `.penstock-*.part`, with hexadecimal digits and hyphens in between.

/// Start of temporary names.
pub(crate) const TEMPORARY_PREFIX: &str = ".penstock-";

/// End of temporary names.
pub(crate) const PART_SUFFIX: &str = ".part";

/// True for the temporary name of a transfer.
#[must_use]
pub fn is_temporary_name(name: &[u8]) -> bool {
    let digits = name
        .strip_prefix(TEMPORARY_PREFIX.as_bytes())
        .and_then(|rest| rest.strip_suffix(PART_SUFFIX.as_bytes()));
    digits.is_some_and(|digits| {
        !digits.is_empty() && digits.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-')
    })
}

#[cfg(test)]
mod tests {
    use super::is_temporary_name;

    #[test]
    fn only_own_names_are_temporary() {
        for name in [&b".penstock-0123.part"[..], b".penstock-0123-89ab.part"] {
            assert!(is_temporary_name(name), "{}", name.escape_ascii());
        }
        for name in
            [&b"penstock.part"[..], b".penstock-x", b".penstock-.part", b".penstock-notes.part"]
        {
            assert!(!is_temporary_name(name), "{}", name.escape_ascii());
        }
    }
}
