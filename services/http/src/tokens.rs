//! Bearer tokens: their names, and the check of a presented one.
//!
//! Stored as SHA-256 and compared in constant time, always against all of them, so that neither
//! memory nor timing discloses a token. A file of tokens is reloaded when it changes; while it is
//! unreadable or has an error, none of its tokens is valid (a revoked token must not stay valid),
//! and the log reports that once for each change.
//!
//! Not for: tokens with claims, such as WLCG's (`penstock-tokens`); authorisation (each role decides that).
//!
//! Errors at the start name the file; later ones refuse the token.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use axum::http::{HeaderMap, header};
use penstock_sys::fs::open_regular;

/// Name of the bearer of the agent's own token.
pub const OWNER: &str = "owner";

/// Name of the controller and of the bearers of its tickets.
pub const CONTROLLER: &str = "controller";

/// Shortest token that is not guessable, in bytes.
pub const TOKEN_BYTES_MIN: usize = 16;

/// Longest token in bytes.
pub const TOKEN_BYTES_MAX: usize = 8192;

/// Longest token file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// SHA-256 of a token.
pub type TokenHash = [u8; 32];

/// Source of one or several tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// One token, known by its SHA-256 only.
    Hashed {
        /// Name of the bearer.
        name: String,
        /// SHA-256 of the token.
        sha256: TokenHash,
    },
    /// A file that holds one token.
    File {
        /// Name of the bearer.
        name: String,
        /// Path of the file.
        file: PathBuf,
    },
    /// A file of mode 600 with a name and a token per line.
    List {
        /// Path of the file.
        file: PathBuf,
    },
}

impl TokenSource {
    /// Parses the hexadecimal SHA-256 of a token.
    ///
    /// # Errors
    /// When it has not 64 hexadecimal digits.
    pub fn hashed(name: String, hex: &str) -> Result<Self, TokenHashError> {
        let sha256 = unhex(hex).ok_or_else(|| TokenHashError(name.clone()))?;
        Ok(Self::Hashed { name, sha256 })
    }

    /// Name of the bearer; `None` for a list.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Hashed { name, .. } | Self::File { name, .. } => Some(name),
            Self::List { .. } => None,
        }
    }
}

/// A text that is no SHA-256 of the token with this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("token {0}: sha256 takes 64 hexadecimal digits: printf %s TOKEN | sha256sum prints them")]
pub struct TokenHashError(String);

/// A name that no token may have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenNameError {
    /// Empty, too long, or with other characters.
    #[error("'{0}' cannot name a token: use letters, digits and any of - . _ @, such as alice")]
    Characters(String),
    /// [`OWNER`].
    #[error("'{OWNER}' is the agent's own token: give this one another name")]
    Owner,
    /// [`CONTROLLER`].
    #[error("'{CONTROLLER}' is who gives this agent orders: give this token another name")]
    Controller,
}

/// A text that is no token; the message follows "the token".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenSyntaxError {
    /// Shorter than [`TOKEN_BYTES_MIN`].
    #[error(
        "is shorter than {TOKEN_BYTES_MIN} characters and could be guessed: openssl rand -hex 32 makes a good one"
    )]
    Short,
    /// Longer than [`TOKEN_BYTES_MAX`].
    #[error("is longer than {TOKEN_BYTES_MAX} characters")]
    Long,
    /// A character that is not printable ASCII.
    #[error("has a space or another character that no token has")]
    Characters,
}

/// Fault of a named token or of a line of a token list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenLineError {
    /// Invalid name.
    #[error(transparent)]
    Name(#[from] TokenNameError),
    /// Invalid token.
    #[error("token {name} {fault}")]
    Token {
        /// Name of its bearer.
        name: String,
        /// Fault of the token.
        fault: TokenSyntaxError,
    },
    /// A line without a name or a token; it is not shown, as it may be a token.
    #[error("write a name, a space and a token")]
    Words,
}

/// Error of a token file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", file.display())]
pub struct TokenError {
    /// Path of the file.
    pub file: PathBuf,
    /// Fault of the file.
    pub fault: TokenFileFault,
}

/// Fault of a token file.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileFault {
    /// Not readable.
    #[error("{}", penstock_sys::fs::describe(.0))]
    Io(#[from] io::Error),
    /// A directory, device or socket.
    #[error("is not a file")]
    NotAFile,
    /// A mode by which others may read or change tokens.
    #[error("others may read or change the tokens in it: chmod {remedy} it")]
    ExposedTokens {
        /// Right mode.
        remedy: &'static str,
    },
    /// A mode by which others may read or change a secret.
    #[error("holds a secret and others may read or change it (mode {0:04o}): chmod 600 it")]
    ExposedSecret(u32),
    /// A file of another user.
    #[error("belongs to user {0}: chown it to the agent's user")]
    Owner(u32),
    /// Longer than any list of tokens.
    #[error("is longer than 1 MiB: is it the right file?")]
    LongList,
    /// Not of the form that `penstock token` writes.
    #[error("{0}: restore it, or remove it, which revokes all tokens that were issued")]
    Form(String),
    /// Longer than any secret.
    #[error("is too long for a token or a key")]
    LongSecret,
    /// Invalid token of a bearer that the configuration names.
    #[error(transparent)]
    Named(#[from] TokenLineError),
    /// Invalid line of a list.
    #[error("line {line}: {error}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// Fault of the line.
        error: TokenLineError,
    },
    /// Invalid token of this daemon.
    #[error("the token {0}")]
    Token(#[from] TokenSyntaxError),
}

/// Checks the name of a token.
///
/// # Errors
/// When it has other characters or is reserved.
pub fn check_token_name(name: &str) -> Result<(), TokenNameError> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-._@".contains(c);
    if name.is_empty() || name.len() > 128 || !name.chars().all(good) {
        return Err(TokenNameError::Characters(name.to_owned()));
    }
    if name == OWNER {
        return Err(TokenNameError::Owner);
    }
    if name == CONTROLLER {
        return Err(TokenNameError::Controller);
    }
    Ok(())
}

#[derive(Debug, Clone)]
struct KnownToken {
    name: String,
    sha256: TokenHash,
}

/// All tokens that an agent accepts.
#[derive(Debug)]
pub struct Tokens {
    owner: TokenHash,
    fixed: Vec<KnownToken>,
    watched: Vec<TokenFile>,
}

impl Tokens {
    /// Loads the agent's own token and those of `sources`.
    ///
    /// # Errors
    /// When a file cannot be read, can be read by others, or has a line that is not a name and a token.
    pub fn open(owner: &str, sources: &[TokenSource]) -> Result<Self, TokenError> {
        let mut tokens = Self { owner: hash(owner), fixed: Vec::new(), watched: Vec::new() };
        for source in sources {
            match source {
                TokenSource::Hashed { name, sha256 } => {
                    tokens.fixed.push(KnownToken { name: name.clone(), sha256: *sha256 });
                }
                TokenSource::File { name, file } => {
                    tokens.watched.push(TokenFile::open(file, Some(name))?);
                }
                TokenSource::List { file } => tokens.watched.push(TokenFile::open(file, None)?),
            }
        }
        Ok(tokens)
    }

    /// Returns true for the agent's own token.
    #[must_use]
    pub fn is_owner(&self, token: &str) -> bool {
        verify_slices_are_equal(&hash(token), &self.owner).is_ok()
    }

    /// Hash of the agent's own token.
    #[must_use]
    pub const fn owner_hash(&self) -> TokenHash {
        self.owner
    }

    /// Returns true if a token with this hash is known, or may be: the tokens of a file that exists
    /// but cannot be read do not count as revoked.
    #[must_use]
    pub fn may_hold(&self, sha256: &TokenHash) -> bool {
        let is_it = |known: &KnownToken| verify_slices_are_equal(&known.sha256, sha256).is_ok();
        let mut found = verify_slices_are_equal(&self.owner, sha256).is_ok();
        found |= self.fixed.iter().any(is_it);
        for watched in &self.watched {
            watched.with_current(|known| found |= known.iter().any(is_it));
            found |= watched.is_unusable();
        }
        found
    }

    /// Returns the name of the bearer of `token`, if it is valid.
    #[must_use]
    pub fn name_of(&self, token: &str) -> Option<String> {
        self.name_of_hash(&hash(token))
    }

    /// Returns the name of the bearer of the token with this hash, if it is valid.
    #[must_use]
    pub fn name_of_hash(&self, hash: &TokenHash) -> Option<String> {
        let is_owner = verify_slices_are_equal(hash, &self.owner).is_ok();
        let mut name = is_owner.then(|| OWNER.to_owned());
        let mut compare = |known: &KnownToken| {
            if verify_slices_are_equal(hash, &known.sha256).is_ok() {
                name = Some(known.name.clone());
            }
        };
        self.fixed.iter().for_each(&mut compare);
        for watched in &self.watched {
            watched.with_current(|known| known.iter().for_each(&mut compare));
        }
        name
    }
}

/// A token file with the tokens of its last reading.
#[derive(Debug)]
struct TokenFile {
    file: PathBuf,
    /// Name of the one token; `None` for a list, whose lines have names.
    name: Option<String>,
    read: Mutex<(Option<FileStamp>, Vec<KnownToken>)>,
    /// True if the file exists and the last attempt to read it failed.
    unusable: AtomicBool,
}

/// Identity and version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    pub(crate) fn of(facts: &Metadata) -> Self {
        Self {
            device: facts.dev(),
            inode: facts.ino(),
            bytes: facts.size(),
            modified: (facts.mtime(), facts.mtime_nsec()),
            changed: (facts.ctime(), facts.ctime_nsec()),
        }
    }
}

impl TokenFile {
    fn open(file: &Path, name: Option<&str>) -> Result<Self, TokenError> {
        let name = name.map(str::to_owned);
        let (stamp, known) = read(file, name.as_deref())?;
        Ok(Self {
            file: file.to_owned(),
            name,
            read: Mutex::new((Some(stamp), known)),
            unusable: AtomicBool::new(false),
        })
    }

    fn with_current(&self, look: impl FnOnce(&[KnownToken])) {
        let mut read_before = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = std::fs::metadata(&self.file).ok().as_ref().map(FileStamp::of);
        if stamp.is_none() || stamp != read_before.0 {
            match read(&self.file, self.name.as_deref()) {
                Ok((stamp, known)) => {
                    *read_before = (Some(stamp), known);
                    self.unusable.store(false, Ordering::Relaxed);
                }
                Err(error) => {
                    // Log once for each change; a missing file has no stamp before and after.
                    if !read_before.1.is_empty() || stamp != read_before.0 {
                        tracing::error!(
                            "{error}; until that is mended none of its tokens is valid"
                        );
                    }
                    *read_before = (stamp, Vec::new());
                    self.unusable.store(stamp.is_some(), Ordering::Relaxed);
                }
            }
        }
        look(&read_before.1);
    }

    fn is_unusable(&self) -> bool {
        self.unusable.load(Ordering::Relaxed)
    }
}

fn read(path: &Path, name: Option<&str>) -> Result<(FileStamp, Vec<KnownToken>), TokenError> {
    read_list(path, name).map_err(|fault| TokenError { file: path.to_owned(), fault })
}

/// Opens a file; a pipe or device is not waited for.
pub(crate) fn open_file(path: &Path) -> Result<File, TokenFileFault> {
    open_regular(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => TokenFileFault::NotAFile,
        _ => TokenFileFault::Io(error),
    })
}

fn read_list(
    path: &Path,
    name: Option<&str>,
) -> Result<(FileStamp, Vec<KnownToken>), TokenFileFault> {
    let mut file = open_file(path)?;
    let facts = file.metadata()?;
    // A secret that systemd or Kubernetes hands to a service may be readable by the service's group.
    let (forbidden, remedy) = if name.is_some() { (0o027, "640") } else { (0o077, "600") };
    if facts.mode() & forbidden != 0 {
        return Err(TokenFileFault::ExposedTokens { remedy });
    }
    if facts.uid() != 0 && facts.uid() != penstock_sys::machine::effective_user() {
        return Err(TokenFileFault::Owner(facts.uid()));
    }
    if facts.len() > FILE_BYTES_MAX {
        return Err(TokenFileFault::LongList);
    }
    let mut text = String::new();
    file.by_ref().take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    let known = match name {
        Some(name) => vec![known(name, text.trim())?],
        None => parse_list(&text)?,
    };
    Ok((FileStamp::of(&facts), known))
}

fn parse_list(text: &str) -> Result<Vec<KnownToken>, TokenFileFault> {
    let mut list = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let parsed = match line.split_once(char::is_whitespace) {
            Some((name, token)) => check_token_name(name)
                .map_err(TokenLineError::from)
                .and_then(|()| known(name, token.trim_start())),
            None => Err(TokenLineError::Words),
        };
        list.push(parsed.map_err(|error| TokenFileFault::Line { line: index + 1, error })?);
    }
    Ok(list)
}

fn known(name: &str, token: &str) -> Result<KnownToken, TokenLineError> {
    check_token(token).map_err(|fault| TokenLineError::Token { name: name.to_owned(), fault })?;
    Ok(KnownToken { name: name.to_owned(), sha256: hash(token) })
}

/// Checks length and characters of a token.
///
/// # Errors
/// When it could be guessed, or is no token.
pub fn check_token(token: &str) -> Result<(), TokenSyntaxError> {
    if token.len() < TOKEN_BYTES_MIN {
        return Err(TokenSyntaxError::Short);
    }
    if token.len() > TOKEN_BYTES_MAX {
        return Err(TokenSyntaxError::Long);
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(TokenSyntaxError::Characters);
    }
    Ok(())
}

/// Reads the file of one token, which only its owner may read.
///
/// # Errors
/// When the file cannot be read, others may read or change it, or its text is no token.
pub fn read_token(file: &Path) -> Result<String, TokenError> {
    let token = read_secret(file)?;
    check_token(&token)
        .map_err(|error| TokenError { file: file.to_owned(), fault: error.into() })?;
    Ok(token)
}

/// Reads the file of a token or a key, which only its owner may read, without white space around its text.
///
/// # Errors
/// When the file cannot be read, is longer than a token, or others may read or change it.
pub fn read_secret(file: &Path) -> Result<String, TokenError> {
    let read = || -> Result<String, TokenFileFault> {
        let opened = open_file(file)?;
        let facts = opened.metadata()?;
        // Kubernetes hands a secret to a service as a file of root that the service's group may read.
        let is_handed_over = facts.uid() == 0 && penstock_sys::machine::effective_user() != 0;
        let forbidden = if is_handed_over { 0o037 } else { 0o077 };
        if facts.mode() & forbidden != 0 {
            return Err(TokenFileFault::ExposedSecret(facts.mode() & 0o7777));
        }
        // White space around the token.
        if facts.len() > 2 * TOKEN_BYTES_MAX as u64 {
            return Err(TokenFileFault::LongSecret);
        }
        let mut text = String::new();
        opened.take(2 * TOKEN_BYTES_MAX as u64).read_to_string(&mut text)?;
        Ok(text.trim().to_owned())
    };
    read().map_err(|fault| TokenError { file: file.to_owned(), fault })
}

/// Hash by which a token is stored and compared.
#[must_use]
pub fn hash(token: &str) -> TokenHash {
    digest(&SHA256, token.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Formats bytes as lower-case hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const HEX_DIGITS: [u8; 16] = *b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(HEX_DIGITS[usize::from(digit)])).collect()
}

/// Returns the bearer token of a request; an empty one where the scheme stands alone.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Parses the 64 hexadecimal digits of a hash.
#[must_use]
pub fn unhex(text: &str) -> Option<TokenHash> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const ALICE: &str = "alice-has-a-long-token";
    const BOB: &str = "bob-has-another-long-token";

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn open(source: TokenSource) -> Result<Tokens, TokenError> {
        Tokens::open("the-token-of-the-owner", &[source])
    }

    #[test]
    fn each_source_names_its_bearer() {
        let directory = tempfile::tempdir().unwrap();
        let (list, file) = (directory.path().join("list"), directory.path().join("file"));
        write(&list, &format!("# tokens\n\nalice {ALICE}\n"), 0o600);
        write(&file, &format!("{BOB}\n"), 0o640);
        let hashed =
            TokenSource::hashed("carol".into(), &hex(&hash("carol's-token-is-hashed"))).unwrap();
        let sources = [
            hashed,
            TokenSource::File { name: "bob".into(), file },
            TokenSource::List { file: list },
        ];
        let tokens = Tokens::open("the-token-of-the-owner", &sources).unwrap();
        for (token, name) in [
            ("the-token-of-the-owner", Some(OWNER)),
            (ALICE, Some("alice")),
            (BOB, Some("bob")),
            ("carol's-token-is-hashed", Some("carol")),
            ("", None),
            ("alice", None),
            ("alice-has-a-long-toke", None),
        ] {
            assert_eq!(tokens.name_of(token).as_deref(), name, "{token}");
        }
        assert!(tokens.is_owner("the-token-of-the-owner") && !tokens.is_owner(ALICE));
    }

    #[test]
    fn changed_token_list_is_reloaded() {
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("list");
        write(&list, &format!("alice {ALICE}\n"), 0o600);
        let tokens = open(TokenSource::List { file: list.clone() }).unwrap();
        assert_eq!(tokens.name_of(ALICE).as_deref(), Some("alice"));
        write(&list, &format!("bob {BOB}\n"), 0o600);
        assert_eq!((tokens.name_of(ALICE), tokens.name_of(BOB).as_deref()), (None, Some("bob")));
        write(&list, &format!("bob {BOB}\nbroken\n"), 0o600);
        assert_eq!(tokens.name_of(BOB), None, "a list with an error makes all its tokens invalid");
        write(&list, &format!("bob {BOB}\n"), 0o644);
        assert_eq!(tokens.name_of(BOB), None, "nor does one that others can read");
        write(&list, &format!("bob {BOB}\n"), 0o600);
        assert_eq!(tokens.name_of(BOB).as_deref(), Some("bob"));
        fs::remove_file(&list).unwrap();
        assert_eq!(tokens.name_of(BOB), None);
    }

    #[test]
    fn removed_token_is_not_held() {
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("list");
        write(&list, &format!("alice {ALICE}\n"), 0o600);
        let tokens = open(TokenSource::List { file: list.clone() }).unwrap();
        assert!(tokens.may_hold(&hash(ALICE)) && tokens.may_hold(&hash("the-token-of-the-owner")));
        assert!(!tokens.may_hold(&hash(BOB)));
        write(&list, &format!("alice {ALICE}\nbroken\n"), 0o600);
        assert!(tokens.may_hold(&hash(ALICE)), "a file with an error removes no token");
        write(&list, &format!("alice {BOB}\n"), 0o600);
        assert!(!tokens.may_hold(&hash(ALICE)), "another token of the same name");
        fs::remove_file(&list).unwrap();
        assert!(!tokens.may_hold(&hash(BOB)));
    }

    #[test]
    fn bad_token_file_error_names_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("list");
        for (text, mode, words) in [
            (format!("alice {ALICE}\n"), 0o640, "chmod 600"),
            (format!("alice {ALICE}\nbob short\n"), 0o600, "line 2: token bob is shorter than 16"),
            (format!("{ALICE}\n"), 0o600, "line 1: write a name, a space and a token"),
            (format!("owner {ALICE}\n"), 0o600, "agent's own token"),
            (format!("alice {ALICE} {BOB}\n"), 0o600, "has a space"),
        ] {
            write(&file, &text, mode);
            let error = open(TokenSource::List { file: file.clone() }).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert!(!error.contains(ALICE), "an error shows a token: {error}");
        }
        let missing = directory.path().join("none");
        let error =
            open(TokenSource::File { name: "x".into(), file: missing }).unwrap_err().to_string();
        assert!(error.ends_with("no such file or directory"), "{error}");
    }

    #[test]
    fn devices_are_no_token_files() {
        for fault in [
            read(Path::new("/dev/zero"), None).map(drop),
            read_secret(Path::new("/dev/zero")).map(drop),
        ] {
            assert!(matches!(fault.unwrap_err().fault, TokenFileFault::NotAFile));
        }
    }
}
