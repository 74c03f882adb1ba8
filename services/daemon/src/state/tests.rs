//! Tests of the state directory: creation, permissions, locks.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn directory_follows_environment() {
    let find = |pairs: &[(&str, &str)]| {
        let pairs: Vec<(String, OsString)> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), value.into())).collect();
        let variable =
            |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.clone());
        directory(Environment::new(&variable))
    };
    assert_eq!(find(&[("PENSTOCK_STATE", "/x"), ("HOME", "/h")]).unwrap(), Path::new("/x"));
    if effective_user() == 0 {
        assert_eq!(find(&[("HOME", "/root")]).unwrap(), Path::new("/var/lib/penstock"));
        return;
    }
    let home = Path::new("/h/.local/state/penstock");
    assert_eq!(find(&[("HOME", "/h")]).unwrap(), home);
    assert_eq!(find(&[("HOME", "/h"), ("PENSTOCK_STATE", "")]).unwrap(), home);
    assert_eq!(find(&[("HOME", "/h"), ("XDG_STATE_HOME", "relative")]).unwrap(), home);
    assert_eq!(find(&[("XDG_STATE_HOME", "/s")]).unwrap(), Path::new("/s/penstock"));
    assert!(find(&[]).unwrap_err().to_string().contains("PENSTOCK_STATE"));
}

#[test]
fn credentials_persist_with_mode_0600() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/state");
    let first = StateDir::open(&path).unwrap().credentials().unwrap();
    assert!(first.new && first.token.len() == 64);
    assert_eq!(mode(&path), 0o700);
    assert_eq!((mode(&path.join(KEY)), mode(&path.join(TOKEN))), (0o600, 0o600));
    let again = StateDir::open(&path).unwrap().credentials().unwrap();
    assert!(!again.new);
    assert_eq!(
        (again.token, again.identity.fingerprint()),
        (first.token, first.identity.fingerprint())
    );
}

#[test]
fn replaced_identity_is_read_whole() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::open(directory.path()).unwrap();
    state.credentials().unwrap();
    let next = Identity::generate().unwrap();
    let held = state.lock().unwrap();
    state.write(KEY, next.key_pem().as_bytes(), 0o600).unwrap();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| state.existing_credentials());
        let begun = std::time::Instant::now();
        while begun.elapsed() < Duration::from_millis(50) && !read.is_finished() {}
        state.write(CERTIFICATE, next.certificate_pem().as_bytes(), 0o644).unwrap();
        drop(held);
        let read = read.join().unwrap().unwrap().unwrap();
        assert_eq!(read.identity.fingerprint(), next.fingerprint());
    });
}

#[test]
fn installed_identity_replaces_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::open(directory.path()).unwrap();
    let before = state.credentials().unwrap().identity.fingerprint();
    let other = Identity::generate().unwrap();
    state.install_identity(&other.certificate_pem(), &other.key_pem()).unwrap();
    assert_eq!(state.credentials().unwrap().identity.fingerprint(), other.fingerprint());
    assert_eq!(mode(&directory.path().join(KEY)), 0o600);
    let third = Identity::generate().unwrap();
    state.install_identity(&third.certificate_pem(), &other.key_pem()).unwrap_err();
    assert_eq!(state.credentials().unwrap().identity.fingerprint(), other.fingerprint());
    assert_ne!(before, other.fingerprint());
}

#[test]
fn concurrent_starts_share_one_identity() {
    let directory = tempfile::tempdir().unwrap();
    let start = || {
        let credentials = StateDir::open(directory.path()).unwrap().credentials().unwrap();
        (credentials.identity.fingerprint().to_string(), credentials.token, credentials.new)
    };
    let all: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(all.iter().all(|one| (&one.0, &one.1) == (&all[0].0, &all[0].1)));
    assert_eq!(all.iter().filter(|one| one.2).count(), 1);
}

#[test]
fn second_agent_on_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::open(directory.path()).unwrap();
    let hold = state.hold().unwrap();
    let error = state.hold().unwrap_err().to_string();
    let process = format!("already (process {}): stop it", std::process::id());
    assert!(error.contains(&process) && error.contains("--state DIR"), "{error}");
    drop(hold);
    state.hold().unwrap();
}

#[test]
fn writable_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for mode in [0o770, 0o757, 0o1777] {
        chmod(directory.path(), mode);
        let error = StateDir::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("chmod 700"), "{error}");
    }
    chmod(directory.path(), 0o755);
    StateDir::open(directory.path()).unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(StateDir::open(&file).unwrap_err().fault, StateFault::NotADirectory));
}

#[test]
fn readable_secrets_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::open(directory.path()).unwrap();
    state.credentials().unwrap();
    for name in [KEY, TOKEN] {
        chmod(&directory.path().join(name), 0o644);
        let error = state.credentials().unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("chmod 600"), "{error}");
        chmod(&directory.path().join(name), 0o600);
    }
    state.credentials().unwrap();
}

#[test]
fn missing_key_fails_missing_certificate_regenerates() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::open(directory.path()).unwrap();
    let first = state.credentials().unwrap().identity.fingerprint();
    fs::remove_file(directory.path().join(KEY)).unwrap();
    let error = state.credentials().unwrap_err().to_string();
    assert!(error.contains("agent.key is gone") && error.contains("log in again"), "{error}");
    fs::remove_file(directory.path().join(CERTIFICATE)).unwrap();
    let second = state.credentials().unwrap();
    assert!(second.new && second.identity.fingerprint() != first);
    fs::write(directory.path().join(CERTIFICATE), "garbage").unwrap();
    let error = state.credentials().unwrap_err();
    assert!(matches!(error.fault, StateFault::Identity(_)), "{error}");
    assert_eq!(error.path, directory.path().join(CERTIFICATE));
    fs::write(directory.path().join(TOKEN), "short").unwrap();
    assert!(state.existing_credentials().is_err());
}

#[test]
fn unwritable_directory_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    chmod(directory.path(), 0o500);
    let opened = StateDir::open(directory.path()).unwrap();
    let result = opened.credentials();
    chmod(directory.path(), 0o700);
    if effective_user() == 0 {
        penstock_testkit::skip(
            penstock_testkit::Requirement::Machine,
            "root writes to any directory",
        );
        return;
    }
    let error = result.unwrap_err().to_string();
    assert!(error.contains("cannot be written: permission denied"), "{error}");
}
