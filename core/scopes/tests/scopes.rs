//! Scopes as tokens state them, and the uses of paths that they cover.

use penstock_scopes::scope::{STORAGE_SCOPES_MAX, parse};
use penstock_scopes::{
    AccessRights, PathAccess, PathGrant, ScopeError, ScopePath, ScopePathError, ScopeSyntax,
    TokenGrant,
};
use proptest::prelude::*;

fn path(text: &str) -> ScopePath {
    ScopePath::new(text.as_bytes()).unwrap()
}

fn grant(scope: &str, syntax: ScopeSyntax) -> TokenGrant {
    let paths = parse(scope, syntax).unwrap();
    TokenGrant { issuer: None, subject: None, groups: Vec::new(), paths, expires_s: 0 }
}

#[test]
fn words_of_both_profiles_grant_rights() {
    for (syntax, scope, rights) in [
        (ScopeSyntax::Wlcg, "openid storage.read:/a compute.read", AccessRights::READ),
        (ScopeSyntax::Wlcg, "storage.stage:/a", AccessRights::READ),
        (ScopeSyntax::Wlcg, "storage.create:/a/", AccessRights::CREATE),
        (ScopeSyntax::Wlcg, "storage.modify:/", AccessRights::MODIFY),
        (ScopeSyntax::Wlcg, "read:/ write:/ storage.Read:/ storage.readx:/", AccessRights::NONE),
        (ScopeSyntax::SciTokens, "read:/a", AccessRights::READ),
        (ScopeSyntax::SciTokens, "write:/a storage.read:/", AccessRights::MODIFY),
        (
            ScopeSyntax::SciTokens,
            "write:/a read:/a/b",
            AccessRights::MODIFY.union(AccessRights::READ),
        ),
    ] {
        assert_eq!(grant(scope, syntax).rights_at(&path("/a/b/c")), rights, "{scope}");
    }
    assert!(AccessRights::MODIFY.allows(PathAccess::Create));
    assert!(!AccessRights::MODIFY.allows(PathAccess::Read));
    assert!(AccessRights::CREATE.allows(PathAccess::Stat));
}

#[test]
fn damaged_paths_are_refused() {
    let refused = |scope: &str, syntax| parse(scope, syntax).unwrap_err();
    for (path, fault) in [
        ("/a/../b", ScopePathError::Parent),
        ("/a/%2e%2E/b", ScopePathError::Parent),
        ("/..", ScopePathError::Parent),
        ("a", ScopePathError::Relative),
        ("", ScopePathError::Relative),
        ("/a%2fb", ScopePathError::Byte),
        ("/a%00", ScopePathError::Byte),
        ("/a%2", ScopePathError::Encoding),
        ("/a%zz", ScopePathError::Encoding),
    ] {
        let error = refused(&format!("storage.read:{path}"), ScopeSyntax::Wlcg);
        assert!(matches!(error, ScopeError::Path { error, .. } if error == fault), "{path}");
    }
    assert!(matches!(refused("storage.read", ScopeSyntax::Wlcg), ScopeError::NoPath(_)));
    assert!(matches!(refused("read:/a/..", ScopeSyntax::SciTokens), ScopeError::Path { .. }));
    let many = "storage.read:/a ".repeat(STORAGE_SCOPES_MAX + 1);
    assert_eq!(refused(&many, ScopeSyntax::Wlcg), ScopeError::Count);
}

#[test]
fn paths_are_decoded_once() {
    let twice = grant("storage.read:/a%252e%252e/b%20c", ScopeSyntax::Wlcg);
    assert!(twice.rights_at(&path("/a%2e%2e/b c/d")).allows(PathAccess::Read));
    assert!(twice.rights_at(&path("/a../b c")).is_empty());
    let plain = grant("read:/a%20b", ScopeSyntax::SciTokens);
    assert!(plain.rights_at(&path("/a b")).is_empty());
}

#[test]
fn components_are_compared_not_prefixes() {
    let da = grant("storage.read:/store/da", ScopeSyntax::Wlcg);
    assert!(da.rights_at(&path("/store/data")).is_empty());
    assert!(da.rights_at(&path("/store")).is_empty());
    assert!(da.rights_at(&path("//store/./da//x")).allows(PathAccess::Read));
    assert!(da.touches(&path("/store")) && !da.touches(&path("/store/data")));
}

#[test]
fn narrowed_grant_keeps_common_rights() {
    let wide = grant("storage.read:/a storage.create:/a/b/c", ScopeSyntax::Wlcg);
    let all = AccessRights::READ.union(AccessRights::MODIFY);
    let common = wide.narrowed(&PathGrant { path: path("/a/b"), rights: all });
    let expected = [
        PathGrant { path: path("/a/b"), rights: AccessRights::READ },
        PathGrant { path: path("/a/b/c"), rights: AccessRights::CREATE },
    ];
    assert_eq!(common, expected);
    assert!(wide.narrowed(&PathGrant { path: path("/b"), rights: all }).is_empty());
    let write = PathGrant { path: path("/a"), rights: AccessRights::MODIFY };
    assert_eq!(wide.narrowed(&write).len(), 1);
}

fn any_path() -> impl Strategy<Value = ScopePath> {
    proptest::collection::vec("[ab]{1,2}", 0..4)
        .prop_map(|parts| path(&format!("/{}", parts.join("/"))))
}

fn any_rights() -> impl Strategy<Value = AccessRights> {
    any::<u8>().prop_map(|bits| {
        AccessRights::NONE.intersection(AccessRights::NONE).union(AccessRights::from_bits(bits))
    })
}

const ALL_ACCESS: [PathAccess; 7] = [
    PathAccess::Stat,
    PathAccess::List,
    PathAccess::Read,
    PathAccess::Create,
    PathAccess::Replace,
    PathAccess::Delete,
    PathAccess::Rename,
];

proptest! {
    #![proptest_config(penstock_testkit::properties())]

    #[test]
    fn parser_never_panics(text in "\\PC*") {
        for syntax in [ScopeSyntax::Wlcg, ScopeSyntax::SciTokens] {
            let _ = parse(&text, syntax);
            let _ = parse(&format!("storage.read:/{text} read:/{text}"), syntax);
        }
    }

    #[test]
    fn path_survives_a_second_reading(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(path) = ScopePath::new(&bytes) {
            prop_assert_eq!(ScopePath::decode(path.to_encoded().as_bytes()), Ok(path.clone()));
            prop_assert_eq!(ScopePath::new(&path.to_bytes()), Ok(path));
        }
    }

    #[test]
    fn narrowed_grant_is_never_wider(
        held in proptest::collection::vec((any_path(), any_rights()), 0..4),
        wanted in (any_path(), any_rights()),
        used in any_path(),
    ) {
        let paths: Vec<_> =
            held.into_iter().map(|(path, rights)| PathGrant { path, rights }).collect();
        let held =
            TokenGrant { issuer: None, subject: None, groups: Vec::new(), paths, expires_s: 0 };
        let wanted = PathGrant { path: wanted.0, rights: wanted.1 };
        let narrow = TokenGrant { paths: held.narrowed(&wanted), ..held.clone() };
        for access in ALL_ACCESS {
            let allowed = narrow.rights_at(&used).allows(access);
            prop_assert!(!allowed || held.rights_at(&used).allows(access));
            prop_assert!(!allowed || (wanted.path.covers(&used) && wanted.rights.allows(access)));
            let both = wanted.path.covers(&used)
                && wanted.rights.allows(access)
                && held.rights_at(&used).allows(access);
            prop_assert!(allowed || !both || access == PathAccess::Stat);
        }
    }
}
