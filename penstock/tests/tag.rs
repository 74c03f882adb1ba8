//! `penstock tag` by its command line: scitags in all forms, and their registry.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Agent, CommandOutcome, TestEnv, penstock, run, wait_until};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

const OURS: &str = r#"{"version": 1, "modified": "2026-01-02T03:04:05.000000+00:00", "experiments":
    [{"expName": "ours", "expId": 77, "activities": [{"activityName": "Bulk Load", "activityId": 3}]}]}"#;

const OLD: &str =
    r#"{"version": 1, "experiments": [{"expName": "old", "expId": 1, "activities": []}]}"#;

fn tag(state: &Path, arguments: &[&str]) -> CommandOutcome {
    run(penstock(state).arg("tag").args(arguments))
}

/// Standard output of a command that must succeed.
fn text(state: &Path, arguments: &[&str]) -> String {
    let output = penstock(state).arg("tag").args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Asserts a failure with this exit code and one line that contains `words`.
#[track_caller]
fn fails(done: &CommandOutcome, code: i32, words: &str) {
    assert_eq!(done.code, code, "{done:?}");
    assert_eq!(done.lines().len(), 1, "{done:?}");
    assert!(
        done.error.starts_with("penstock: ") && done.error.contains(words),
        "{words}: {done:?}"
    );
}

#[test]
fn pair_converts_to_every_form() {
    let env = TestEnv::new();
    let done =
        tag(&env.state, &["encode", "CMS/Analysis Input", "--entropy", "31", "--json"]).good();
    assert_eq!(
        done.json,
        json!({
            "name": "cms/analysis-input", "owner_id": 3, "owner": "cms", "activity_id": 14,
            "activity": "Analysis Input", "registered": true, "scitag": 206,
            "fireflies_only": false,
            "flow_label": {
                "value": 983_355, "hex": "0xF013B", "entropy": 31, "without_entropy": 196_664,
                "without_entropy_hex": "0x30038", "mask": 261_884, "mask_hex": "0x3FEFC",
            },
            "option_bytes": "1E 03 00 03 0E 00", "url_parameter": "scitag.flow=206",
            "header": "SciTag: 206",
        })
    );
    let plain = text(&env.state, &["encode", "206"]);
    for words in
        ["0x30038  196664", "0x3FEFC", "1E 03 00 03 0E 00", "scitag.flow=206", "SciTag: 206"]
    {
        assert!(plain.contains(words), "{plain}");
    }
    // docs/scitags.md shows this output.
    let page = include_str!("../../docs/scitags.md");
    let example = text(&env.state, &["encode", "cms/analysis-input"]);
    assert!(page.contains(&example), "docs/scitags.md does not show:\n{example}");
    for (value, read_as) in [
        ("206", "scitag"),
        ("0xF013B", "flow_label"),
        ("label:196664", "flow_label"),
        ("196664", "flow_label"),
        ("1E 03 00 03 0E 00", "option"),
        ("06001e0300030e00", "option"),
        ("root://h//f?scitag.flow=206", "url"),
        ("scitag.flow=206", "url"),
        ("SciTag: 206", "header"),
    ] {
        let done = tag(&env.state, &["decode", value, "--json"]).good();
        assert_eq!(
            (&done.json["read_as"], &done.json["name"]),
            (&json!(read_as), &json!("cms/analysis-input")),
            "{value}"
        );
        assert_eq!(done.json["registered"], true);
    }
    let old = tag(&env.state, &["decode", "1F 04 0D 01 13 00", "--json"]).good().json;
    assert_eq!((&old["name"], &old["entropy"]), (&json!("atlas/data-consolidation"), &json!(31)));
    assert!(old["encoding"].as_str().unwrap().contains("first releases"), "{old}");
    // A lookup writes no state.
    assert!(!env.state.exists());
}

#[test]
fn large_owners_have_fireflies_only() {
    let env = TestEnv::new();
    let done = tag(&env.state, &["encode", "600/3", "--json"]).good();
    assert_eq!(done.json["fireflies_only"], true);
    assert!(done.json["flow_label"].is_null() && done.json["option_bytes"].is_null());
    assert!(text(&env.state, &["encode", "600/3"]).contains("fireflies only"));
}

#[test]
fn firefly_is_decoded_from_stdin() {
    let env = TestEnv::new();
    let datagram = r#"<134>1 - se1.example.org xrootd - firefly-json - {"version":1,"flow-lifecycle":{"state":"end","current-time":"2026-03-01T10:00:09.000001+00:00","start-time":"2026-03-01T10:00:00.000001+00:00","end-time":"2026-03-01T10:00:09.000001+00:00"},"usage":{"received":5,"sent":12},"netlink":{"rtt":12.500},"context":{"experiment-id":2,"activity-id":26,"application":"http-get"},"flow-id":{"afi":"ipv6","src-ip":"2001:db8::1","dst-ip":"2001:db8::2","protocol":"tcp","src-port":1094,"dst-port":40000}}"#;
    let decode = |more: &[&str]| {
        let mut child = penstock(&env.state)
            .args(["tag", "decode", "-"])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(datagram.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let json: Value = serde_json::from_str(&decode(&["--json"])).unwrap();
    assert_eq!(
        (&json["name"], &json["read_as"]),
        (&json!("atlas/data-challenge"), &json!("firefly"))
    );
    let firefly = &json["firefly"];
    assert_eq!(
        (&firefly["state"], &firefly["source"]),
        (&json!("end"), &json!("[2001:db8::1]:1094"))
    );
    assert_eq!((&firefly["sent_bytes"], &firefly["rtt_ms"]), (&json!(12), &json!(12.5)));
    assert_eq!((&firefly["logged"], &firefly["host"]), (&Value::Null, &json!("se1.example.org")));
    let plain = decode(&[]);
    for words in
        ["TCP from [2001:db8::1]:1094 to [2001:db8::2]:40000", "12 sent, 5 received", "12.5 ms"]
    {
        assert!(plain.contains(words), "{plain}");
    }
}

#[test]
fn mistakes_print_one_line_with_remedy() {
    let env = TestEnv::new();
    for (arguments, code, words) in [
        (&["encode", "cms/analyis-input"][..], 2, "did you mean 'analysis-input'?"),
        (&["encode", "zzz/x"], 2, "penstock tag registry lists all names"),
        (
            &["encode", "196664"],
            2,
            "the flow label of cms/analysis-input, whose scitag is 206: give 206",
        ),
        (&["encode", "cms"], 2, "write OWNER/ACTIVITY such as cms/default"),
        (&["encode", "cms/64"], 2, "activities are 1 to 63"),
        (&["encode", "206", "--entropy", "32"], 2, "0..=31"),
        (&["decode", "hello"], 2, "see penstock tag decode --help"),
        (&["decode", "cms/default"], 2, "penstock tag encode cms/default"),
        (&["decode", "0x100000"], 2, "labels have 20 bits"),
        (&["decode", "64"], 2, "scitags are 65 to 65535"),
        (&["decode", "0x00000"], 1, "carries no scitag"),
        (&["decode", "https://h/f"], 1, "it has no scitag.flow="),
        (&["decode", "https://h/f?scitag.flow=x"], 2, "give a decimal number"),
        (&["decode", "01 02 00 00"], 1, "hold no scitag"),
        (&["decode", "1E 08 00 00"], 1, "reaches beyond the end"),
        (&["decode", "<134>1 - {}"], 1, "'flow-lifecycle.state' is missing"),
        (&["registry", "update", "ftp://h/x"], 2, "write it like https://"),
        (&["registry", "update", "/nowhere/api.json"], 1, "no such file"),
    ] {
        fails(&tag(&env.state, arguments), code, words);
    }
}

#[test]
fn registry_file_replaces_builtin() {
    let env = TestEnv::new();
    let shown = tag(&env.state, &["registry", "show", "--json"]).good().json;
    assert_eq!((&shown["builtin"], &shown["checked"]), (&json!(true), &Value::Null));
    assert_eq!(shown["owners"].as_array().unwrap().len(), 14);
    assert!(text(&env.state, &["registry"]).contains("cms/analysis-input "));

    let file = env.path("api.json");
    std::fs::write(&file, OURS).unwrap();
    let update = ["registry", "update", file.to_str().unwrap(), "--json"];
    let done = tag(&env.state, &update).good().json;
    assert_eq!(
        (&done["changed"], &done["owners"], &done["activities"]),
        (&json!(true), &json!(1), &json!(1))
    );
    assert_eq!(done["modified"], "2026-01-02T03:04:05.000000+00:00");
    assert_eq!(tag(&env.state, &update).good().json["changed"], false);
    assert_eq!(
        tag(&env.state, &["encode", "ours/bulk-load", "--json"]).good().json["scitag"],
        77 << 6 | 3
    );
    fails(&tag(&env.state, &["encode", "cms/default"]), 2, "unknown owner 'cms'");
    let shown = tag(&env.state, &["registry", "--json"]).good().json;
    assert_eq!(
        (&shown["builtin"], &shown["source"]),
        (&json!(false), &json!(file.to_str().unwrap()))
    );

    // An invalid registry keeps the last one; a damaged copy is replaced by the built-in one.
    for bad in ["", "<html>", r#"{"version": 7, "experiments": []}"#] {
        std::fs::write(&file, bad).unwrap();
        fails(&tag(&env.state, &update), 1, "stays as it is");
    }
    tag(&env.state, &["encode", "ours/bulk-load"]).good();
    std::fs::write(env.state.join("scitags.json"), "{").unwrap();
    let done = tag(&env.state, &["encode", "cms/default", "--json"]).good();
    assert_eq!(done.json["scitag"], 193);
    assert!(done.error.contains("scitags.json: is damaged") && done.lines().len() == 1, "{done:?}");
}

/// An HTTP server that answers by request and counts the requests.
struct Site {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Site {
    fn start(
        tls: Option<Arc<ServerConfig>>,
        answer: impl Fn(&str) -> String + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let requests = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
                // Ignore errors of one client.
                let _ = match &tls {
                    None => serve(stream, &requests, &answer),
                    Some(config) => {
                        let connection = ServerConnection::new(Arc::clone(config)).unwrap();
                        serve(StreamOwned::new(connection, stream), &requests, &answer)
                    }
                };
            }
        });
        Self { address, seen }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

fn serve(
    mut stream: impl Read + Write,
    seen: &Mutex<Vec<String>>,
    answer: impl Fn(&str) -> String,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        request.push(byte[0]);
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    seen.lock().unwrap().push(request.clone());
    stream.write_all(answer(&request).as_bytes())?;
    stream.flush()
}

fn ok(headers: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn unchanged_registry_is_not_downloaded() {
    let env = TestEnv::new();
    let site = Site::start(None, |request| {
        if request.starts_with("GET /moved ") {
            "HTTP/1.1 301 Moved\r\nlocation: /api.json\r\ncontent-length: 0\r\n\r\n".to_owned()
        } else if request.to_lowercase().contains("if-none-match: \"one\"") {
            "HTTP/1.1 304 Not Modified\r\n\r\n".to_owned()
        } else {
            ok("etag: \"one\"\r\n", OURS)
        }
    });
    let update = ["registry", "update", &site.url("/moved"), "--json"];
    let first = tag(&env.state, &update).good().json;
    assert_eq!((&first["changed"], site.requests()), (&json!(true), 2));
    let second = tag(&env.state, &update).good().json;
    assert_eq!((&second["changed"], &second["owners"]), (&json!(false), &json!(1)));
    assert!(site.seen.lock().unwrap()[3].to_lowercase().contains("if-none-match: \"one\""));
    assert!(second["checked"].as_str() > first["checked"].as_str());
    // The ETag is valid for that URL only.
    let other =
        tag(&env.state, &["registry", "update", &site.url("/api.json"), "--json"]).good().json;
    assert_eq!((&other["changed"], site.requests()), (&json!(false), 5));
    assert!(!site.seen.lock().unwrap()[4].to_lowercase().contains("if-none-match"));
    assert_eq!(
        tag(&env.state, &["registry", "--json"]).good().json["source"],
        site.url("/api.json")
    );
}

#[test]
fn failed_update_keeps_last_registry() {
    let env = TestEnv::new();
    let file = env.path("api.json");
    std::fs::write(&file, OURS).unwrap();
    tag(&env.state, &["registry", "update", file.to_str().unwrap()]).good();
    let kept = std::fs::read(env.state.join("scitags.json")).unwrap();
    let site = Site::start(None, |request| match request.split(' ').nth(1).unwrap() {
        "/loop" => "HTTP/1.1 302 Found\r\nlocation: /loop\r\ncontent-length: 0\r\n\r\n".to_owned(),
        "/lost" => "HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
        "/404" => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
        "/page" => ok("content-type: text/html\r\n", "<html></html>"),
        "/twice" => ok(
            "",
            &OURS.replace("77", "1").replace("}]}]}", "}]}, {\"expName\": \"x\", \"expId\": 1}]}"),
        ),
        "/long" => "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n{".to_owned(),
        "/endless" => format!("HTTP/1.1 200 OK\r\n\r\n{}", " ".repeat(5 << 20)),
        "/cut" => "HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{".to_owned(),
        _ => "220 ready\r\n\r\n".to_owned(),
    });
    for (path, words) in [
        ("/loop", "more than 5 redirects"),
        ("/lost", "without saying where"),
        ("/404", "it answers 404 Not Found"),
        ("/page", "not the JSON of a scitags registry"),
        ("/twice", "experiment id 1 stands for 'ours' and for 'x'"),
        ("/long", "longer than 4194304 bytes"),
        ("/endless", "longer than 4194304 bytes"),
        ("/cut", "the registry stays as it is"),
        ("/smtp", "the registry stays as it is"),
    ] {
        fails(&tag(&env.state, &["registry", "update", &site.url(path)]), 1, words);
        assert_eq!(std::fs::read(env.state.join("scitags.json")).unwrap(), kept, "{path}");
    }
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    fails(
        &tag(&env.state, &["registry", "update", &format!("http://{free}/")]),
        1,
        "cannot connect",
    );
}

#[test]
fn https_trusts_given_authorities_only() {
    let env = TestEnv::new();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    let site = Site::start(Some(Arc::new(config)), |request| {
        if request.starts_with("GET /plain ") {
            "HTTP/1.1 302 Found\r\nlocation: http://localhost/\r\ncontent-length: 0\r\n\r\n"
                .to_owned()
        } else {
            ok("", OURS)
        }
    });
    let bundle = env.path("authorities.pem");
    let update = |host: &str, path: &str| -> Command {
        let mut command = penstock(&env.state);
        let url = format!("https://{host}:{}{path}", site.address.port());
        command.args(["tag", "registry", "update", &url, "--json"]).env("SSL_CERT_FILE", &bundle);
        command
    };
    fails(&run(update("localhost", "/")), 1, "authorities.pem: no such file");
    std::fs::write(&bundle, "nothing").unwrap();
    fails(&run(update("localhost", "/")), 1, "holds no certificate");
    let stranger = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(&bundle, stranger.cert.pem()).unwrap();
    fails(&run(update("localhost", "/")), 1, "SSL_CERT_FILE");
    std::fs::write(&bundle, made.cert.pem()).unwrap();
    fails(&run(update("127.0.0.1", "/")), 1, "SSL_CERT_FILE");
    fails(&run(update("localhost", "/plain")), 1, "which is not encrypted");
    assert_eq!(run(update("localhost", "/")).good().json["changed"], true);
}

#[test]
fn agent_renews_registry_without_waiting() {
    let env = TestEnv::new();
    let answers = Arc::new(Mutex::new(ok("", OURS)));
    let given = Arc::clone(&answers);
    let site = Site::start(None, move |_| given.lock().unwrap().clone());
    let config = env.path("penstock.toml");
    let agent = || {
        let root = env.root.to_str().unwrap().to_owned();
        let text = format!(
            "[agent]\nroot = \"{root}\"\n[scitags]\nregistry = \"{}\"\n",
            site.url("/api.json")
        );
        std::fs::write(&config, text).unwrap();
        let mut command = penstock(&env.state);
        command.args(["serve", "--listen", "127.0.0.1:0", "--http", "none", "--json", "--config"]);
        command.arg(&config);
        Agent::spawn(command)
    };
    let known =
        || tag(&env.state, &["registry", "--json"]).good().json["owners"][0]["owner"].clone();
    let first = agent();
    wait_until("the registry is renewed", Duration::from_secs(20), || {
        (known() == "ours").then_some(())
    });
    drop(first);

    // A site that accepts the request and never answers delays nothing.
    let asked = site.requests();
    let silent = answers.lock().unwrap();
    let second = agent();
    assert!(!second.listen.is_empty());
    wait_until("the site is asked", Duration::from_secs(20), || {
        (site.requests() > asked).then_some(())
    });
    assert_eq!(known(), "ours");
    drop(second);
    drop(silent);

    *answers.lock().unwrap() = ok("", OLD);
    let third = agent();
    wait_until("the registry is renewed again", Duration::from_secs(20), || {
        (known() == "old").then_some(())
    });
    drop(third);
}
