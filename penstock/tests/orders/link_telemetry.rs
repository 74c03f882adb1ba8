//! Link telemetry from sFlow through the real collector to the real controller: a link that is down is avoided, and rates
//! that its counters do not confirm are reported.

use std::fs;
use std::process::Command;
use std::time::Duration;

use penstock_testkit::http::TestRequest;
use serde_json::Value;

use crate::common::{Agent, penstock, run, seeded, wait_until, write_file, write_private};
use crate::node::Node;
use crate::site::{Collector, Exporter};

const ORDER_TIMEOUT: Duration = Duration::from_secs(120);

const NETWORK: &str = r#"
name = "two-trunks"
[[site]]
name = "a"
[[site]]
name = "b"
[[host]]
name = "dtn-a"
site = "a"
interface = [{ name = "data0", rate = "1G" }]
[[host]]
name = "dtn-b"
site = "b"
interface = [{ name = "data0", rate = "1G" }]
[[switch]]
name = "left"
[[switch]]
name = "right"
[[link]]
name = "at-a"
ends = ["dtn-a:data0", "left"]
[[link]]
name = "at-b"
ends = ["dtn-b:data0", "right"]
[[link]]
name = "trunk"
ends = ["left", "right"]
rate = "40M"
[[link]]
name = "other"
ends = ["left", "right"]
rate = "40M"
delay = "5ms"
"#;

const COLLECTOR: &str = "
roles = [\"collector\"]
[agent]
http = \"127.0.0.1:0\"
[collector]
sflow = [\"127.0.0.1:0\"]
ipfix = []
fireflies = []
topology = \"network.toml\"
[[collector.exporter]]
address = \"192.0.2.1\"
name = \"left\"
links = { 1 = \"trunk\", 2 = \"other\" }
";

fn token(host: &str) -> String {
    format!("the-token-of-{host}")
}

/// A switch that exports counters of its two trunks, one second apart by its own clock.
struct Switch {
    exporter: Exporter,
    socket: std::net::UdpSocket,
    uptime_ms: u32,
}

impl Switch {
    /// Sends counters with the `ifStatus` of both trunks: 3 is up, 1 is down.
    fn send_counters(&mut self, states: [u32; 2]) {
        self.uptime_ms += 1_000;
        for (index, state) in (1..).zip(states) {
            let datagram = self.exporter.state(index, state, self.uptime_ms, 0);
            self.socket.send(&datagram).unwrap();
        }
    }
}

#[test]
fn down_link_is_avoided_mismatch_reported() {
    let mut random = seeded(7_800);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("network.toml"), NETWORK).unwrap();
    let collector = Collector::start(dir.path(), COLLECTOR);
    let mut text = format!(
        "roles = [\"controller\"]\n[controller]\ntopology = \"network.toml\"\nround = \"500ms\"\n\
         [controller.telemetry]\nurl = \"http://{}\"\n",
        collector.agent.http
    );
    for host in ["dtn-a", "dtn-b"] {
        write_private(&dir.path().join(host), token(host));
        text += &format!(
            "[[controller.token]]\nname = \"{host}\"\nfile = \"{host}\"\nscopes = [\"agent:{host}\"]\n"
        );
    }
    let file = dir.path().join("controller.toml");
    fs::write(&file, text).unwrap();
    let state = dir.path().join("controller");
    let mut command = penstock(&state);
    command.env_remove("PENSTOCK_ROLES");
    command.args(["serve", "--json", "--http", "127.0.0.1:0", "--config"]).arg(&file);
    let controller = Agent::spawn(command);
    let node = |host: &str| Node::under(&controller.http, &token(host), host, "127.0.0.1:0", "");
    let (a, b) = (node("dtn-a"), node("dtn-b"));
    write_file(&mut random, &a.path("large"), 160 << 20);
    let ask = |words: &[&str]| {
        let mut command: Command = penstock(&state);
        command.args(words).args(["--json", "--controller", &controller.http]);
        run(command).good().json
    };
    let submitted = ask(&["submit", "a:/data", "b:/data/in", "--no-encrypt"]);
    let request = submitted["id"].to_string();
    let get = |path: &str| -> Value {
        let response = TestRequest::new(&controller.http, "GET", path).send();
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    };
    let order = || get(&format!("/api/v1/requests/{request}/why"))["orders"][0].clone();
    let goes_over = |order: &Value, link: &str| {
        order["path"].as_array().is_some_and(|path| path.contains(&link.into()))
    };
    let link = |name: &str| {
        let all = get("/api/v1/links");
        let links = all["links"].as_array().unwrap();
        links.iter().find(|one| one["name"] == name).unwrap().clone()
    };
    let mut switch = Switch {
        exporter: Exporter::new(1, 1000),
        socket: collector.socket("sflow"),
        uptime_ms: 0,
    };
    wait_until("it moves", ORDER_TIMEOUT, || {
        let order = order();
        (goes_over(&order, "trunk") && order["bits_per_second"].as_i64()? > 10_000_000)
            .then_some(())
    });
    assert_eq!(link("trunk")["up"], Value::Null);
    switch.send_counters([3, 3]);
    switch.send_counters([3, 3]);
    wait_until("it is known to be up", ORDER_TIMEOUT, || {
        (link("trunk")["up"] == true).then_some(())
    });
    assert_eq!((&link("trunk")["down"], &link("at-a")["up"]), (&false.into(), &Value::Null));

    // The interface is down: the next round routes around it.
    switch.send_counters([1, 3]);
    let left = wait_until("it goes the other way", ORDER_TIMEOUT, || {
        Some(order()).filter(|one| goes_over(one, "other"))
    });
    assert!(!goes_over(&left, "trunk"), "{left}");
    let trunk = link("trunk");
    assert_eq!((&trunk["down"], &trunk["up"]), (&true.into(), &false.into()), "{trunk}");
    let rounds = get("/api/v1/rounds?limit=1000").to_string();
    assert!(
        rounds.contains("goes over at-a, other, at-b instead of at-a, trunk, at-b"),
        "{rounds}"
    );
    // The interface is up: routes use it again, as hosts with one interface have no other path.
    switch.send_counters([3, 3]);
    wait_until("it is up again", ORDER_TIMEOUT, || (link("trunk")["down"] == false).then_some(()));
    wait_until("it goes over the trunk again", ORDER_TIMEOUT, || {
        goes_over(&order(), "trunk").then_some(())
    });

    // The trunk's counters do not grow, though nodes report traffic over it.
    wait_until("it is told", ORDER_TIMEOUT, || {
        std::thread::sleep(Duration::from_millis(300));
        switch.send_counters([3, 3]);
        (order()["off_path"] == true).then_some(())
    });
    assert_eq!(link("trunk")["forward_bps"], 0);
    let rounds = get("/api/v1/rounds?limit=1000").to_string();
    assert!(rounds.contains("does not show on link trunk"), "{rounds}");

    // Without its collector the controller keeps the last known state.
    switch.send_counters([1, 3]);
    wait_until("the trunk is down", ORDER_TIMEOUT, || {
        (link("trunk")["down"] == true).then_some(())
    });
    drop(collector);
    wait_until("it goes the other way", ORDER_TIMEOUT, || {
        goes_over(&order(), "other").then_some(())
    });
    assert_eq!(link("trunk")["down"], true);
    ask(&["cancel", &request]);
    drop((a, b));
}
