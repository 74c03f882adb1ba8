//! Pacing of a copy's streams by its tuner, through a router whose queue is short. Namespaces: near, far (the router), target.

mod common;

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use common::veth::{FAR_IPV4, NamespacePair, ip};
use common::{Agent, RunningCommand, TestEnv, assert_same, run, seeded, wait_until, write_file};

/// Address of the target's agent, and of the router on its side.
const TARGET: &str = "10.92.0.2";
const BEFORE_TARGET: &str = "10.92.0.1";

/// Queue of 6 ms behind a rate that leaves the processors idle: streams overflow it all the time. The sender's own
/// kernel would not count what its queue drops.
const SHORT_QUEUE: &str = "tc qdisc add dev pst2 root tbf rate 40mbit burst 16k limit 30000";

/// Time to end the search for streams, and to try a pace at least three times.
const PACED_TIMEOUT: Duration = Duration::from_secs(120);

/// Decisions about a running copy; none before the first sample.
fn decisions(env: &TestEnv, id: &str) -> Vec<Value> {
    let shown = run(env.penstock().args(["transfers", "show", id, "--why", "--json"])).json;
    shown["decisions"].as_array().cloned().unwrap_or_default()
}

/// Namespace behind the far one, which forwards to it; removed when dropped.
struct Target(String);

impl Target {
    fn behind(pair: &NamespacePair) -> Self {
        let target = Self(pair.far.replace("far", "target"));
        let (near, far, Self(name)) = (&pair.near, &pair.far, &target);
        let made = [
            format!("netns add {name}"),
            format!("-n {far} link add pst2 type veth peer name pst3 netns {name}"),
            format!("-n {far} addr add {BEFORE_TARGET}/24 dev pst2"),
            format!("-n {name} addr add {TARGET}/24 dev pst3"),
            format!("-n {far} link set pst2 up"),
            format!("-n {name} link set pst3 up"),
            format!("-n {near} route add 10.92.0.0/24 via {FAR_IPV4}"),
            format!("-n {name} route add default via {BEFORE_TARGET}"),
            format!("netns exec {far} sysctl -qw net.ipv4.ip_forward=1"),
        ];
        made.iter().for_each(|command| assert!(ip(command), "{command}"));
        target
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.0));
    }
}

/// Most that the kernel sends on a data stream, in bits per second; none without a limit.
fn kernel_pace(pair: &NamespacePair) -> Option<u64> {
    let mut ss = Command::new("ss");
    ss.args(["-tinH", "state", "established"]);
    let shown = run(NamespacePair::inside(&pair.near, &ss)).good().output;
    // It writes `pacing_rate NOW/MOST` where there is a limit.
    let most = shown.split_whitespace().filter_map(|word| word.split_once("bps/"));
    most.filter_map(|(_, most)| most.strip_suffix("bps")?.parse().ok()).min()
}

#[test]
fn short_queue_paces_streams() {
    let Some(pair) = NamespacePair::new(&["tc", "ss"]) else { return };
    let target = Target::behind(&pair);
    let on_router = |command: &str| ip(&format!("netns exec {} {command}", pair.far));
    assert!(on_router(SHORT_QUEUE), "{SHORT_QUEUE}");
    let env = TestEnv::new();
    let mut serve = env.penstock();
    serve.args(["serve", "--http", "none", "--json", "--root"]).arg(&env.root);
    serve.args(["--listen", &SocketAddr::new(TARGET.parse().unwrap(), 0).to_string()]);
    let agent = Agent::spawn(NamespacePair::inside(&target.0, &serve));
    pair.log_in(env.penstock(), &agent, &env.state);
    write_file(&mut seeded(611), &env.source.join("file"), 400 << 20);
    let mut copy = env.cp(&["--engine", "buffered", "--congestion", "cubic"]);
    copy.arg(env.source.join("file")).arg(agent.url(""));
    let mut client = RunningCommand::start(&mut NamespacePair::inside(&pair.near, &copy));
    // `ip netns exec` becomes the copy.
    let id = format!("cp{}", client.child.id());
    let decision = wait_until("a pace is kept", PACED_TIMEOUT, || {
        assert!(!client.is_over(), "the copy ends before its streams are paced");
        let found = decisions(&env, &id);
        found
            .into_iter()
            .find(|one| one["reason"].as_str().is_some_and(|why| why.starts_with("Keeps the pace")))
    });
    let pace = decision["target_stream_pacing_bps"].as_u64().expect("a pace");
    assert!((8_000_000..40_000_000).contains(&pace), "{decision}");
    let before = decision["bits_per_second"].as_f64().unwrap();
    assert!(before > 30e6, "{decision}");
    let by_kernel = kernel_pace(&pair).expect("the kernel paces");
    assert!(by_kernel.abs_diff(pace) < pace / 100, "{by_kernel} of {pace}");
    run(env.penstock().args(["transfers", "set", &id, "--tune", "off"])).good();
    wait_until("the kernel paces no more", PACED_TIMEOUT, || {
        kernel_pace(&pair).is_none().then_some(())
    });
    assert!(on_router("tc qdisc del dev pst2 root"));
    client.wait().good();
    assert_same(&env.source, &env.root);
}
