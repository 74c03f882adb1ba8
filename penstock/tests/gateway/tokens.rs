//! Tokens of an issuer: scopes by method and path, principals, expiry, and the clients of other projects.

use std::fs;
use std::io::{BufReader, Write};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::Duration;

use penstock_testkit::raw::read_response;
use serde_json::{Value, json};

use crate::common::{self, seeded, wait_until, write_file};
use crate::issuer::{AUDIENCE, TestIssuer, TestKey, now_s, with, wlcg};
use crate::site::{HostCertificate, Site, TestRequest, TestResponse, client_with, missing_program};

/// A site whose export `/store/data` is the root of an issuer's paths.
pub(crate) struct TokenSite {
    pub(crate) site: Site,
    pub(crate) issuer: TestIssuer,
    pub(crate) key: TestKey,
}

pub(crate) fn issuer_table(issuer: &TestIssuer, more: &str) -> String {
    format!(
        "[[issuer]]\nname = \"cms\"\nurl = \"{}\"\naudience = \"{AUDIENCE}\"\nbase = \"/store/data\"\n\
         authorities = {:?}\n{more}\n",
        issuer.url(),
        issuer.authority()
    )
}

impl TokenSite {
    fn new(who: &str) -> Self {
        Self::with(who, "", "", "")
    }

    fn with(who: &str, gateway: &str, keys: &str, tables: &str) -> Self {
        let key = TestKey::es256("e1");
        let issuer = TestIssuer::new(&[&key]);
        let tables = format!("{}{tables}", issuer_table(&issuer, keys));
        Self { site: Site::admitting(who, gateway, &tables), issuer, key }
    }

    fn token(&self, scope: &str) -> String {
        self.key.token(&wlcg(self.issuer.url(), scope))
    }

    fn token_with(&self, changes: &Value) -> String {
        self.key.token(&with(wlcg(self.issuer.url(), "storage.read:/"), changes))
    }

    fn ask(&self, token: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> TestResponse {
        let body: &[u8] = if method == "PUT" { b"new" } else { b"" };
        let credentials = format!("Bearer {token}");
        self.site.ask_as(&credentials, method, path, headers, body)
    }

    fn status(&self, token: &str, method: &str, path: &str) -> u16 {
        self.ask(token, method, path, &[]).status
    }
}

#[test]
fn scopes_decide_about_methods() {
    let site = TokenSite::new("\"issuer:cms\"");
    let host = format!("http://{}/store/data", site.site.authority());
    let (new, there) = (format!("{host}/n"), format!("{host}/there"));
    // Expected statuses: GET, PROPFIND of depth 0, HEAD, OPTIONS, PUT new, PUT there, MKCOL, COPY to new, COPY over, MOVE to new,
    // MOVE over, DELETE.
    for (scope, expected) in [
        ("openid", [403, 403, 403, 200, 403, 403, 403, 403, 403, 403, 403, 403]),
        ("storage.read:/", [200, 207, 200, 200, 403, 403, 403, 403, 403, 403, 403, 403]),
        ("storage.stage:/", [200, 207, 200, 200, 403, 403, 403, 403, 403, 403, 403, 403]),
        ("storage.create:/", [403, 207, 200, 200, 201, 403, 201, 403, 403, 403, 403, 403]),
        ("storage.modify:/", [403, 207, 200, 200, 201, 204, 201, 403, 403, 201, 204, 204]),
        (
            "storage.read:/ storage.create:/",
            [200, 207, 200, 200, 201, 403, 201, 201, 403, 403, 403, 403],
        ),
        (
            "storage.read:/ storage.modify:/",
            [200, 207, 200, 200, 201, 204, 201, 201, 204, 201, 204, 204],
        ),
    ] {
        let token = site.token(scope);
        let asked = [
            ("GET", "f", ""),
            ("PROPFIND", "f", ""),
            ("HEAD", "f", ""),
            ("OPTIONS", "f", ""),
            ("PUT", "n", ""),
            ("PUT", "f", ""),
            ("MKCOL", "n", ""),
            ("COPY", "f", &new),
            ("COPY", "f", &there),
            ("MOVE", "f", &new),
            ("MOVE", "f", &there),
            ("DELETE", "f", ""),
        ];
        let statuses = asked.map(|(method, name, destination)| {
            for old in site.site.names() {
                let old = site.site.data.join(old);
                fs::remove_file(&old).or_else(|_| fs::remove_dir(&old)).unwrap();
            }
            fs::write(site.site.data.join("f"), b"content").unwrap();
            fs::write(site.site.data.join("there"), b"other").unwrap();
            let headers = [("Depth", "0"), ("Destination", destination)];
            let headers = if destination.is_empty() { &headers[..1] } else { &headers };
            let answer = site.ask(&token, method, &format!("/store/data/{name}"), headers);
            let there = fs::read(site.site.data.join("there")).unwrap();
            assert!(answer.status < 300 || there == b"other", "{scope} {method}: replaced");
            answer.status
        });
        assert_eq!(statuses, expected, "{scope}");
    }
}

#[test]
fn listing_needs_read_scope() {
    let site = TokenSite::new("\"issuer:cms\"");
    for (scope, expected) in
        [("storage.create:/", 403), ("storage.modify:/", 403), ("storage.read:/", 207)]
    {
        let token = site.token(scope);
        let listed = site.ask(&token, "PROPFIND", "/store/data", &[("Depth", "1")]);
        assert_eq!(listed.status, expected, "{scope}");
        assert_eq!(site.status(&token, "GET", "/store/data") == 200, expected == 207, "{scope}");
    }
}

#[test]
fn third_party_copies_need_scopes() {
    let certificate = HostCertificate::new();
    let anywhere = "[third_party]\nto = \"any\"\n";
    let site = TokenSite::with("\"issuer:cms\", \"alice\"", &certificate.config(), "", anywhere);
    fs::write(site.site.data.join("f"), b"content").unwrap();
    let url = |name: &str| format!("{}store/data/{name}", site.site.url("https"));
    let read = format!("Bearer {}", site.token("storage.read:/"));
    for (scope, header, other, name, expected) in [
        ("storage.read:/", "Source", "f", "n1", 403),
        ("storage.create:/", "Source", "f", "n2", 202),
        ("storage.create:/", "Source", "f", "f", 403),
        ("storage.modify:/", "Source", "f", "n2", 202),
        ("storage.create:/", "Destination", "n3", "f", 403),
        ("storage.read:/", "Destination", "n3", "f", 202),
    ] {
        let there = match header {
            "Source" => read.clone(),
            _ => format!("Bearer {}", site.token("storage.modify:/")),
        };
        let other = url(other);
        let headers = [(header, other.as_str()), ("TransferHeaderAuthorization", &there)];
        let path = format!("/store/data/{name}");
        let answer = site.ask(&site.token(scope), "COPY", &path, &headers);
        assert_eq!(answer.status, expected, "{scope} {header} {name}: {}", answer.text());
        let is_done = answer.text().ends_with("success: Created\n");
        assert_eq!(is_done, expected == 202, "{}", answer.text());
    }
}

#[test]
fn scopes_confine_paths() {
    let site = TokenSite::new("\"issuer:cms\"");
    let data = &site.site.data;
    fs::create_dir_all(data.join("da/sub")).unwrap();
    fs::create_dir(data.join("data")).unwrap();
    for name in ["da/f", "da/a b", "data/f", "secret"] {
        fs::write(data.join(name), name).unwrap();
    }
    symlink("../secret", data.join("da/link")).unwrap();
    symlink("f", data.join("da/inside")).unwrap();
    symlink("secret", data.join("alias")).unwrap();
    symlink("../data", data.join("da/away")).unwrap();
    let token = site.token("storage.read:/da storage.read:/alias storage.create:/new");
    for (path, status) in [
        ("/store/data/da/f", 200),
        ("/store//data/./da/f", 200),
        ("/store/data/da/a%20b", 200),
        ("/store/data/da/inside", 200),
        ("/store/data/data/f", 403),
        ("/store/data/secret", 403),
        ("/store/data/alias", 403),
        ("/store/data/da/../secret", 400),
        ("/store/data/da/%2e%2e/secret", 400),
        ("/store/data/da%2f..%2fsecret", 400),
        ("/store/data/da/%252e%252e/secret", 404),
        ("/da/f", 404),
        ("/other", 404),
    ] {
        let answer = site.ask(&token, "GET", path, &[]);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
    }
    let link = site.ask(&token, "GET", "/store/data/da/link", &[]);
    assert!(link.status >= 400 && !link.text().contains("secret\""), "{}", link.text());
    // A scope whose path goes through a link, as the bearer of a wider one may make it.
    for scope in ["storage.read:/da/away", "storage.read:/da/away/f"] {
        let answer = site.ask(&site.token(scope), "GET", "/store/data/da/away/f", &[]);
        assert_eq!(answer.status, 403, "{scope}: {}", answer.text());
    }
    let listed = |path| site.ask(&token, "PROPFIND", path, &[("Depth", "1")]);
    assert!(listed("/").text().contains("<D:href>/store</D:href>"));
    assert_eq!(listed("/store/data").status, 403);
    assert_eq!(listed("/store/data/da").status, 207);
    // Missing directories are conflicts, as for any client.
    assert_eq!(site.status(&token, "PUT", "/store/data/new/x/f"), 409);
    assert_eq!(site.status(&token, "MKCOL", "/store/data/new"), 201);
    assert_eq!(site.status(&token, "PUT", "/store/data/new/f"), 201);
    for scope in ["storage.read:/da/../secret", "storage.read:/%2e%2e/", "storage.read"] {
        let answer = site.ask(&site.token(scope), "GET", "/store/data/da/f", &[]);
        assert!(answer.status == 401 && answer.text().contains("'scope'"), "{}", answer.text());
    }
}

#[test]
fn exports_admit_groups_and_subjects() {
    for (who, own, other) in [
        ("issuer:cms", json!({}), None),
        (
            "group:cms:/cms/prod",
            json!({"wlcg.groups": ["/cms", "/cms/prod"]}),
            Some(json!({"wlcg.groups": ["/cms"]})),
        ),
        ("subject:cms:user-1", json!({}), Some(json!({"sub": "user-2"}))),
    ] {
        let site = TokenSite::new(&format!("\"{who}\""));
        fs::write(site.site.data.join("f"), b"content").unwrap();
        assert_eq!(site.status(&site.token_with(&own), "GET", "/store/data/f"), 200, "{who}");
        if let Some(other) = other {
            let token = site.token_with(&other);
            assert_eq!(site.status(&token, "GET", "/store/data/f"), 404, "{who}");
        }
    }
    let site = TokenSite::with(
        "\"*\"",
        "",
        "",
        "[[export]]\nname = \"/store/data/x\"\npath = \"/usr\"\nwho = [\"issuer:cms\"]\n",
    );
    fs::write(site.site.data.join("f"), b"content").unwrap();
    assert_eq!(site.status(&site.token("storage.read:/"), "GET", "/store/data/f"), 404, "*");
}

#[test]
fn rejected_token_gets_the_reason() {
    let site = TokenSite::new("\"issuer:cms\"");
    fs::write(site.site.data.join("f"), b"content").unwrap();
    let forged = TestKey::es256("e1").token(&wlcg(site.issuer.url(), "storage.read:/"));
    for (token, words) in [
        (site.token_with(&json!({"exp": now_s() - 100})), "'exp' is 10"),
        (site.token_with(&json!({"aud": "https://x.example.org"})), "'aud' is"),
        (site.token_with(&json!({"iss": "https://x.example.org"})), "'iss' is"),
        (site.token_with(&json!({"wlcg.ver": null})), "'wlcg.ver' and 'ver' are missing"),
        (forged, "the signature is not the issuer's"),
        (format!("{}x", site.token("storage.read:/")), "not the issuer's"),
        ("eyJ.eyJ.x".to_owned(), "header cannot be decoded"),
    ] {
        let answer = site.ask(&token, "GET", "/store/data/f", &[]);
        assert_eq!(answer.status, 401, "{}", answer.text());
        assert!(answer.text().contains(words), "{words}: {}", answer.text());
        assert!(answer.header("www-authenticate").unwrap().starts_with("Bearer"));
    }
    let key = TestKey::es256("e1");
    let down = TestIssuer::new(&[&key]);
    down.set_down(true);
    let site = Site::admitting("\"issuer:cms\"", "", &issuer_table(&down, ""));
    let token = format!("Bearer {}", key.token(&wlcg(down.url(), "storage.read:/")));
    let answer = site.ask_as(&token, "GET", "/store/data/f", &[], b"");
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.text().contains("keys of its issuer cannot be fetched"), "{}", answer.text());
}

#[test]
fn removed_issuer_ends_its_tokens() {
    let site = TokenSite::new("\"issuer:cms\", \"alice\"");
    fs::write(site.site.data.join("f"), b"content").unwrap();
    let token = site.token("storage.read:/");
    let kind = [("Content-Type", "application/macaroon-request")];
    let own = format!("Bearer {token}");
    let derived = site.site.ask_as(&own, "POST", "/store/data", &kind, b"{}");
    let derived: Value = serde_json::from_slice(&derived.body).unwrap();
    let derived = derived["macaroon"].as_str().unwrap();
    for token in [&token, derived] {
        assert_eq!(site.status(token, "GET", "/store/data/f"), 200);
    }
    let config = site.site.env.path("penstock.toml");
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replace(&issuer_table(&site.issuer, ""), "").replace("\"issuer:cms\", ", "");
    fs::write(&config, text).unwrap();
    let agent = i32::try_from(site.site.agent.child.id()).unwrap();
    let agent = rustix::process::Pid::from_raw(agent).unwrap();
    rustix::process::kill_process(agent, rustix::process::Signal::HUP).unwrap();
    wait_until("the agent reads its configuration", Duration::from_secs(20), || {
        (site.status(&token, "GET", "/store/data/f") == 401).then_some(())
    });
    assert_eq!(site.status(derived, "GET", "/store/data/f"), 401);
    assert_eq!(site.site.ask("GET", "/store/data/f", &[], b"").status, 200, "others go on");
}

#[test]
fn upload_outlives_its_token() {
    let site = TokenSite::new("\"issuer:cms\"");
    let scope = "storage.read:/ storage.modify:/";
    // Clocks may differ by a minute: the token is valid for about five seconds more.
    let token = site.token_with(&json!({"scope": scope, "exp": now_s() - 55}));
    fs::write(site.site.data.join("g"), b"content").unwrap();
    assert_eq!(site.status(&token, "GET", "/store/data/g"), 200);
    let mut stream = site.site.connect();
    let head = format!(
        "PUT /store/data/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 8\r\n\r\n"
    );
    stream.write_all(format!("{head}half").as_bytes()).unwrap();
    wait_until("the token expires", Duration::from_secs(20), || {
        (site.status(&token, "GET", "/store/data/g") == 401).then_some(())
    });
    stream.write_all(b"half").unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    assert_eq!(read_response(&mut reader).status, 201);
    assert_eq!(fs::read(site.site.data.join("f")).unwrap(), b"halfhalf");
    stream.write_all(format!("{head}half").as_bytes()).unwrap();
    assert_eq!(read_response(&mut reader).status, 401, "the same connection");
}

#[test]
fn cp_takes_tokens_of_issuers() {
    let site = TokenSite::new("\"issuer:cms\"");
    let agent = &site.site.agent;
    let source = site.site.env.path("source.bin");
    write_file(&mut seeded(1721), &source, 300_000);
    let login = |name: &str, token: &str| {
        let state = site.site.env.path(name);
        let mut command = common::penstock(&state);
        let arguments = ["login", &agent.listen, "--token", token, "--fingerprint"];
        let output = command.args(arguments).arg(&agent.fingerprint).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        state
    };
    let writer = login("writer", &site.token("storage.modify:/in"));
    let reader = login("reader", &site.token("storage.read:/in"));
    let cp = |state: &std::path::Path, from: &str, to: &str| {
        common::penstock(state).args(["cp", "--json", from, to]).output().unwrap()
    };
    let url = |name: &str| format!("penstock://{}/store/data/{name}", agent.listen);
    fs::create_dir(site.site.data.join("in")).unwrap();
    let (file, copy) = (source.to_str().unwrap(), site.site.env.path("copy.bin"));
    let refused = cp(&reader, file, &url("in/f"));
    assert_eq!(refused.status.code(), Some(5), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("storage.modify"), "{refused:?}");
    let sent = cp(&writer, file, &url("in/f"));
    assert!(sent.status.success(), "{sent:?}");
    assert!(!cp(&writer, file, &url("out")).status.success(), "outside of the scope");
    assert!(!cp(&writer, &url("in/f"), copy.to_str().unwrap()).status.success());
    let got = cp(&reader, &url("in/f"), copy.to_str().unwrap());
    assert!(got.status.success(), "{got:?}");
    assert!(fs::read(&copy).unwrap() == fs::read(&source).unwrap());
    let transfers = site.site.transfers();
    assert!(transfers.iter().any(|one| one["caller"] == "issuer:cms:user-1"), "{transfers:?}");
}

#[test]
fn bearer_comes_from_the_environment() {
    let site = TokenSite::new("\"issuer:cms\"");
    fs::write(site.site.data.join("f"), b"content").unwrap();
    let agent = &site.site.agent;
    let state = site.site.env.path("client");
    let runtime = site.site.env.path("runtime");
    fs::create_dir(&runtime).unwrap();
    let penstock = |variables: &[(&str, &str)], arguments: &[&str]| {
        let mut command = common::penstock(&state);
        command.env_remove("BEARER_TOKEN_FILE").env_remove("BEARER_TOKEN").args(arguments);
        command.env("XDG_RUNTIME_DIR", &runtime).envs(variables.iter().copied());
        command.output().unwrap()
    };
    let good = site.token("storage.read:/");
    let expired = site.token_with(&json!({"exp": now_s() - 100}));
    let login = ["login", &agent.listen, "--bearer", "--fingerprint", &agent.fingerprint];
    let output = penstock(&[("BEARER_TOKEN", &good)], &login);
    assert!(output.status.success(), "{output:?}");
    assert!(!fs::read_to_string(state.join("hosts.toml")).unwrap().contains("eyJ"));
    let file = site.site.env.path("bearer");
    fs::write(&file, format!("{good}\n")).unwrap();
    let file = file.to_str().unwrap();
    let copy = site.site.env.path("copy");
    let url = format!("penstock://{}/store/data/f", agent.listen);
    let cp = |variables: &[(&str, &str)]| {
        let _ = fs::remove_file(&copy);
        penstock(variables, &["cp", "--json", &url, copy.to_str().unwrap()])
    };
    // BEARER_TOKEN comes before BEARER_TOKEN_FILE, which comes before the file of the user.
    let user = runtime.join(format!("bt_u{}", rustix::process::geteuid().as_raw()));
    fs::write(&user, &expired).unwrap();
    let output = cp(&[("BEARER_TOKEN_FILE", file)]);
    assert!(output.status.success(), "{output:?}");
    for refused in [cp(&[("BEARER_TOKEN", &expired), ("BEARER_TOKEN_FILE", file)]), cp(&[])] {
        assert_eq!(refused.status.code(), Some(5), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("'exp'"), "{refused:?}");
    }
    fs::write(&user, &good).unwrap();
    let output = cp(&[]);
    assert!(output.status.success() && fs::read(&copy).unwrap() == b"content", "{output:?}");
}

#[test]
fn expired_session_resumes_with_new_token() {
    let site = TokenSite::with("\"issuer:cms\"", "", "", "[limits]\nrate = \"40M\"\n");
    let agent = &site.site.agent;
    let source = site.site.env.path("source.bin");
    write_file(&mut seeded(1723), &source, 60 << 20);
    let state = site.site.env.path("client");
    let bearer = |exp: u64| site.token_with(&json!({"scope": "storage.modify:/", "exp": exp}));
    let run = |token: &str, arguments: &[&str]| {
        let mut command = common::penstock(&state);
        command.env("BEARER_TOKEN", token).args(arguments).output().unwrap()
    };
    let login = ["login", &agent.listen, "--bearer", "--fingerprint", &agent.fingerprint];
    assert!(run(&bearer(now_s() + 600), &login).status.success());
    let url = format!("penstock://{}/store/data/f", agent.listen);
    let cp = ["cp", "--json", "--give-up-after", "1s", source.to_str().unwrap(), &url];
    // Valid for five seconds with the tolerance of clocks; the copy takes twelve.
    let refused = run(&bearer(now_s() - 55), &cp);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(site.site.names().iter().all(|name| name != "f"), "not committed");
    let resumed = run(&bearer(now_s() + 600), &cp);
    assert!(resumed.status.success(), "{resumed:?}");
    let result: Value = serde_json::from_slice(&resumed.stdout).unwrap();
    assert!(result["resumed_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{result}");
    assert!(fs::read(site.site.data.join("f")).unwrap() == fs::read(&source).unwrap());
}

#[test]
fn api_is_read_where_permitted() {
    for (keys, expected) in [("", 403), ("reads_api = true", 200)] {
        let site = TokenSite::with("\"issuer:cms\"", "", keys, "");
        let token = site.token("storage.read:/");
        let ask = |method: &str, path: &str| {
            TestRequest::new(&site.site.agent.http, method, path).token(&token).send().status
        };
        assert_eq!(ask("GET", "/api/v1/agent"), expected, "{keys}");
        // Its own transfers, of which there are none.
        assert_eq!(ask("GET", "/api/v1/transfers"), 200, "{keys}");
        assert_eq!(ask("DELETE", "/api/v1/transfers/1"), 404, "{keys}");
    }
}

#[test]
fn clients_send_tokens_of_issuers() {
    let certificate = HostCertificate::new();
    let anywhere = "[third_party]\nto = \"any\"\n";
    let site = TokenSite::with("\"issuer:cms\"", &certificate.config(), "", anywhere);
    let token = site.token("storage.read:/ storage.modify:/");
    let source = site.site.env.path("upload.bin");
    write_file(&mut seeded(1722), &source, 300_000);
    let content = fs::read(&source).unwrap();
    let (file, copy) = (source.to_str().unwrap(), site.site.env.path("copy.bin"));
    let copy = copy.to_str().unwrap();
    let authority = certificate.path("ca.pem");
    let url = site.site.url("https").replace("127.0.0.1", "localhost");
    let url = |name: &str| format!("{url}store/data/{name}");
    let authorities = certificate.path("authorities");
    let directory = authorities.to_str().unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let variables = [("BEARER_TOKEN", token.as_str()), ("X509_CERT_DIR", directory)];
        let output = client_with(&site.site, &variables, program, arguments);
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    };
    if !missing_program("curl") {
        let header = format!("Authorization: Bearer {token}");
        let trust = ["--cacert", authority.to_str().unwrap(), "-sSf", "-H", &header];
        run("curl", &[&trust[..], &["-T", file, &url("curl")]].concat());
        run("curl", &[&trust[..], &["-o", copy, &url("curl")]].concat());
        assert!(fs::read(copy).unwrap() == content);
    }
    if missing_program("openssl") {
        return;
    }
    fs::create_dir(&authorities).unwrap();
    fs::copy(&authority, authorities.join("ca.pem")).unwrap();
    run("openssl", &["rehash", directory]);
    if !missing_program("davix-put") {
        let header = format!("Authorization: Bearer {token}");
        let trust = ["--capath", directory, "-H", &header];
        run("davix-put", &[&trust[..], &[file, &url("davix")]].concat());
        run("davix-get", &[&trust[..], &[&url("davix"), copy]].concat());
        assert!(fs::read(copy).unwrap() == content);
    }
    if !missing_program("gfal-copy") {
        run("gfal-copy", &["-f", "-K", "ADLER32", &format!("file://{file}"), &url("gfal")]);
        run("gfal-copy", &["-f", "-p", "-K", "ADLER32", &url("gfal"), &url("sub/third-party")]);
        assert!(fs::read(site.site.data.join("sub/third-party")).unwrap() == content);
        let create = site.token("storage.create:/");
        let variables = [("BEARER_TOKEN", create.as_str()), ("X509_CERT_DIR", directory)];
        let ends = [format!("file://{file}"), url("created")];
        let ends = ends.each_ref().map(String::as_str);
        let output = client_with(&site.site, &variables, "gfal-copy", &ends);
        assert!(output.status.success(), "{output:?}");
        assert!(fs::read(site.site.data.join("created")).unwrap() == content);
    }
}

#[test]
fn accepted_tokens_agree_with_scitokens() {
    if missing_program("scitokens-verify") || missing_program("unshare") {
        return;
    }
    let site = TokenSite::new("\"issuer:cms\"");
    fs::write(site.site.data.join("f"), b"content").unwrap();
    let bundle = "/etc/ssl/certs/ca-certificates.crt";
    let verify = |token: &str| {
        // Its HTTP client knows the authorities of the system only.
        let script = format!("mount --bind \"$1\" {bundle} && exec scitokens-verify \"$2\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user", "sh", "-c", &script, "sh"]);
        command.arg(site.issuer.authority()).arg(token);
        command.env("XDG_CACHE_HOME", site.site.env.path("cache")).stdin(Stdio::null());
        let output = command.output().unwrap();
        (output.status.success(), format!("{output:?}"))
    };
    if !verify(&site.token("storage.read:/")).0 {
        let found = verify(&site.token("storage.read:/")).1;
        penstock_testkit::skip(
            penstock_testkit::Requirement::Program,
            &format!("scitokens-verify that can use an authority of the test: {found}"),
        );
        return;
    }
    for (changes, agrees) in [
        (json!({}), true),
        (json!({"aud": [AUDIENCE, "https://other.example.org"]}), true),
        (json!({"wlcg.ver": null, "ver": "scitoken:2.0", "aud": "ANY", "scope": "read:/"}), true),
        (json!({"exp": null}), true),
        (json!({"exp": now_s() - 100}), true),
        (json!({"nbf": now_s() + 300}), true),
        (json!({"aud": null}), true),
        (json!({"wlcg.ver": "2.0"}), true),
        // Stricter than scitokens-cpp.
        (json!({"wlcg.ver": null}), false),
        (json!({"scope": "storage.read"}), false),
    ] {
        let token = site.token_with(&changes);
        let status = site.status(&token, "GET", "/store/data/f");
        let (theirs, found) = verify(&token);
        assert_eq!((status == 200) == theirs, agrees, "{changes}: {status}, {found}");
    }
}

#[test]
fn clocks_may_differ_by_a_minute() {
    let site = TokenSite::new("\"issuer:cms\"");
    fs::write(site.site.data.join("f"), b"content").unwrap();
    for (changes, status) in [
        (json!({"nbf": now_s() + 30, "iat": now_s() + 30}), 200),
        (json!({"exp": now_s() - 30}), 200),
        (json!({"nbf": now_s() + 300}), 401),
        (json!({"exp": now_s() - 90}), 401),
    ] {
        let token = site.token_with(&changes);
        assert_eq!(site.status(&token, "GET", "/store/data/f"), status, "{changes}");
    }
}
