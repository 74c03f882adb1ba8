//! Tokens that the node's operator issued to users: with a name, scopes and an end.
//!
//! For: `penstock token`, which writes the file, and the roles, which read it again when it changes. The file has the
//! SHA-256 of each token, never the token. A file that others may write, or with an error, has no valid token.
//!
//! Not for: what a scope allows, which each role decides.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use penstock_sys::machine::unix_seconds;
use serde::{Deserialize, Serialize};

use crate::tokens::{
    FileStamp, TokenError, TokenFileFault, TokenHash, check_token_name, hash, hex, open_file, unhex,
};

/// File of the issued tokens in the state directory.
pub const ISSUED_TOKENS: &str = "issued-tokens.json";

/// Most tokens that have not expired.
pub const ISSUED_TOKENS_MAX: usize = 10_000;

/// Beginning of every issued token, by which scanners for leaked secrets find it.
const PREFIX: &str = "penstock_";

/// Longest file in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// An issued token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedToken {
    /// Id, which is part of the token and no secret.
    pub id: String,
    /// Name of the bearer.
    pub name: String,
    /// SHA-256 of the token, hexadecimal.
    pub sha256: String,
    /// Rights of the bearer, as `penstock token create --scope` takes them.
    pub scopes: Vec<String>,
    /// Time of the issue.
    pub created_unix_seconds: u64,
    /// End of the validity.
    pub expires_unix_seconds: u64,
    /// Most transfers that run at once for it at an agent; that of the agent's limits where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfers_max: Option<usize>,
}

impl IssuedToken {
    /// Makes a token from random bytes; returns it with its secret.
    #[must_use]
    pub fn new(name: &str, scopes: Vec<String>, now_s: u64, expires_s: u64) -> (Self, String) {
        let mut bytes = [0; 38];
        aws_lc_rs::rand::fill(&mut bytes).expect("the system's random generator works");
        let (id, secret) = (hex(&bytes[..6]), hex(&bytes[6..]));
        let token = format!("{PREFIX}{id}_{secret}");
        let issued = Self {
            id,
            name: name.to_owned(),
            sha256: hex(&hash(&token)),
            scopes,
            created_unix_seconds: now_s,
            expires_unix_seconds: expires_s,
            transfers_max: None,
        };
        (issued, token)
    }

    /// Id in a whole token, and any other text unchanged: a token that leaked can be revoked as it was found.
    #[must_use]
    pub fn id_in(text: &str) -> &str {
        let parts = text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_'));
        parts.map_or(text, |(id, _secret)| id)
    }

    /// Name and id, for logs: `alice#0a1b2c3d4e5f`.
    #[must_use]
    pub fn shown(&self) -> String {
        format!("{}#{}", self.name, self.id)
    }

    /// SHA-256 of the token.
    #[must_use]
    pub fn hash(&self) -> Option<TokenHash> {
        unhex(&self.sha256)
    }
}

/// Contents of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedTokenList {
    /// Tokens, the oldest first.
    pub tokens: Vec<IssuedToken>,
}

impl IssuedTokenList {
    /// Reads the file; a missing one has no tokens.
    ///
    /// # Errors
    /// When it cannot be read, others may read or change it, or it has another form.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        match read(path) {
            Ok((_, list)) => Ok(list),
            Err(TokenFileFault::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Self::default())
            }
            Err(fault) => Err(TokenError { file: path.to_owned(), fault }),
        }
    }

    /// Removes the tokens whose validity ends at `now_s` or before.
    pub fn remove_expired(&mut self, now_s: u64) {
        self.tokens.retain(|token| now_s < token.expires_unix_seconds);
    }
}

fn read(path: &Path) -> Result<(FileStamp, IssuedTokenList), TokenFileFault> {
    let mut file = open_file(path)?;
    let facts = file.metadata()?;
    if facts.mode() & 0o077 != 0 {
        return Err(TokenFileFault::ExposedTokens { remedy: "600" });
    }
    if facts.len() > FILE_BYTES_MAX {
        return Err(TokenFileFault::LongList);
    }
    let mut text = String::new();
    file.by_ref().take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    let list: IssuedTokenList =
        serde_json::from_str(&text).map_err(|error| TokenFileFault::Form(error.to_string()))?;
    for token in &list.tokens {
        check_token_name(&token.name).map_err(|error| TokenFileFault::Form(error.to_string()))?;
    }
    Ok((FileStamp::of(&facts), list))
}

/// An issued token with its hash as bytes.
#[derive(Debug)]
struct HashedToken {
    sha256: TokenHash,
    token: IssuedToken,
}

/// The issued tokens of a node, as its file has them now.
#[derive(Debug)]
pub struct IssuedTokens {
    file: PathBuf,
    read_before: Mutex<(Option<FileStamp>, Vec<HashedToken>)>,
}

impl IssuedTokens {
    /// Tokens of the file at `path`, which need not exist yet.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        Self { file: path, read_before: Mutex::default() }
    }

    /// The valid token with this secret.
    #[must_use]
    pub fn find(&self, token: &str) -> Option<IssuedToken> {
        if !token.starts_with(PREFIX) {
            return None;
        }
        self.find_hash(&hash(token))
    }

    /// The valid token with this hash.
    #[must_use]
    pub fn find_hash(&self, sha256: &TokenHash) -> Option<IssuedToken> {
        let mut before = self.read_before.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = std::fs::metadata(&self.file).ok().as_ref().map(FileStamp::of);
        if stamp != before.0 {
            *before = match read(&self.file) {
                Ok((stamp, list)) => {
                    let hashed = |token: IssuedToken| {
                        let sha256 = token.hash()?;
                        Some(HashedToken { sha256, token })
                    };
                    (Some(stamp), list.tokens.into_iter().filter_map(hashed).collect())
                }
                Err(fault) => {
                    if stamp.is_some() {
                        let error = TokenError { file: self.file.clone(), fault };
                        tracing::error!(
                            "{error}; until that is mended none of its tokens is valid"
                        );
                    }
                    (stamp, Vec::new())
                }
            };
        }
        let now_s = unix_seconds();
        // All are compared: the time does not tell which matched.
        let mut found = None;
        for HashedToken { sha256: known, token } in &before.1 {
            if verify_slices_are_equal(known, sha256).is_ok() && now_s < token.expires_unix_seconds
            {
                found = Some(token.clone());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write(path: &Path, list: &IssuedTokenList, mode: u32) {
        // Another inode each time, as the state directory does.
        let temporary = path.with_extension("new");
        fs::write(&temporary, serde_json::to_vec(list).unwrap()).unwrap();
        fs::set_permissions(&temporary, Permissions::from_mode(mode)).unwrap();
        fs::rename(temporary, path).unwrap();
    }

    #[test]
    fn token_is_valid_until_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(ISSUED_TOKENS);
        let tokens = IssuedTokens::at(path.clone());
        let scopes = || vec!["read".to_owned()];
        let (one, secret) =
            IssuedToken::new("alice", scopes(), unix_seconds(), unix_seconds() + 1000);
        let (old, expired) = IssuedToken::new("bob", scopes(), 1, unix_seconds());
        assert_eq!(tokens.find(&secret), None, "there is no file yet");
        let mut list = IssuedTokenList { tokens: vec![one.clone(), old] };
        write(&path, &list, 0o600);
        assert_eq!(tokens.find(&secret), Some(one.clone()));
        assert!(tokens.find_hash(&one.hash().unwrap()).is_some());
        assert_eq!(tokens.find(&expired), None);
        assert_eq!(tokens.find(&secret[..secret.len() - 1]), None);
        assert!(!fs::read_to_string(&path).unwrap().contains(&secret));
        write(&path, &list, 0o644);
        assert_eq!(tokens.find(&secret), None, "others can read the file");
        list.remove_expired(unix_seconds());
        assert_eq!(list.tokens, [one]);
        list.tokens.clear();
        write(&path, &list, 0o600);
        assert_eq!(tokens.find(&secret), None);
    }
}
