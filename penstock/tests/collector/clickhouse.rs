//! Minutes in a real ClickHouse server: crashes, refusals, and one exporter seen by two collectors.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::RunningCommand;
use crate::database::{Database, PASSWORD, server_missing};
use crate::persistence::{end, stored};
use crate::site::{
    CONFIG, Collector, Exporter, FRAME_BYTES, Mark, command, packet, second_ended, taken, test_dir,
};

fn config(name: &str, port: u16, more: &str) -> String {
    format!(
        "{CONFIG}\n[collector.clickhouse]\nurl = \"http://127.0.0.1:{port}/\"\nname = \"{name}\"\n\
         password_file = \"password\"\n{more}"
    )
}

fn dir_with_password(password: &str) -> tempfile::TempDir {
    let dir = test_dir();
    fs::write(dir.path().join("password"), format!("{password}\n")).unwrap();
    dir
}

/// Sends `count` samples of `cms` and as many unlabelled; each stands for 1,000 frames.
fn send(collector: &Collector, agent: u8, count: u32) {
    let socket = collector.socket("sflow");
    let mut exporter = Exporter::new(agent, 1000);
    for header in [packet(1, 2, Mark::Label(3, 14), 3001), packet(1, 2, Mark::None, 3001)] {
        for datagram in exporter.samples(&header, count) {
            socket.send(&datagram).unwrap();
        }
    }
    taken(collector, 2 * u64::from(count));
    second_ended(collector);
}

fn wait_for(collector: &Collector, good: impl Fn(&Value) -> bool) -> Value {
    collector.until("/api/v1/telemetry/status", |status| {
        let response = &status["clickhouse"];
        good(response).then(|| response.clone())
    })
}

fn batches(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir.join("state/clickhouse")).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Frames of `cms` summed over a table.
fn frames(database: &Database, table: &str, rest: &str) -> f64 {
    let query = format!(
        "SELECT sum(bytes) FROM penstock.{table} WHERE kind = 'group' AND owner = 'cms' {rest}"
    );
    database.query(&query).parse::<f64>().unwrap() / (1000.0 * f64::from(FRAME_BYTES))
}

#[test]
fn server_crash_stores_batches_exactly_once() {
    if server_missing() {
        return;
    }
    let (dir, data) = (dir_with_password(PASSWORD), test_dir());
    let mut database = Database::start(data.path());
    let config = config("one", database.port, "");
    let collector = Collector::start(dir.path(), &config);
    send(&collector, 1, 100);
    end(collector);
    assert_eq!((frames(&database, "minute", ""), frames(&database, "hour", "")), (100.0, 100.0));
    assert_eq!(batches(dir.path()), Vec::<PathBuf>::new());

    // The server crashes: batches wait in the spool, across a restart of the collector too.
    let collector = Collector::start(dir.path(), &config);
    wait_for(&collector, |response| response["newest_s"].is_i64());
    database.kill();
    send(&collector, 1, 50);
    end(collector);
    let waiting = batches(dir.path());
    assert!(!waiting.is_empty());
    let collector = Collector::start(dir.path(), &config);
    let response = wait_for(&collector, |response| response["trouble"].is_string());
    let line = response["trouble"].as_str().unwrap();
    assert!(line.contains("cannot connect") && line.contains("minutes wait in"), "{line}");
    assert!(response["batches_waiting"].as_u64() >= Some(waiting.len() as u64), "{response}");
    // The collector still answers for minutes that it stored itself.
    let path = "/api/v1/telemetry/series?by=owner&from=-3600&step=60";
    let answer =
        collector.until(path, |answer| (stored(answer, "cms") > 0.0).then(|| answer.clone()));
    assert_eq!(answer["store"], "sqlite");
    let copies: Vec<_> =
        waiting.iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    database.up();
    wait_for(&collector, |response| {
        response["batches_waiting"] == 0 && response["trouble"].is_null()
    });
    end(collector);
    assert_eq!((frames(&database, "minute", ""), frames(&database, "hour", "")), (150.0, 150.0));

    // As if the server's answer was lost: the batches are sent again, and stored once.
    copies.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    let collector = Collector::start(dir.path(), &config);
    wait_for(&collector, |response| response["batches"].as_u64() >= Some(copies.len() as u64));
    end(collector);
    assert_eq!((frames(&database, "minute", ""), frames(&database, "hour", "")), (150.0, 150.0));

    // As if the server crashed between a minute and its hour.
    let number = waiting[0].file_name().unwrap().to_str().unwrap().split('-').nth(1).unwrap();
    let number = i64::from_str_radix(number, 16).unwrap();
    let hours = "start, collector, kind, exporter, host, direction, label, owner, activity, input, output, vlan, \
        ip_version, source_site, destination_site, address, prefix, sent, source_as, destination_as, interface, \
        bytes, error_squared, seconds";
    database.query("TRUNCATE TABLE penstock.hour");
    database.query(&format!(
        "INSERT INTO penstock.hour SELECT toStartOfHour(start), {}, toUInt64(1) FROM penstock.minute WHERE batch != {number}",
        hours.trim_start_matches("start, ")
    ));
    assert!(frames(&database, "hour", "") < 150.0);
    copies.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    let collector = Collector::start(dir.path(), &config);
    wait_for(&collector, |response| response["batches"].as_u64() >= Some(copies.len() as u64));
    end(collector);
    assert_eq!((frames(&database, "minute", ""), frames(&database, "hour", "")), (150.0, 150.0));
}

#[test]
fn shared_database_counts_duplicate_exporter_once() {
    if server_missing() {
        return;
    }
    let data = test_dir();
    let database = Database::start(data.path());
    let envs = [dir_with_password(PASSWORD), dir_with_password(PASSWORD)];
    // Both receive 192.0.2.1, the second half of its samples; only the second receives 192.0.2.2.
    for (name, env, received) in
        [("one", &envs[0], &[(1, 200)][..]), ("two", &envs[1], &[(1, 100), (2, 300)])]
    {
        for (agent, count) in received {
            let collector = Collector::start(env.path(), &config(name, database.port, ""));
            send(&collector, *agent, *count);
            end(collector);
        }
    }
    assert_eq!(frames(&database, "minute", ""), 600.0);
    let reader = dir_with_password(PASSWORD);
    let collector =
        Collector::start(reader.path(), &config("three", database.port, "interval = \"1m\"\n"));
    wait_for(&collector, |response| response["newest_s"].is_i64());
    // A minute may have ended in between: the collector with most samples of it counts.
    let rows = database.query(
        "SELECT toUInt32(start), exporter, collector, sum(bytes) FROM penstock.minute WHERE kind = 'group'
         GROUP BY start, exporter, collector",
    );
    let (mut most, mut hours) = (HashMap::<_, f64>::new(), HashSet::new());
    for row in rows.lines() {
        let words: Vec<_> = row.split('\t').collect();
        let bytes = most.entry((words[0].to_owned(), words[1].to_owned())).or_default();
        *bytes = bytes.max(words[3].parse().unwrap());
        hours.insert(words[0].parse::<u64>().unwrap() / 3600);
    }
    let of = |exporter: &str| -> f64 {
        most.iter().filter(|(key, _)| key.1 == exporter).map(|(_, bytes)| bytes).sum()
    };
    let wanted = of("192.0.2.1") / of("192.0.2.2");
    assert!((0.66..1.01).contains(&wanted), "{rows}");
    for (query, resolution) in [
        ("from=-3600&step=60", "minute"),
        ("from=-86400&step=86400", "hour"),
        ("from=-2592000", "hour"),
    ] {
        for (what, keys, wanted) in [
            ("by=exporter&combine=sum", ["192.0.2.1", "192.0.2.2"], wanted),
            ("by=owner&combine=sum&vlan=3001", ["cms", "unlabelled"], 1.0),
            ("by=host&exporter=192.0.2.2", ["2001:db8:1::1"; 2], 1.0),
        ] {
            let path = format!("/api/v1/telemetry/series?{what}&{query}");
            let answer = collector.get(&path);
            assert_eq!(answer["store"], "clickhouse", "{path}");
            assert_eq!(answer["resolution"], resolution, "{path}");
            let [got, other] = keys.map(|key| stored(&answer, key));
            assert!(got > 0.0 && other > 0.0, "{path}: {answer}");
            // Points of different measured time have different rates.
            if resolution == "hour" && hours.len() == 1 {
                assert!(
                    (got / other / wanted - 1.0).abs() < 0.01,
                    "{path}: {got} by {other}, not {wanted}"
                );
            }
        }
    }
    end(collector);
}

#[test]
fn database_error_and_drops_are_reported() {
    if server_missing() {
        return;
    }
    let data = test_dir();
    let mut database = Database::start(data.path());
    let dir = dir_with_password("wrong");
    let collector =
        Collector::start(dir.path(), &config("one", database.port, "spool_bytes_max = \"1KiB\"\n"));
    let response = wait_for(&collector, |response| response["trouble"].is_string());
    let line = response["trouble"].as_str().unwrap();
    assert!(line.contains("user or password is refused: see user and password_file"), "{line}");
    assert!(!line.contains("wrong") && !line.contains('\n'), "{line}");
    // Without a database to read from the collector answers from its own memory.
    send(&collector, 1, 10);
    database.kill();
    end(collector);

    // The spool has room for one batch, or none: the last one stays, whatever its size.
    let collector =
        Collector::start(dir.path(), &config("one", database.port, "spool_bytes_max = \"1KiB\"\n"));
    send(&collector, 1, 10);
    end(collector);
    assert_eq!(batches(dir.path()).len(), 1);

    let line = config("one", database.port, "").lines().count() + 1;
    for (more, wanted) in [
        ("interval = \"1h\"\n", format!(":{line}: interval: at most 5m")),
        ("batch_rows = 0\n", format!(":{line}: batch_rows: 1 to 500000")),
        ("database = \"a b\"\n", format!(":{line}: database 'a b': write letters, digits and _")),
        (
            "spool = \"penstock.toml\"\n",
            "give another directory in [collector.clickhouse] spool".to_owned(),
        ),
        ("color = 1\n", format!(":{line}: unknown field `color`")),
    ] {
        let done =
            RunningCommand::start(&mut command(dir.path(), &config("one", database.port, more)))
                .wait();
        assert!(done.error.contains(&wanted), "{more}: {}", done.error);
        assert_eq!(done.error.lines().count(), 1, "{}", done.error);
    }
}
