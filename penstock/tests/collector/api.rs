//! Figures of the HTTP API against known traffic, its errors and its access control.

use penstock_testkit::http::{EventFeed, FeedEvent, TestRequest};
use serde_json::Value;

use crate::common::RunningCommand;
use crate::site::{
    CONFIG, Collector, Exporter, FRAME_BYTES, Mark, command, packet, second_ended, taken, test_dir,
};

/// Bits of a series: rates times measured seconds.
fn bits(answer: &Value, key: &str) -> f64 {
    let step = answer["step_s"].as_f64().unwrap();
    let series = answer["series"].as_array().unwrap();
    let Some(line) = series.iter().find(|line| line["key"] == key) else { return 0.0 };
    line["bps"].as_array().unwrap().iter().filter_map(Value::as_f64).sum::<f64>() * step
}

/// True within rounding and the real length of seconds.
fn close(got: f64, wanted: f64) -> bool {
    (got / wanted - 1.0).abs() < 0.2
}

#[test]
fn series_group_samples_by_every_dimension() {
    let dir = test_dir();
    let collector = Collector::start(dir.path(), CONFIG);
    let socket = collector.socket("sflow");
    let mut exporter = Exporter::new(1, 1000);
    for (header, count) in [
        (packet(1, 2, Mark::Label(3, 14), 3001), 600),
        (packet(1, 2, Mark::None, 3001), 300),
        (packet(2, 1, Mark::Label(3, 14), 3002), 100),
    ] {
        for datagram in exporter.samples(&header, count) {
            socket.send(&datagram).unwrap();
        }
    }
    taken(&collector, 1000);
    second_ended(&collector);
    // Seconds are as long as the machine makes them, under load a few tenths; parts of the whole are exact.
    let answer = collector.get("/api/v1/telemetry/series?by=total&from=-30");
    let bytes = bits(&answer, "total") / 1000.0;
    let wanted = f64::from(FRAME_BYTES) * 1000.0 * 8.0;
    assert!((wanted / 20.0..wanted * 20.0).contains(&bytes), "{bytes}, not {wanted}");
    for (query, key, samples) in [
        ("by=owner", "cms", 600.0),
        ("by=owner", "unlabelled", 300.0),
        // The source is not a configured marking host.
        ("by=owner", "untrusted", 100.0),
        ("by=scitag", "206", 600.0),
        ("by=vlan", "3001", 900.0),
        ("by=vlan&owner=unlabelled", "3001", 300.0),
        ("by=site", "uvic", 900.0),
        ("by=site&direction=in", "uvic", 100.0),
        ("by=ip_version", "6", 1000.0),
        ("by=interface", "192.0.2.1:1", 1000.0),
        ("by=interface&direction=out", "192.0.2.1:2", 1000.0),
        ("by=exporter", "192.0.2.1", 1000.0),
        ("by=total&site=cern", "total", 100.0),
        ("by=host", "2001:db8:1::1", 900.0),
        ("by=prefix&direction=in", "2001:db8:2::/64", 900.0),
    ] {
        let answer = collector.get(&format!("/api/v1/telemetry/series?{query}&from=-30"));
        assert_eq!(
            (answer["unit"].as_str(), answer["resolution"].as_str()),
            (Some("bit/s"), Some("live"))
        );
        let got = bits(&answer, key);
        let parts = got / (samples * bytes);
        assert!((parts - 1.0).abs() < 0.001, "{query} {key}: {parts} of {samples} samples");
        assert_eq!(answer["total"]["from"], "samples");
    }
    // Largest first; the rest is summed as `other`.
    let answer = collector.get("/api/v1/telemetry/series?by=owner&from=-30&top=1");
    let keys: Vec<_> = answer["series"].as_array().unwrap().iter().map(|s| &s["key"]).collect();
    assert_eq!(keys, ["cms", "other"]);
    assert!((bits(&answer, "other") / (400.0 * bytes) - 1.0).abs() < 0.001);

    let labels = collector.get("/api/v1/telemetry/labels?from=-30");
    let share = |part: &str| labels[part]["share"].as_f64().unwrap();
    assert!((share("labelled") - 0.6).abs() < 1e-6 && (share("untrusted") - 0.1).abs() < 1e-6);
    // 1.96 √(0.6·0.4/1000)
    let error = labels["labelled"]["error_share"].as_f64().unwrap();
    assert!((error - 0.0304).abs() < 0.001, "{error}");

    let exporters = collector.get("/api/v1/telemetry/exporters");
    let first = &exporters["exporters"][0];
    assert_eq!((&first["name"], &first["datagrams_lost"]), (&"dtn1".into(), &0.into()));
    let talkers = collector.get("/api/v1/telemetry/talkers?n=1");
    assert_eq!(talkers["talkers"][0]["source"], "2001:db8:1::1");
    let (_, metrics) = collector.ask("/metrics");
    assert!(metrics.contains("penstock_collector_samples_total 1000"), "{metrics}");
}

#[test]
fn sampled_shares_scale_to_counter_totals() {
    let dir = test_dir();
    let collector = Collector::start(dir.path(), CONFIG);
    let socket = collector.socket("sflow");
    let mut exporter = Exporter::new(1, 1000);
    let header = packet(1, 2, Mark::Label(3, 14), 3001);
    socket.send(&exporter.counters(1_000, 1_000_000)).unwrap();
    // Counters report twice the sampled bytes, in intervals of about a second.
    let each = 100 * 1000 * u64::from(FRAME_BYTES);
    let mut round = 0;
    let counted = collector.until("/api/v1/telemetry/series?by=owner&from=-60&step=1", |answer| {
        round += 1;
        second_ended(&collector);
        for datagram in exporter.samples(&header, 100) {
            socket.send(&datagram).unwrap();
        }
        taken(&collector, 100 * u64::from(round));
        second_ended(&collector);
        let octets = 1_000_000 + u64::from(round) * 2 * each;
        socket.send(&exporter.counters(1_000 + round * 2_000, octets)).unwrap();
        (answer["total"]["from"] != "samples").then(|| answer.clone())
    });
    let total = &counted["total"];
    let at = |of: &Value, point: usize| of[point].as_f64().unwrap_or(0.0);
    let points = total["bps"].as_array().unwrap().len();
    let owner = &counted["series"][0]["bps"];
    let is_counted = |point: &usize| at(&total["counted_share"], *point) > 0.5;
    let point = (0..points).find(|point| is_counted(point) && at(owner, *point) > 0.0).unwrap();
    // A second within a counter interval has an error; the only owner has all traffic.
    assert!(at(&total["error_bps"], point) > 0.0, "{counted}");
    assert!((at(owner, point) / at(&total["bps"], point) - 1.0).abs() < 1e-6, "{counted}");
    // Whole intervals have twice the sampled bytes.
    let path = "/api/v1/telemetry/series?by=owner&from=-590&step=590";
    let (bits, sampled) = collector.until(path, |answer| {
        let bits: f64 = (0..answer["measured_s"].as_array().unwrap().len())
            .map(|point| at(&answer["total"]["bps"], point) * at(&answer["measured_s"], point))
            .sum();
        let sampled = f64::from(round) * each as f64 * 8.0;
        (bits > 1.9 * sampled).then_some((bits, sampled))
    });
    // Parts of a second before the first and after the last counters count as sampled.
    let uncounted = each as f64 * 8.0;
    assert!((bits - 2.0 * sampled).abs() < uncounted, "{bits} bits, {sampled} of them sampled");
    let interfaces = collector.get("/api/v1/telemetry/interfaces");
    let first = &interfaces["interfaces"][0];
    assert_eq!((&first["key"], &first["host"]), (&"192.0.2.1:1".into(), &"dtn1".into()));
    assert!(close(first["in"]["counted_bps"].as_f64().unwrap(), each as f64 * 8.0));
    assert!((first["in"]["calibration_last"].as_f64().unwrap() - 2.0).abs() < 0.3, "{first}");
    assert_eq!(first["sampling_rate"], 1000);
}

#[test]
fn live_event_is_computed_once() {
    const FOLLOWER_COUNT: usize = 8;
    const EVENT_COUNT: usize = 4;
    let dir = test_dir();
    let collector = Collector::start(dir.path(), CONFIG);
    let follow = |_| EventFeed::open(&collector.agent.http, "/api/v1/telemetry/live?by=owner", &[]);
    let mut followers: Vec<_> = (0..FOLLOWER_COUNT).map(follow).collect();
    for _ in 0..EVENT_COUNT {
        for follower in &mut followers {
            follower.next().unwrap();
        }
    }
    let (_, metrics) = collector.ask("/metrics");
    let line =
        metrics.lines().find(|line| line.starts_with("penstock_collector_live_events_total"));
    let computed: usize = line.unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    // A follower that connects at the end of a second may cause one more computation.
    assert!(
        (EVENT_COUNT..=FOLLOWER_COUNT * EVENT_COUNT / 2).contains(&computed),
        "{computed} were computed"
    );
}

#[test]
fn live_feed_resumes_after_last_event() {
    let dir = test_dir();
    let mut collector = Collector::start(dir.path(), CONFIG);
    let follow = |after: Option<&str>| {
        let resume = after.map(|id| ("last-event-id", id));
        let path = "/api/v1/telemetry/live?by=owner,vlan";
        EventFeed::open(&collector.agent.http, path, resume.as_slice())
    };
    let (mut one, mut two) = (follow(None), follow(None));
    let socket = collector.socket("sflow");
    for datagram in Exporter::new(1, 1000).samples(&packet(1, 2, Mark::Label(3, 14), 3001), 100) {
        socket.send(&datagram).unwrap();
    }
    let mut seen = None;
    while seen.is_none() {
        let FeedEvent { id, data: response, .. } = one.next().unwrap();
        assert_eq!(response["number"].to_string(), id);
        // On a busy machine a second may arrive as two events.
        if let Some(samples) = response["samples"].as_u64().filter(|samples| *samples > 0) {
            assert_eq!(response["by"]["owner"][0]["key"], "cms");
            assert_eq!(response["by"]["vlan"][0]["key"], "3001");
            let bps = response["by"]["owner"][0]["bps"].as_f64().unwrap();
            let bits = bps * response["length_s"].as_f64().unwrap();
            assert!(
                close(bits, samples as f64 * 1000.0 * f64::from(FRAME_BYTES) * 8.0),
                "{response}"
            );
            seen = Some(id);
        }
    }
    let seen: u64 = seen.unwrap().parse().unwrap();
    assert!(two.any(|event| event.data["samples"] != 0));
    // A reconnecting follower receives the missed events.
    let mut back = follow(Some(&(seen - 1).to_string()));
    assert_eq!(back.next().unwrap().id, seen.to_string());
    // The feed ends when the service ends.
    collector.agent.signal("TERM");
    one.for_each(drop);
    assert_eq!(collector.agent.wait(), 0);
}

#[test]
fn bad_queries_and_strangers_are_refused() {
    let dir = test_dir();
    let collector = Collector::start(dir.path(), CONFIG);
    for (path, words) in [
        ("series?by=colour", "write one of owner, activity"),
        ("series?colour=red", "'colour' is no parameter here"),
        ("series?by=owner&host=x", "series by owner cannot be filtered by host"),
        ("series?from=x", "give a whole number"),
        ("series?from=-10&to=-20", "from is not before to"),
        ("series?from=-600000&step=1", "give a longer step"),
        ("series?direction=up", "write in or out"),
        ("series?combine=mean", "write auto, max or sum"),
        ("series?from=-9&from=-8", "given twice"),
        ("talkers?n=-1", "give a whole number"),
        ("status?x=1", "'x' is no parameter here"),
        ("events?kind=alarm", "kind=alarm: write one of alert_firing, alert_resolved"),
        ("series?ip_version=5", "ip_version=5: write 4, 6, none or other"),
        ("series?by=host&host=dtn1", "host=dtn1: write the address of a host"),
        ("talkers?ip_version=v6", "ip_version=v6: write 4"),
        ("matrix?ip_version=5", "ip_version=5: write 4"),
        ("live?ip_version=5", "ip_version=5: write 4"),
    ] {
        let (status, body) = collector.ask(&format!("/api/v1/telemetry/{path}"));
        assert_eq!(status, 400, "{path}: {body}");
        let problem: Value = serde_json::from_str(&body).unwrap();
        assert!(problem["detail"].as_str().unwrap().contains(words), "{path}: {body}");
    }
    let path = "/api/v1/telemetry/status";
    let http = &collector.agent.http;
    let ask = |host: &str, token: &str| {
        TestRequest::new(http, "GET", path).host(host).token(token).send()
    };
    assert_eq!(ask("localhost:8621", "").status, 200);
    // DNS rebinding: another name in the Host header.
    let refused = ask("evil.example", "");
    assert_eq!(
        (refused.status, refused.text().contains("[http] names")),
        (401, true),
        "{refused:?}"
    );
    let token = std::fs::read_to_string(dir.path().join("state/token")).unwrap();
    assert_eq!(ask("evil.example", token.trim()).status, 200);
    assert_eq!(ask("localhost", "wrong").status, 401);

    let dir = test_dir();
    let closed = Collector::start(dir.path(), &format!("{CONFIG}\n[http]\nread = \"token\"\n"));
    assert_eq!(closed.ask(path).0, 401);
    assert_eq!(closed.ask("/healthz").0, 200);
}

#[test]
fn occupied_input_port_is_reported() {
    let dir = test_dir();
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let config =
        CONFIG.replacen("127.0.0.1:0\"]\nipfix", &format!("127.0.0.1:{port}\"]\nipfix"), 1);
    let done = RunningCommand::start(&mut command(dir.path(), &config)).wait();
    assert_eq!((done.code, done.lines().len()), (1, 1), "{done:?}");
    assert!(done.error.contains(&format!("cannot take sflow on UDP 127.0.0.1:{port}")), "{done:?}");
    assert!(done.error.contains("[] for none"), "{done:?}");
    // With the default inputs the collector continues without the occupied one.
    let root = dir.path().display();
    let config = config.replacen(
        "roles = [\"collector\"]\n[agent]",
        &format!("[agent]\nlisten = \"127.0.0.1:0\"\nroot = \"{root}\""),
        1,
    );
    let collector = Collector::start(dir.path(), &config);
    assert!(!collector.agent.listen.is_empty());
    let status = collector.get("/api/v1/telemetry/status");
    assert!(status["missing"][0].as_str().unwrap().contains("cannot take sflow"), "{status}");
    assert_eq!(status["inputs"].as_array().unwrap().len(), 2);

    for (config, words) in [
        (CONFIG.replace("sflow = ", "sflo = "), "penstock.toml:6: unknown field `sflo`"),
        (CONFIG.replace("threads = 2", "threads = 0"), "penstock.toml:9: threads must be 1 to 64"),
        (CONFIG.replace("threads = 2", "threads = 65"), "penstock.toml:9: threads must be 1 to 64"),
        (CONFIG.replace("threads = 2", "threads = -1"), "penstock.toml:9: "),
        (CONFIG.replace("2001:db8:2::/48", "2001:db8:2::/480"), "is no network"),
        (CONFIG.replace("\"collector\"]", "\"colector\"]"), "'colector' is no role"),
        (
            format!("{CONFIG}\n[[collector.alert]]\nname = \"a\"\nkind = \"x\"\n"),
            "unknown variant `x`",
        ),
    ] {
        let done = RunningCommand::start(&mut command(dir.path(), &config)).wait();
        assert_eq!((done.code, done.lines().len()), (2, 1), "{done:?}");
        assert!(done.error.contains(words), "{done:?}");
    }
}
