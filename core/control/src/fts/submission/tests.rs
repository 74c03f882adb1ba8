//! Bodies of clients, and faults in them.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn parse(job: &Value) -> Parsed<FtsSubmission> {
    FtsSubmission::parse(job.to_string().as_bytes())
}

fn one(params: Value) -> Value {
    let file = json!({"sources": ["https://a/f"], "destinations": ["davs://b/f"]});
    json!({"files": [file], "params": params})
}

#[test]
fn submission_of_cli_is_read() {
    let job = parse(&json!({
        "files": [{"sources": ["https://a/f"], "destinations": ["https://b/f"], "source_tokens": ["ss"],
            "destination_tokens": ["dd"], "checksum": "ADLER32:e5200734", "filesize": null, "activity": null,
            "scitag": 65, "metadata": null, "staging_metadata": null, "archive_metadata": null}],
        "params": {"verify_checksum": "b", "overwrite": true, "retry": 0, "bring_online": -1,
            "copy_pin_lifetime": -1, "archive_timeout": -1, "priority": null, "timeout": null, "job_metadata": null,
            "gridftp": null, "reuse": "N"}
    }));
    let job = job.unwrap();
    assert_eq!((job.kind, job.params.verify), (FtsJobKind::Independent, ChecksumMode::Both));
    assert_eq!((job.params.priority, job.params.overwrite, job.params.queue_s), (3, true, 0));
    let file = &job.transfers[0];
    assert_eq!((file.source_token.as_deref(), file.scitag), (Some("ss"), Some(65)));
}

#[test]
fn checksum_modes_have_defaults() {
    for (verify, with_sum, without) in [
        (json!(null), ChecksumMode::Target, ChecksumMode::None),
        (json!(false), ChecksumMode::Target, ChecksumMode::None),
        (json!(true), ChecksumMode::Both, ChecksumMode::Both),
        (json!("none"), ChecksumMode::None, ChecksumMode::None),
        (json!("s"), ChecksumMode::Source, ChecksumMode::Source),
    ] {
        let mut job = one(json!({"verify_checksum": verify}));
        assert_eq!(parse(&job).unwrap().params.verify, without, "{verify}");
        job["files"][0]["checksum"] = json!("ADLER32:1");
        assert_eq!(parse(&job).unwrap().params.verify, with_sum, "{verify}");
    }
}

#[test]
fn alternatives_and_hops_are_kinds() {
    let mut job = one(json!({}));
    job["files"][0]["sources"] = json!(["https://a/f", "https://c/f"]);
    assert_eq!(parse(&job).unwrap().kind, FtsJobKind::MultiReplica);
    let hop = json!({"sources": ["https://b/f"], "destinations": ["https://c/f"]});
    job["files"].as_array_mut().unwrap().push(hop);
    assert_eq!(parse(&job).unwrap_err().at, "files");
    job["files"][0]["sources"] = json!(["https://a/f"]);
    job["params"] = json!({"multihop": true, "max_time_in_queue": "2d"});
    let hops = parse(&job).unwrap();
    assert_eq!((hops.kind, hops.params.queue_s), (FtsJobKind::MultiHop, 172_800));
}

#[test]
fn faults_name_their_place() {
    for (pointer, value, at) in [
        ("/files/0/sources", json!(["gsiftp://a/f"]), "files[0].sources"),
        ("/files/0/sources", json!([]), "files[0].sources"),
        ("/files/0/sources", json!(["https://a/\r\nX: y"]), "files[0].sources"),
        ("/files/0/destinations", json!(["file:///etc/passwd"]), "files[0].destinations"),
        ("/files/0/checksum", json!("md5:zz!"), "files[0].checksum"),
        ("/files/0/checksum", json!("garbage"), "files[0].checksum"),
        ("/files/0/checksum", json!("adler32:123456789"), "files[0].checksum"),
        ("/files/0/filesize", json!(-1), "files[0].filesize"),
        ("/params", json!({"priority": 99}), "params.priority"),
        ("/params", json!({"priority": 0}), "params.priority"),
        ("/params", json!({"retry": -5}), "params.retry"),
        ("/params", json!({"retry": 101}), "params.retry"),
        ("/files/0/scitag", json!(1), "files[0].scitag"),
        ("/files/0/source_tokens", json!(["a"]), "files[0].source_tokens"),
        ("/params", json!({"verify_checksum": "x"}), "params.verify_checksum"),
        ("/params", json!({"bring_online": 60}), "params.bring_online"),
        ("/params", json!({"id_generator": "deterministic"}), "params.sid"),
        ("/params", json!({"max_time_in_queue": "1w"}), "params.max_time_in_queue"),
        ("/params", json!([]), "params"),
        ("/files", json!([]), "files"),
    ] {
        let mut job = one(json!({}));
        job["files"][0]["checksum"] = Value::Null;
        job["files"][0]["scitag"] = Value::Null;
        job["files"][0]["filesize"] = Value::Null;
        job["files"][0]["source_tokens"] = Value::Null;
        *job.pointer_mut(pointer).unwrap() = value;
        assert_eq!(parse(&job).unwrap_err().at, at, "{job}");
    }
}

proptest! {
    #[test]
    fn any_body_is_read_safely(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = FtsSubmission::parse(&body);
    }

    #[test]
    fn priority_stays_in_range(priority in any::<i64>()) {
        let job = parse(&one(json!({"priority": priority})));
        prop_assert_eq!(job.is_ok(), (1..=5).contains(&priority));
    }
}
