//! Tokens with claims: each part of outside input is read or refused, and what is read obeys its bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_scopes::scope::{STORAGE_SCOPES_MAX, parse};
use penstock_scopes::{AccessRights, PathGrant, ScopePath, ScopeSyntax, TokenGrant};
use penstock_tokens::{MintRequest, RedirectKey};
use penstock_tokens::jwt::UnverifiedToken;
use penstock_tokens::keys::{KEYS_MAX, KeySet};
use penstock_tokens::macaroon::MacaroonKey;

fuzz_target!(|text: &str| {
    let _ = UnverifiedToken::parse(text);
    if let Ok(keys) = KeySet::parse(text.as_bytes()) {
        assert!((1..=KEYS_MAX).contains(&keys.count()));
    }
    let key = MacaroonKey::new(&[7; 32]);
    assert!(key.open(text, 0).is_err(), "no one else has the key");
    let redirects = RedirectKey::new(&[7; 32]);
    assert!(redirects.open(text, "GET", b"/f", "host:1", 0).is_err(), "nor this one");
    let mut paths = Vec::new();
    for syntax in [ScopeSyntax::Wlcg, ScopeSyntax::SciTokens] {
        let Ok(grants) = parse(text, syntax) else { continue };
        assert!(grants.len() <= STORAGE_SCOPES_MAX);
        for grant in grants {
            assert!(grant.path.components().all(|part| !matches!(part, b"" | b"." | b"..")));
            assert_eq!(ScopePath::new(&grant.path.to_bytes()), Ok(grant.path.clone()));
            paths.push(grant);
        }
    }
    let base = ScopePath::new(b"/a").expect("a path");
    if let Ok(request) = MintRequest::parse(text.as_bytes(), base.clone()) {
        assert!(base.covers(&request.grant.path) && !request.validity.is_zero());
        paths.push(request.grant);
    }
    let held = TokenGrant { issuer: None, subject: None, groups: Vec::new(), paths, expires_s: 0 };
    let all = AccessRights::READ.union(AccessRights::MODIFY);
    for narrow in held.narrowed(&PathGrant { path: base.clone(), rights: all }) {
        assert!(base.covers(&narrow.path));
        let own = held.rights_at(&narrow.path);
        assert_eq!(own.union(narrow.rights), own);
    }
});
