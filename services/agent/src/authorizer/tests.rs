//! Tests of clients, exports and tickets.

use std::path::{Path, PathBuf};

use super::*;
use crate::config::AccessMode;
use crate::tokens::TokenSource;

const OWNER_TOKEN: &str = "the-token-of-the-owner";
const ALICE: &str = "alice-has-a-long-token";
const CERTIFICATE: Fingerprint = Fingerprint([7; 32]);

fn authorizer(directory: &Path) -> Authorizer {
    let list = directory.join("tokens");
    std::fs::write(&list, format!("alice {ALICE}\n")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&list, mode).unwrap();
    let tokens = Tokens::open(OWNER_TOKEN, &[TokenSource::List { file: list }]).unwrap();
    let export = |name: &str, mode, principals: &[&str]| {
        let path: PathBuf = directory.join(name.trim_start_matches('/').replace('/', "-"));
        std::fs::create_dir_all(&path).unwrap();
        let principals = principals.iter().map(|principal| principal.parse().unwrap()).collect();
        Export { name: name.parse().unwrap(), path, mode, principals, scitag: None }
    };
    let certificate = Principal::certificate_name(&CERTIFICATE);
    let exports = vec![
        export("/store", AccessMode::ReadWrite, &["*"]),
        export("/store/cms", AccessMode::Read, &["alice", "owner"]),
        export("/drop", AccessMode::Write, &[&certificate]),
        export("/in", AccessMode::ReadWrite, &["controller"]),
        export("/out", AccessMode::Read, &["controller"]),
    ];
    Authorizer::new(AccessRules {
        tokens,
        exports,
        token_tags: HashMap::new(),
        destinations: DestinationRules::default(),
        cleartext: CleartextNetworks::default(),
        issuers: IssuerRegistry::default(),
        quotas: Vec::new(),
    })
}

fn access(write: bool) -> PathAccess {
    if write { PathAccess::Replace } else { PathAccess::Read }
}

fn caller(name: &str) -> Caller {
    Caller { name: name.to_owned(), pass: None, token: None, grant: None }
}

#[test]
fn unauthenticated_clients_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let authorizer = authorizer(directory.path());
    let other = Fingerprint([8; 32]);
    for (token, certificate, name) in [
        (OWNER_TOKEN, None, Some("owner".to_owned())),
        (ALICE, None, Some("alice".to_owned())),
        (ALICE, Some(&other), Some("alice".to_owned())),
        ("", Some(&CERTIFICATE), Some(Principal::certificate_name(&CERTIFICATE))),
        ("", None, None),
        ("", Some(&other), None),
        ("wrong-token-wrong-token", None, None),
        // A wrong token is an error even where the certificate alone would do.
        ("wrong-token-wrong-token", Some(&CERTIFICATE), None),
    ] {
        let answer = authorizer.authenticate(token, certificate, "127.0.0.1:5");
        match name {
            Some(name) => assert_eq!(answer.unwrap().name, name),
            None => {
                let refusal = answer.unwrap_err();
                assert_eq!(refusal.kind, RefusalKind::Identity);
                assert!(!refusal.text.contains("wrong-token"), "{}", refusal.text);
            }
        }
    }
}

#[test]
fn longest_matching_export_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let authorizer = authorizer(directory.path());
    for (path, rest, shown) in [
        (&b"/store"[..], &b""[..], "/store"),
        (b"store//a/./b/", b"a/b", "/store/a/b"),
        (b"/store/cms/x\n\xff", b"x\n\xff", "/store/cms/x\\n\\xff"),
        (b"/store/cmsx", b"cmsx", "/store/cmsx"),
    ] {
        let place = authorizer.place(&caller("alice"), path, PathAccess::Read).unwrap();
        assert_eq!((place.path.as_slice(), place.shown.as_str()), (rest, shown));
    }
}

#[test]
fn refusals_name_reason_and_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let authorizer = authorizer(directory.path());
    for (name, path, write, kind, words) in [
        (
            "alice",
            "/store/cms/x",
            true,
            RefusalKind::Permission,
            "is read-only and cannot be written",
        ),
        ("bob", "/store/cms/x", false, RefusalKind::NotFound, "use a path below /store"),
        ("alice", "/drop/x", true, RefusalKind::NotFound, "use a path below /store or /store/cms"),
        ("alice", "/", false, RefusalKind::NotFound, "use a path below /store or /store/cms"),
        ("alice", "/elsewhere", false, RefusalKind::NotFound, "is in no export"),
        ("alice", "/store/../etc", false, RefusalKind::Permission, "'..'"),
        ("alice", "/store/a\0b", false, RefusalKind::Permission, "NUL"),
    ] {
        let refusal = authorizer.place(&caller(name), path.as_bytes(), access(write)).unwrap_err();
        assert_eq!(refusal.kind, kind, "{path}: {}", refusal.text);
        assert!(refusal.text.contains(words), "{path}: {}", refusal.text);
        assert!(name != "bob" || !refusal.text.contains("cms or"), "{}", refusal.text);
    }
    let sender = caller(&Principal::certificate_name(&CERTIFICATE));
    authorizer.place(&sender, b"/drop/x", PathAccess::Replace).unwrap();
    assert!(
        authorizer
            .place(&sender, b"/drop/x", PathAccess::Read)
            .unwrap_err()
            .text
            .contains("write-only")
    );
}

#[test]
fn ticket_allows_writing_one_directory() {
    let directory = tempfile::tempdir().unwrap();
    let authorizer = authorizer(directory.path());
    let ticket = "a-ticket-of-some-length";
    for (ticket, below, words) in [
        ("short", "/in/a", "shorter than 16"),
        (ticket, "/store/cms", "in no export"),
        (ticket, "/in/../store", "'..'"),
        (ticket, "/out", "read-only"),
    ] {
        let refusal = authorizer.grant_ticket(OrderId::from(7), ticket, below).unwrap_err();
        assert!(refusal.text.contains(words), "{below}: {}", refusal.text);
    }
    assert!(authorizer.authenticate(ticket, None, "127.0.0.1:5").is_err());
    authorizer.grant_ticket(OrderId::from(7), ticket, "/in/a").unwrap();
    let bearer = authorizer.authenticate(ticket, None, "127.0.0.1:5").unwrap();
    assert_eq!((bearer.name.as_str(), bearer.pass), ("controller", Some(7)));
    authorizer.place(&bearer, b"/in/a", PathAccess::Replace).unwrap();
    authorizer.place(&bearer, b"/in//a/b/c", PathAccess::Replace).unwrap();
    for (path, write) in [
        (&b"/in/a"[..], false),
        (b"/in", true),
        (b"/in/ab", true),
        (b"/in/a/../b", true),
        (b"/store/x", true),
        (b"/", true),
    ] {
        assert!(authorizer.place(&bearer, path, access(write)).is_err(), "{}", path.escape_ascii());
    }
    std::os::unix::fs::symlink("../b", directory.path().join("in/a/link")).unwrap();
    let place = authorizer.place(&bearer, b"/in/a/link/x", PathAccess::Replace).unwrap();
    assert_eq!(place.path, b"link/x");
    assert!(place.root.open_dir("link").is_err());
    // `*` does not include the controller.
    assert!(authorizer.place(&controller(None), b"/store/x", PathAccess::Replace).is_err());
    assert!(authorizer.place(&controller(None), b"/out/x", PathAccess::Read).is_ok());
    assert!(authorizer.still_admits(&bearer) && authorizer.still_admits(&controller(None)));
    authorizer.revoke_ticket(OrderId::from(7));
    assert!(!authorizer.still_admits(&bearer));
    assert!(authorizer.authenticate(ticket, None, "127.0.0.1:5").is_err());
    assert!(authorizer.place(&bearer, b"/in/a", PathAccess::Replace).is_err());
}

#[test]
fn withdrawn_clients_are_known() {
    let directory = tempfile::tempdir().unwrap();
    let authorizer = authorizer(directory.path());
    let certificate = |byte| Principal::certificate_name(&Fingerprint([byte; 32]));
    let token = |token: &str| Caller { token: Some(hash(token)), ..caller("alice") };
    for (caller, withdrawn) in [
        (token(ALICE), false),
        (token("a-token-of-nobody"), true),
        (caller(&certificate(7)), false),
        (caller(&certificate(8)), true),
        // A head node redirected it here.
        (caller("carol"), false),
        (controller(None), false),
        (controller(Some(OrderId::from(7))), true),
    ] {
        assert_eq!(authorizer.has_withdrawn(&caller), withdrawn, "{caller:?}");
        assert_eq!(authorizer.still_admits(&caller), !withdrawn, "{caller:?}");
    }
}

#[test]
fn missing_export_is_agent_failure() {
    let directory = tempfile::tempdir().unwrap();
    let authorizer = authorizer(directory.path());
    std::fs::remove_dir(directory.path().join("store")).unwrap();
    let refusal = authorizer.place(&caller("alice"), b"/store/x", PathAccess::Replace).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Agent);
    assert!(refusal.text.contains("no such file or directory"), "{}", refusal.text);
}
