//! Encryption of the storages' tokens of jobs while they stand in the database.
//!
//! AES-256-GCM under a key in a file, with a random nonce for each token. Job and end are associated data, so that a
//! token cannot be moved to another job or end. Rows of older versions have no prefix and are read as they are.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use penstock_http::tokens::{TokenError, hex, read_secret};

use super::policy::FtsPolicy;

/// File of the key in the state directory, unless `token_key` names another.
const KEY_FILE: &str = "fts-token.key";

/// Size of the key in bytes; the file has twice as many hexadecimal digits.
const KEY_BYTES: usize = 32;

/// Beginning of an encrypted token: the version of the form.
const ENCRYPTED_PREFIX: &str = "aes256gcm:";

/// Fault of the key, or of a token that it does not decrypt.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenKeyError {
    #[error("token_key {0}")]
    File(#[from] TokenError),
    #[error("token_key {path}: cannot be made: {reason}", path = .0.display(), reason = .1)]
    Create(PathBuf, io::Error),
    #[error(
        "token_key {path}: is no key of {digits} hexadecimal digits: make one with \
         (umask 077; openssl rand -hex {bytes} > {path})", path = .0.display(), digits = 2 * KEY_BYTES, bytes = KEY_BYTES
    )]
    Malformed(PathBuf),
    #[error(
        "the {end} token was encrypted with another key than {path}: restore the key, or give all controllers the same \
         token_key, and submit the file again", end = .1, path = .0.display()
    )]
    OtherKey(PathBuf, &'static str),
}

/// Key of the storages' tokens.
#[derive(Debug)]
pub(crate) struct TokenKey {
    key: LessSafeKey,
    path: PathBuf,
}

/// One end of a file, by which its token is bound.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TokenEnd {
    Source,
    Destination,
}

impl TokenEnd {
    fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
        }
    }
}

impl TokenKey {
    /// Reads the key that the policy names, else the one of the state directory, which is made if it is missing.
    pub(crate) fn load(policy: &FtsPolicy, state: &Path) -> Result<Self, TokenKeyError> {
        let path = policy.token_key.clone().unwrap_or_else(|| state.join(KEY_FILE));
        if policy.token_key.is_none() && !path.exists() {
            create(&path).map_err(|error| TokenKeyError::Create(path.clone(), error))?;
        }
        Self::read(path)
    }

    /// Reads the key in a file.
    pub(crate) fn read(path: PathBuf) -> Result<Self, TokenKeyError> {
        let bytes = bytes_of(&read_secret(&path)?);
        let key = bytes.and_then(|bytes| UnboundKey::new(&AES_256_GCM, &bytes).ok());
        let key = key.ok_or_else(|| TokenKeyError::Malformed(path.clone()))?;
        Ok(Self { key: LessSafeKey::new(key), path })
    }

    /// Encrypts a token of a job.
    pub(crate) fn encrypt(&self, job: &str, end: TokenEnd, token: &str) -> String {
        let mut nonce = [0; NONCE_LEN];
        aws_lc_rs::rand::fill(&mut nonce).expect("the system's random numbers are there");
        let mut sealed = token.as_bytes().to_vec();
        let bound = Aad::from(format!("{job} {}", end.name()));
        let nonce_used = Nonce::assume_unique_for_key(nonce);
        let done = self.key.seal_in_place_append_tag(nonce_used, bound, &mut sealed);
        done.expect("tokens are shorter than the limit of AES-GCM");
        format!("{ENCRYPTED_PREFIX}{}{}", hex(&nonce), hex(&sealed))
    }

    /// Decrypts a token of a job.
    pub(crate) fn decrypt(
        &self,
        job: &str,
        end: TokenEnd,
        stored: &str,
    ) -> Result<String, TokenKeyError> {
        let Some(hex) = stored.strip_prefix(ENCRYPTED_PREFIX) else { return Ok(stored.to_owned()) };
        self.open(job, end, hex)
            .ok_or_else(|| TokenKeyError::OtherKey(self.path.clone(), end.name()))
    }

    fn open(&self, job: &str, end: TokenEnd, hex: &str) -> Option<String> {
        let bytes = bytes_of(hex)?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let bound = Aad::from(format!("{job} {}", end.name()));
        let token = self.key.open_in_place(nonce, bound, &mut sealed).ok()?;
        String::from_utf8(token.to_vec()).ok()
    }
}

/// Reads hexadecimal digits.
fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let pairs = (0..hex.len()).step_by(2).map(|at| hex.get(at..at + 2));
    pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

/// Writes a random key; one that another process wrote meanwhile stays.
fn create(path: &Path) -> io::Result<()> {
    let mut bytes = [0; KEY_BYTES];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system's random numbers are there");
    let temporary = path.with_extension(format!("{}.new", std::process::id()));
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    writeln!(file, "{}", hex(&bytes))?;
    file.sync_all()?;
    let linked = fs::hard_link(&temporary, path);
    fs::remove_file(&temporary)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn policy(text: &str) -> FtsPolicy {
        let table = toml::from_str(&format!("storages = []\n{text}")).unwrap();
        FtsPolicy::of(table, |path| path).unwrap()
    }

    #[test]
    fn tokens_are_bound_to_job_end() {
        let state = tempfile::tempdir().unwrap();
        let key = TokenKey::load(&policy(""), state.path()).unwrap();
        let sealed = key.encrypt("job", TokenEnd::Source, "secret");
        assert!(sealed.starts_with(ENCRYPTED_PREFIX) && !sealed.contains("secret"), "{sealed}");
        assert_ne!(sealed, key.encrypt("job", TokenEnd::Source, "secret"));
        // A later start reads the same key.
        let key = TokenKey::load(&policy(""), state.path()).unwrap();
        assert_eq!(key.decrypt("job", TokenEnd::Source, &sealed).unwrap(), "secret");
        let cut = &sealed[..sealed.len() - 2];
        for (job, end, text) in [
            ("job", TokenEnd::Destination, sealed.as_str()),
            ("other", TokenEnd::Source, &sealed),
            ("job", TokenEnd::Source, cut),
            ("job", TokenEnd::Source, "aes256gcm:00"),
        ] {
            let error = key.decrypt(job, end, text).unwrap_err().to_string();
            assert!(error.contains("another key"), "{error}");
        }
        let mode = fs::metadata(state.path().join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn clear_tokens_are_read() {
        let state = tempfile::tempdir().unwrap();
        let key = TokenKey::load(&policy(""), state.path()).unwrap();
        assert_eq!(key.decrypt("job", TokenEnd::Source, "eyJ.old").unwrap(), "eyJ.old");
    }

    #[test]
    fn configured_key_is_not_made() {
        let state = tempfile::tempdir().unwrap();
        let path = state.path().join("shared.key");
        let named = policy(&format!("token_key = {path:?}"));
        let error = TokenKey::load(&named, state.path()).unwrap_err().to_string();
        assert!(error.contains("shared.key") && !path.exists(), "{error}");
        assert!(error.starts_with("token_key "), "{error}");
        fs::write(&path, "abc").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = TokenKey::load(&named, state.path()).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let error = TokenKey::load(&named, state.path()).unwrap_err().to_string();
        assert!(error.contains("64 hexadecimal digits"), "{error}");
    }
}
