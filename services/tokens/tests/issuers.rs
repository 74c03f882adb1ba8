//! Keys of an issuer that a server publishes over https.

#[path = "../../../penstock/tests/gateway/issuer.rs"]
mod issuer;

use std::time::{Duration, Instant};

use issuer::{AUDIENCE, TestIssuer, TestKey, key_set, now_s, wlcg};
use penstock_scopes::{PathAccess, ScopePath, TokenGrant};
use penstock_tokens::issuer::IssuerConfig;
use penstock_tokens::key_cache::{KeyCacheTimes, KeyLookupError};
use penstock_tokens::{IssuerRegistry, TokenAuthError, TokenRejection};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

const TEST_DURATION_MAX: Duration = Duration::from_secs(3600);

/// Times with which nothing is fetched twice.
const TIMES: KeyCacheTimes = KeyCacheTimes {
    refresh: TEST_DURATION_MAX,
    usable: TEST_DURATION_MAX,
    interval: TEST_DURATION_MAX,
    retry: TEST_DURATION_MAX,
    fetch: Duration::from_secs(20),
};

struct Setup {
    runtime: Runtime,
    registry: IssuerRegistry,
}

fn config(issuer: &TestIssuer) -> IssuerConfig {
    IssuerConfig {
        name: "cms".to_owned(),
        url: issuer.url().to_owned(),
        audiences: vec![AUDIENCE.to_owned()],
        base: ScopePath::new(b"/store/cms").unwrap(),
        jwks_file: None,
        authorities: Some(issuer.authority()),
        reads_api: false,
    }
}

fn setup(config: &IssuerConfig, times: KeyCacheTimes) -> Setup {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let none = IssuerRegistry::default();
    let configs = std::slice::from_ref(config);
    let registry = IssuerRegistry::open(configs, runtime.handle(), times, &none).unwrap();
    Setup { runtime, registry }
}

impl Setup {
    fn check(&self, token: &str) -> Result<TokenGrant, TokenAuthError> {
        self.registry.authenticate(token, now_s())
    }
}

fn is_unknown_key(checked: &Result<TokenGrant, TokenAuthError>, id: &str) -> bool {
    matches!(checked, Err(TokenAuthError::Rejected(TokenRejection::UnknownKey(key))) if key == id)
}

#[test]
fn scopes_begin_at_the_base() {
    let key = TestKey::es256("e1");
    let issuer = TestIssuer::new(&[&key]);
    let site = setup(&config(&issuer), TIMES);
    let token = key.token(&wlcg(issuer.url(), "storage.read:/data"));
    for _ in 0..20 {
        let grant = site.check(&token).unwrap();
        let rights = |path: &[u8]| grant.rights_at(&ScopePath::new(path).unwrap());
        assert!(rights(b"/store/cms/data/x").allows(PathAccess::Read));
        assert!(rights(b"/data").is_empty() && rights(b"/store/cms").is_empty());
        assert_eq!(grant.issuer.as_ref().unwrap().name, "cms");
    }
    assert_eq!(issuer.fetches(), (1, 1), "20 tokens");
    let other = key.token(&wlcg("https://evil.example.org", "storage.read:/"));
    assert!(matches!(site.check(&other), Err(TokenAuthError::Rejected(TokenRejection::Issuer(_)))));
    assert_eq!(issuer.fetches(), (1, 1));
}

#[test]
fn unknown_keys_do_not_flood_issuer() {
    let key = TestKey::es256("e1");
    let issuer = TestIssuer::new(&[&key]);
    let site = setup(&config(&issuer), TIMES);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (site, key, url) = (&site, &key, issuer.url());
            scope.spawn(move || {
                for number in 0..50 {
                    let id = format!("random-{thread}-{number}");
                    let header = json!({"alg": "ES256", "kid": id});
                    let token = key.sign(&header, &wlcg(url, "storage.read:/"));
                    assert!(is_unknown_key(&site.check(&token), &id));
                }
            });
        }
    });
    assert_eq!(issuer.fetches(), (1, 1), "400 tokens with invented keys");
    assert!(site.check(&key.token(&wlcg(issuer.url(), "storage.read:/"))).is_ok());
}

#[test]
fn rotated_key_is_fetched() {
    let (old, new) = (TestKey::es256("e1"), TestKey::rs256("r2"));
    let issuer = TestIssuer::new(&[&old]);
    let site = setup(&config(&issuer), KeyCacheTimes { interval: Duration::ZERO, ..TIMES });
    let token = |key: &TestKey| key.token(&wlcg(issuer.url(), "storage.read:/"));
    assert!(site.check(&token(&old)).is_ok());
    issuer.publish(&[&new]);
    assert!(site.check(&token(&new)).is_ok());
    assert!(is_unknown_key(&site.check(&token(&old)), "e1"), "the issuer withdrew it");
}

#[test]
fn cached_keys_outlive_the_issuer() {
    let key = TestKey::es256("e1");
    let issuer = TestIssuer::new(&[&key]);
    // Each look-up finds the keys due, and fetches in the background.
    let times = KeyCacheTimes { refresh: Duration::ZERO, interval: Duration::ZERO, ..TIMES };
    let site = setup(&config(&issuer), times);
    let token = key.token(&wlcg(issuer.url(), "storage.read:/"));
    site.check(&token).unwrap();
    issuer.set_down(true);
    let begun = Instant::now();
    for _ in 0..50 {
        site.check(&token).unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(15), "a known key waits for no fetch");
    let usable = KeyCacheTimes { usable: Duration::ZERO, interval: Duration::ZERO, ..TIMES };
    let site = setup(&config(&issuer), usable);
    let error = site.check(&token).unwrap_err();
    let TokenAuthError::Unavailable(KeyLookupError::Unreachable(failure)) = &error else {
        panic!("{error}");
    };
    let text = failure.to_string();
    assert!(text.contains("/iam/.well-known/openid-configuration"), "{text}");
    issuer.set_down(false);
    let again = site.check(&token).unwrap_err().to_string();
    assert_eq!(again, error.to_string(), "no new fetch before its time");
}

#[test]
fn hostile_issuers_are_refused() {
    let key = TestKey::es256("e1");
    let issuer = TestIssuer::new(&[&key]);
    let token = key.token(&wlcg(issuer.url(), "storage.read:/"));
    let refused = |words: &str| {
        let error = setup(&config(&issuer), TIMES).check(&token).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    issuer.publish_text(&" ".repeat(10 << 20));
    refused("longer than");
    issuer.publish_text(&format!("{{\"keys\": [{}]}}", vec!["{}"; 10_000].join(",")));
    refused("more than 64 keys");
    issuer.publish_text("{\"keys\": []}");
    refused("no key for RS256 or ES256");
    issuer.publish(&[&key]);
    issuer.claim_to_be("https://other.example.org");
    refused("is the discovery document of 'https://other.example.org'");
    issuer.claim_to_be(issuer.url());
    let distrusted = IssuerConfig { authorities: None, ..config(&issuer) };
    let error = setup(&distrusted, TIMES).check(&token).unwrap_err().to_string();
    assert!(error.contains("cannot be fetched"), "{error}");
    let plain = IssuerConfig { url: "http://issuer.example.org".to_owned(), ..config(&issuer) };
    assert!(plain.check().unwrap_err().to_string().contains("https only"));
}

#[test]
fn unusable_authorities_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("empty.pem"), "none").unwrap();
    let issuer = TestIssuer::new(&[&TestKey::es256("e1")]);
    let runtime = Builder::new_current_thread().build().unwrap();
    for (file, words) in [("empty.pem", "holds no certificate"), ("missing.pem", "no such file")] {
        let authorities = Some(directory.path().join(file));
        let configs = [IssuerConfig { authorities, ..config(&issuer) }];
        let none = IssuerRegistry::default();
        let opened = IssuerRegistry::open(&configs, runtime.handle(), TIMES, &none);
        let error = opened.unwrap_err().to_string();
        assert!(error.starts_with("issuer cms: ") && error.contains(words), "{error}");
    }
}

#[test]
fn file_replaces_the_issuer() {
    let (old, new) = (TestKey::es256("e1"), TestKey::es256("e2"));
    let issuer = TestIssuer::new(&[&old]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jwks.json");
    std::fs::write(&file, key_set(&[&old])).unwrap();
    let offline = IssuerConfig { jwks_file: Some(file.clone()), ..config(&issuer) };
    let site = setup(&offline, TIMES);
    let token = |key: &TestKey| key.token(&wlcg(issuer.url(), "storage.read:/"));
    assert!(site.check(&token(&old)).is_ok());
    std::fs::write(&file, key_set(&[&new, &old])).unwrap();
    assert!(site.check(&token(&new)).is_ok());
    std::fs::write(&file, "damaged").unwrap();
    assert!(site.check(&token(&new)).is_ok(), "the keys that were read before");
    assert_eq!(issuer.fetches(), (0, 0));
    let none = IssuerRegistry::default();
    let configs = [offline];
    let opened = IssuerRegistry::open(&configs, site.runtime.handle(), TIMES, &none);
    assert!(opened.unwrap_err().to_string().contains("jwks.json: the key set is no JSON object"));
}
