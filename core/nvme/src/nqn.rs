//! NVMe qualified names (Base Specification 2.0, section 4.5).

/// Longest name in bytes.
pub const NQN_BYTES_MAX: usize = 223;
/// Name of the discovery service of every target.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Prefix of names that end in a UUID.
const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";
/// Prefix of the names of disks that penstock exports.
const EXPORT_PREFIX: &str = "nqn.2014-08.org.nvmexpress:penstock:";
/// Longest name of an export.
const EXPORT_NAME_BYTES_MAX: usize = 64;

/// Name that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    /// No qualified name.
    #[error(
        "'{0}' is no NVMe qualified name: it begins with nqn. and has 223 bytes at most, without blanks"
    )]
    Format(String),
    /// Name of a host or disk by UUID whose UUID is not one.
    #[error(
        "'{0}' has no UUID after uuid: copy the whole name; penstock disk list prints that of a host"
    )]
    Uuid(String),
    /// No name of an export.
    #[error(
        "'{0}' is no name of a disk: use 1 to 64 letters, digits, dots, dashes and underscores, or an NQN"
    )]
    ExportName(String),
}

/// Checks a qualified name of a host or subsystem.
///
/// # Errors
/// If it is not valid.
pub fn checked(name: &str) -> Result<&str, NqnError> {
    let is_valid = name.len() <= NQN_BYTES_MAX
        && name.strip_prefix("nqn.").is_some_and(|rest| !rest.is_empty())
        && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',' && byte != b'/');
    if !is_valid {
        return Err(NqnError::Format(name.to_owned()));
    }
    match name.strip_prefix(UUID_PREFIX) {
        Some(uuid) if parse_uuid(uuid).is_none() => Err(NqnError::Uuid(name.to_owned())),
        _ => Ok(name),
    }
}

/// Qualified name of a disk: itself, or that of the export of this name.
///
/// # Errors
/// If neither is valid.
pub fn of_disk(name: &str) -> Result<String, NqnError> {
    if name.starts_with("nqn.") {
        return checked(name).map(str::to_owned);
    }
    let is_valid = (1..=EXPORT_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && !name.starts_with('.');
    if !is_valid {
        return Err(NqnError::ExportName(name.to_owned()));
    }
    Ok(format!("{EXPORT_PREFIX}{name}"))
}

/// Name of the export with this qualified name; `None` for disks of other programs.
#[must_use]
pub fn export_name(nqn: &str) -> Option<&str> {
    nqn.strip_prefix(EXPORT_PREFIX)
}

/// Qualified name of a host with this UUID.
#[must_use]
pub fn of_host(uuid: &[u8; 16]) -> String {
    format!("{UUID_PREFIX}{}", uuid_text(uuid))
}

/// UUID in its usual form.
#[must_use]
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Parses a UUID; `None` for other text.
#[must_use]
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let is_valid = text.len() == 36 && digits.len() == 32;
    if !is_valid {
        return None;
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(uuid)
}
