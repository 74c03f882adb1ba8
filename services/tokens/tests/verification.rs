//! Signatures and claims of tokens.

#[path = "../../../penstock/tests/gateway/issuer.rs"]
mod issuer;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use issuer::{AUDIENCE, TestKey, key_set, now_s, with, wlcg};
use penstock_scopes::{PathAccess, ScopePath};
use penstock_tokens::TokenRejection;
use penstock_tokens::jwt::{JWT_BYTES_MAX, UnverifiedToken, VerifiedClaims, verify};
use penstock_tokens::keys::{KEYS_MAX, KeySet, KeySetError};
use proptest::prelude::*;
use serde_json::{Value, json};

const ISSUER: &str = "https://issuer.example.org/iam";

fn check(token: &str, keys: &[&TestKey]) -> Result<VerifiedClaims, TokenRejection> {
    let keys = KeySet::parse(key_set(keys).as_bytes()).unwrap();
    let unverified = UnverifiedToken::parse(token)?;
    let key = keys.find(unverified.key_id.as_deref(), unverified.algorithm)?;
    verify(token, key, ISSUER, &[AUDIENCE.to_owned()], now_s())
}

fn claims() -> Value {
    wlcg(ISSUER, "storage.read:/store openid")
}

#[test]
fn tokens_of_both_profiles_are_accepted() {
    let (ec, rsa) = (TestKey::es256("e1"), TestKey::rs256("r1"));
    let any = "https://wlcg.cern.ch/jwt/v1/any";
    for changes in [
        json!({}),
        json!({"aud": ["https://other.example.org", AUDIENCE]}),
        json!({"aud": any}),
        json!({"wlcg.ver": "1.2", "sub": null, "nbf": null, "iat": null}),
        json!({"wlcg.ver": null, "ver": "scitoken:2.0", "aud": "ANY", "scope": "read:/store"}),
        json!({"exp": now_s() - 30, "nbf": now_s() + 30}),
        json!({"exp": (now_s() + 9) as f64 + 0.5}),
    ] {
        for key in [&ec, &rsa] {
            let claims = with(claims(), &changes);
            let verified = check(&key.token(&claims), &[&ec, &rsa]).unwrap();
            let grant = &verified.paths[0];
            assert_eq!(grant.path, ScopePath::new(b"/store").unwrap(), "{changes}");
            assert!(grant.rights.allows(PathAccess::Read), "{changes}");
        }
    }
    let groups = with(claims(), &json!({"wlcg.groups": ["/cms", "/cms/production"]}));
    assert_eq!(check(&ec.token(&groups), &[&ec]).unwrap().groups, ["/cms", "/cms/production"]);
}

#[test]
fn rejection_names_the_claim() {
    let key = TestKey::es256("e1");
    let any = "https://wlcg.cern.ch/jwt/v1/any";
    for (changes, words) in [
        (json!({"exp": null}), "'exp' is missing"),
        (json!({"exp": now_s() - 61}), "'exp' is 61 s ago"),
        (json!({"exp": -5}), "'exp' has an invalid value"),
        (json!({"exp": 1e300}), "'exp' has an invalid value"),
        (json!({"nbf": now_s() + 300}), "'nbf' is "),
        (json!({"iat": now_s() + 300}), "'iat' is "),
        (json!({"aud": null}), "'aud' is missing"),
        (json!({"aud": "https://other.example.org"}), "'aud' is 'https://other.example.org'"),
        (json!({"aud": "ANY"}), "'aud' is 'ANY'"),
        (json!({"aud": []}), "'aud' is ''"),
        (json!({"wlcg.ver": null, "ver": "scitoken:2.0", "aud": any}), "'aud' is"),
        (json!({"wlcg.ver": "2.0"}), "'wlcg.ver' is '2.0'"),
        (json!({"wlcg.ver": "1."}), "'wlcg.ver' is '1.'"),
        (json!({"wlcg.ver": null}), "'wlcg.ver' and 'ver' are missing"),
        (json!({"wlcg.ver": null, "ver": "scitoken:1.0"}), "'ver' is 'scitoken:1.0'"),
        (json!({"iss": "https://issuer.example.org/iam/"}), "'iss' is"),
        (json!({"scope": "storage.read"}), "names no path"),
        (json!({"scope": "storage.read:/a/../b"}), "'..'"),
        (json!({"sub": ""}), "'sub' has an invalid value"),
        (json!({"sub": "a\nb"}), "'sub' has an invalid value"),
        (json!({"wlcg.groups": vec!["/g"; 129]}), "'wlcg.groups' has an invalid value"),
        (json!({"exp": "1"}), "'exp' has an invalid value"),
        (json!({"aud": 5}), "'aud' has an invalid value"),
        (json!({"iss": null}), "'iss' is missing"),
        (json!({"wlcg.groups": "/g"}), "'wlcg.groups' has an invalid value"),
        (json!({"scope": ["storage.read:/"]}), "'scope' has an invalid value"),
    ] {
        let error = check(&key.token(&with(claims(), &changes)), &[&key]).unwrap_err();
        assert!(error.to_string().contains(words), "{changes}: {error}");
    }
}

#[test]
fn other_algorithms_are_refused() {
    let (ec, rsa) = (TestKey::es256("e1"), TestKey::rs256("r1"));
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    for name in ["none", "None", "HS256", "HS512", "RS384", "PS256", "ES384", "EdDSA", ""] {
        let header = json!({"alg": name, "kid": "r1"});
        for token in
            [rsa.sign(&header, &claims()), format!("{}.{}.", part(&header), part(&claims()))]
        {
            let error = check(&token, &[&ec, &rsa]).unwrap_err();
            assert!(matches!(error, TokenRejection::Algorithm(_)), "{name}: {error}");
        }
    }
    // The public key as the secret of an HMAC (RS/HS confusion).
    let signed = format!("{}.{}", part(&json!({"alg": "HS256", "kid": "r1"})), part(&claims()));
    let modulus = rsa.jwk()["n"].as_str().unwrap().to_owned();
    let secret = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, modulus.as_bytes());
    let code = URL_SAFE_NO_PAD.encode(aws_lc_rs::hmac::sign(&secret, signed.as_bytes()));
    let error = check(&format!("{signed}.{code}"), &[&rsa]).unwrap_err();
    assert!(matches!(error, TokenRejection::Algorithm(_)), "{error}");
    // A key of the other type under the same algorithm, and a forged signature.
    let header = json!({"alg": "RS256", "kid": "e1"});
    assert_eq!(
        check(&rsa.sign(&header, &claims()), &[&ec, &rsa]),
        Err(TokenRejection::KeyType("RS256"))
    );
    let header = json!({"alg": "ES256", "kid": "e1"});
    let forged = TestKey::es256("e1").sign(&header, &claims());
    assert_eq!(check(&forged, &[&ec]), Err(TokenRejection::Signature));
    let header = json!({"alg": "ES256", "kid": "e1", "crit": ["b64"], "b64": false});
    assert_eq!(check(&ec.sign(&header, &claims()), &[&ec]), Err(TokenRejection::Critical));
    let header = json!({"alg": "ES256", "jwk": TestKey::es256("x").jwk(), "kid": "x"});
    assert_eq!(
        check(&ec.sign(&header, &claims()), &[&ec]),
        Err(TokenRejection::UnknownKey("x".to_owned()))
    );
}

#[test]
fn key_id_is_required_among_several() {
    let (ec, other) = (TestKey::es256("e1"), TestKey::es256("e2"));
    let bare = ec.sign(&json!({"alg": "ES256"}), &claims());
    assert!(check(&bare, &[&ec]).is_ok());
    assert_eq!(check(&bare, &[&ec, &other]), Err(TokenRejection::NoKeyId));
    assert_eq!(
        check(&ec.token(&claims()), &[&other]),
        Err(TokenRejection::UnknownKey("e1".to_owned()))
    );
}

#[test]
fn repeated_claims_are_refused() {
    let key = TestKey::es256("e1");
    let header = r#"{"alg":"ES256","kid":"e1"}"#;
    let text = claims().to_string();
    assert!(check(&key.sign_text(header, &text), &[&key]).is_ok());
    let twice = format!("{},\"scope\":\"storage.modify:/\"}}", text.trim_end_matches('}'));
    let refused = check(&key.sign_text(header, &twice), &[&key]);
    assert_eq!(refused, Err(TokenRejection::Malformed("claims")));
    let long = with(claims(), &json!({"scope": "x".repeat(JWT_BYTES_MAX)}));
    assert_eq!(check(&key.token(&long), &[&key]), Err(TokenRejection::Long));
}

#[test]
fn key_sets_are_bounded() {
    let ec = TestKey::es256("e1");
    let parse = |keys: Vec<Value>| KeySet::parse(json!({"keys": keys}).to_string().as_bytes());
    assert_eq!(parse(vec![ec.jwk(); KEYS_MAX]).unwrap().count(), KEYS_MAX);
    assert_eq!(parse(vec![ec.jwk(); KEYS_MAX + 1]).unwrap_err(), KeySetError::Count);
    let secret = json!({"kty": "oct", "kid": "h", "alg": "HS256", "k": "c2VjcmV0"});
    let weak =
        json!({"kty": "RSA", "kid": "w", "n": URL_SAFE_NO_PAD.encode([255; 128]), "e": "AQAB"});
    let huge =
        json!({"kty": "RSA", "kid": "w", "n": URL_SAFE_NO_PAD.encode([255; 2048]), "e": "AQAB"});
    let curve = with(ec.jwk(), &json!({"crv": "P-384"}));
    let cipher = with(ec.jwk(), &json!({"use": "enc"}));
    let other = with(ec.jwk(), &json!({"alg": "ES384"}));
    for key in [secret, weak, huge, curve, cipher, other, json!(1), json!({})] {
        assert_eq!(parse(vec![key.clone()]).unwrap_err(), KeySetError::Empty, "{key}");
        assert_eq!(parse(vec![key, ec.jwk()]).unwrap().count(), 1);
    }
    for text in ["", "[]", "{}", "{\"keys\": 1}"] {
        assert_eq!(KeySet::parse(text.as_bytes()).unwrap_err(), KeySetError::Malformed, "{text}");
    }
    assert_eq!(KeySet::parse(&[b' '; 200_000]).unwrap_err(), KeySetError::Long);
}

proptest! {
    #![proptest_config(penstock_testkit::properties())]

    #[test]
    fn parsers_never_panic(text in "\\PC*", bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = UnverifiedToken::parse(&text);
        let _ = KeySet::parse(&bytes);
        let part = URL_SAFE_NO_PAD.encode(&bytes);
        let _ = UnverifiedToken::parse(&format!("{part}.{part}.{part}"));
    }
}
