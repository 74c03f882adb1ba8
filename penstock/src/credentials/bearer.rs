//! Bearer tokens of the environment (WLCG Bearer Token Discovery 1.0).
//!
//! The first of these that is there: the variable `BEARER_TOKEN`, the file that `BEARER_TOKEN_FILE` names,
//! `$XDG_RUNTIME_DIR/bt_u$UID`, `/tmp/bt_u$UID`. A file of another user is refused.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use penstock_agent::tokens::{TOKEN_BYTES_MAX, check_token};
use penstock_sys::machine::effective_user;

/// Finds the token in the environment.
///
/// # Errors
/// When the environment has none, a source holds no token, or its file cannot be read or belongs to another user.
pub(crate) fn discover() -> anyhow::Result<String> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(token) = variable("BEARER_TOKEN") {
        let token = token.to_string_lossy().trim().to_owned();
        check_token(&token).map_err(|error| anyhow!("BEARER_TOKEN: the token {error}"))?;
        return Ok(token);
    }
    if let Some(file) = variable("BEARER_TOKEN_FILE") {
        let file = PathBuf::from(file);
        let found = read(&file)?;
        return found.ok_or_else(|| anyhow!("BEARER_TOKEN_FILE: {} is not there", file.display()));
    }
    let name = format!("bt_u{}", effective_user());
    let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    for directory in runtime.into_iter().chain([PathBuf::from("/tmp")]) {
        if let Some(token) = read(&directory.join(&name))? {
            return Ok(token);
        }
    }
    bail!(
        "no bearer token is there: set BEARER_TOKEN or BEARER_TOKEN_FILE, or write {name} in $XDG_RUNTIME_DIR or /tmp"
    )
}

/// Reads a file of one token; `None` where it does not exist.
fn read(path: &Path) -> anyhow::Result<Option<String>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.with_context(|| format!("token {}", path.display()))?,
    };
    let facts = file.metadata().with_context(|| format!("token {}", path.display()))?;
    // Anyone can create files in /tmp.
    if facts.uid() != effective_user() && facts.uid() != 0 {
        bail!("token {}: it belongs to user {}: remove it", path.display(), facts.uid());
    }
    let mut text = String::new();
    // White space around the token.
    let limit = 2 * TOKEN_BYTES_MAX as u64;
    file.take(limit)
        .read_to_string(&mut text)
        .with_context(|| format!("token {}", path.display()))?;
    let token = text.trim().to_owned();
    check_token(&token).map_err(|error| anyhow!("{}: the token {error}", path.display()))?;
    Ok(Some(token))
}
