//! Tests of the state directory: what is made in it, what is refused, and who may read what.

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
fn the_rule_for_the_directory() {
    let find = |pairs: &[(&str, &str)]| {
        let pairs: Vec<(String, OsString)> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), value.into())).collect();
        directory(&|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.clone()))
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
fn credentials_are_made_once_and_kept_from_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/state");
    let first = State::open(&path).unwrap().credentials().unwrap();
    assert!(first.new && first.token.len() == 64);
    assert_eq!(mode(&path), 0o700);
    assert_eq!((mode(&path.join(KEY)), mode(&path.join(TOKEN))), (0o600, 0o600));
    let again = State::open(&path).unwrap().credentials().unwrap();
    assert!(!again.new);
    assert_eq!(
        (again.token, again.identity.fingerprint()),
        (first.token, first.identity.fingerprint())
    );
}

#[test]
fn agents_that_start_together_share_one_identity() {
    let directory = tempfile::tempdir().unwrap();
    let start = || {
        let credentials = State::open(directory.path()).unwrap().credentials().unwrap();
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
fn one_agent_at_a_time_runs_on_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let state = State::open(directory.path()).unwrap();
    let hold = state.hold().unwrap();
    let error = state.hold().unwrap_err().to_string();
    let process = format!("already (process {}): stop it", std::process::id());
    assert!(error.contains(&process) && error.contains("--state DIR"), "{error}");
    drop(hold);
    state.hold().unwrap();
}

#[test]
fn a_directory_that_others_may_write_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for mode in [0o770, 0o757, 0o1777] {
        chmod(directory.path(), mode);
        let error = State::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("chmod 700"), "{error}");
    }
    chmod(directory.path(), 0o755);
    State::open(directory.path()).unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(State::open(&file).unwrap_err().to_string().contains("is not a directory"));
}

#[test]
fn secrets_that_others_may_read_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let state = State::open(directory.path()).unwrap();
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
fn a_lost_key_is_told_and_a_lost_certificate_is_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    let state = State::open(directory.path()).unwrap();
    let first = state.credentials().unwrap().identity.fingerprint();
    fs::remove_file(directory.path().join(KEY)).unwrap();
    let error = state.credentials().unwrap_err().to_string();
    assert!(error.contains("agent.key is gone") && error.contains("log in again"), "{error}");
    fs::remove_file(directory.path().join(CERTIFICATE)).unwrap();
    let second = state.credentials().unwrap();
    assert!(second.new && second.identity.fingerprint() != first);
    fs::write(directory.path().join(CERTIFICATE), "garbage").unwrap();
    assert!(state.credentials().unwrap_err().to_string().contains("agent.crt"));
    fs::write(directory.path().join(TOKEN), "short").unwrap();
    assert!(state.existing_credentials().is_err());
}

#[test]
fn a_directory_that_cannot_be_written_is_told() {
    let directory = tempfile::tempdir().unwrap();
    chmod(directory.path(), 0o500);
    let opened = State::open(directory.path()).unwrap();
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
