//! Marker life cycle: other programs on the device, restarts, rules by socket, cgroup and process, flows by pipe and HTTP,
//! refusals.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use penstock_marker::{LabelAction, Method, SocketTags};
use penstock_scitags::Scitag;
use penstock_testkit::http::TestRequest;

use crate::common::{Agent, PENSTOCK, ReadyProcess, run};
use crate::lab::{HERE, Lab, Packet, THERE, inside, labelled, possible, sh, wait_for};

const CMS_INPUT_LABEL: u32 = 0x30038;
const CMS_CACHE_LABEL: u32 = 0x3000C;

fn to(port: u16, tag: &str) -> String {
    format!(
        "[[rule]]\nscitag = \"{tag}\"\ndestination = \"{THERE}\"\ndestination_port = {port}\nprotocol = \"tcp\"\n"
    )
}

/// A TCP connection from `here` to `there`.
fn connection(lab: &Lab) -> (TcpStream, TcpStream) {
    let listener = inside(&lab.there, || TcpListener::bind((THERE, 0)).unwrap());
    let address = listener.local_addr().unwrap();
    let client = inside(&lab.here, || TcpStream::connect(address).unwrap());
    (client, listener.accept().unwrap().0)
}

fn exchange(from: &mut TcpStream, to: &mut TcpStream) {
    for _ in 0..10 {
        from.write_all(&[7; 1000]).unwrap();
        to.read_exact(&mut [0; 1000]).unwrap();
    }
}

fn of(packets: &[Packet], port: u16) -> Vec<&Packet> {
    packets.iter().filter(|packet| packet.source == HERE && packet.has_port(port.into())).collect()
}

#[test]
fn restart_and_reload_leave_no_gap() {
    if !possible("restart without a gap") {
        return;
    }
    let mut lab = Lab::new();
    let here = lab.here.clone();
    let first = lab.marker(&here, "m", &to(5201, "cms/analysis-input"), &[]);
    let done = AtomicBool::new(false);
    let mut packets = Vec::new();
    std::thread::scope(|scope| {
        let lab_now = &lab;
        let traffic = scope.spawn(|| {
            let packets = lab_now.capture(|| lab_now.iperf(&format!("-6 -c {THERE} -t 6 -b 200M")));
            done.store(true, Ordering::SeqCst);
            packets
        });
        // Killed, ended, and started again, with rules of other shapes each time.
        let mut marker = Some(first);
        let mut round = 0;
        while !done.load(Ordering::SeqCst) {
            round += 1;
            let rules = match round % 3 {
                0 => to(5201, "cms/analysis-input"),
                1 => format!("[[rule]]\nscitag = \"3/14\"\nsource = \"{HERE}\"\n"),
                _ => "[[rule]]\nscitag = \"3/14\"\nsource = \"fd00:77::/64\"\nprotocol = \"tcp\"\n"
                    .to_owned(),
            };
            match marker.take() {
                Some(old) if round % 2 == 0 => drop(old.end()),
                old => drop(old),
            }
            let file = lab_now.dir.path().join("next.toml");
            std::fs::write(&file, rules).unwrap();
            let mut command = lab_now.tag(&here);
            command.args(["run", "--json", "--interface", "pm0", "--pin"]).arg(lab_now.pin("m"));
            marker = Some(ReadyProcess::start({
                command.arg("--config").arg(&file);
                command
            }));
        }
        packets = traffic.join().unwrap();
        assert!(round >= 3, "{round} restarts");
        println!("{round} restarts while {} packets passed", packets.len());
    });
    let ours = of(&packets, 5201);
    let bad = ours.iter().filter(|packet| !packet.has_label(CMS_INPUT_LABEL)).count();
    assert!(ours.len() > 1000 && bad == 0, "{bad} of {}", ours.len());
}

#[test]
fn labels_of_connections_follow_rules() {
    if !possible("live connections") {
        return;
    }
    let mut lab = Lab::new();
    let here = lab.here.clone();
    let marker = lab.marker(&here, "m", "", &["--http", "127.0.0.1:0"]);
    let (mut client, mut server) = connection(&lab);
    let port = client.local_addr().unwrap().port();
    let packets = lab.capture(|| exchange(&mut client, &mut server));
    assert!(of(&packets, port).iter().all(|packet| !packet.has_label(CMS_INPUT_LABEL)));

    let rules = format!("[[rule]]\nscitag = \"3/14\"\nsource_port = {port}\n");
    std::fs::write(lab.dir.path().join("m.toml"), rules).unwrap();
    marker.signal("HUP");
    wait_for(&lab, "m", "the rule", |status| status["rules"]["addresses"] == 1);
    let packets = lab.capture(|| exchange(&mut client, &mut server));
    let ours = of(&packets, port);
    assert!(ours.len() >= 10 && ours.iter().all(|packet| packet.has_label(CMS_INPUT_LABEL)));
    assert!(ours.iter().all(|packet| packet.label == ours[0].label), "the entropy changes");

    // An invalid file is refused, and the old rules stay.
    std::fs::write(lab.dir.path().join("m.toml"), "[[rule]]\nscitag = \"nobody/x\"\n").unwrap();
    marker.signal("HUP");
    let packets = lab.capture(|| exchange(&mut client, &mut server));
    assert!(of(&packets, port).iter().all(|packet| packet.has_label(CMS_INPUT_LABEL)));

    // A socket's tag precedes every rule from its next packet on, and accepted sockets inherit it from the listener.
    let mut tags = SocketTags::open(&lab.pin("m")).unwrap();
    let cache = LabelAction::new(Scitag::new(3, 3).unwrap(), Method::Label).unwrap();
    tags.set(&client, Some(cache)).unwrap();
    let packets = lab.capture(|| {
        exchange(&mut client, &mut server);
        drop(client);
        assert_eq!(server.read(&mut [0; 9]).unwrap(), 0);
        drop(server);
    });
    let ours = of(&packets, port);
    assert!(
        ours.len() >= 12 && ours.iter().all(|packet| packet.has_label(CMS_CACHE_LABEL)),
        "{ours:?}"
    );
    let listener = inside(&lab.here, || TcpListener::bind((HERE, 0)).unwrap());
    tags.set(&listener, Some(cache)).unwrap();
    let address = listener.local_addr().unwrap();
    let packets = lab.capture(|| {
        let mut client = inside(&lab.there, || TcpStream::connect(address).unwrap());
        let mut server = listener.accept().unwrap().0;
        exchange(&mut server, &mut client);
        drop(server);
        assert_eq!(client.read(&mut [0; 9]).unwrap(), 0);
    });
    let ours = of(&packets, address.port());
    assert!(
        ours.len() >= 12 && ours.iter().all(|packet| packet.has_label(CMS_CACHE_LABEL)),
        "{ours:?}"
    );
}

#[test]
fn by_process_and_by_cgroup() {
    if !possible("process and cgroup") {
        return;
    }
    let mut lab = Lab::new();
    let here = lab.here.clone();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let Some(root) = mounts.lines().find_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        (words[2] == "cgroup2").then(|| words[1].to_owned())
    }) else {
        penstock_testkit::skip(
            penstock_testkit::Requirement::Kernel,
            "process and cgroup: no cgroup2",
        );
        return;
    };
    let name = format!("/{}", lab.here);
    let rules = format!(
        "[[rule]]\nscitag = \"3/14\"\nprocess = \"iperf3\"\n[[rule]]\nscitag = \"cms/cache\"\nlabel = \"both\"\ncgroup = \"{name}\"\n"
    );
    sh(&format!("mkdir {root}{name}"));
    let marker = lab.marker(&here, "m", &rules, &[]);
    let packets = lab.capture(|| lab.iperf(&format!("-6 -c {THERE} -n 8M")));
    let ours = of(&packets, 5201);
    assert!(
        ours.len() > 20 && ours.iter().all(|packet| packet.has_label(CMS_INPUT_LABEL)),
        "by process"
    );
    // A process that matches both rules: cgroup precedes process.
    let packets = lab.capture(|| {
        let mut server = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", lab.there))
            .args(["iperf3", "-s", "-1", "-p", "5202"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let client = format!(
            "echo $$ > {root}{name}/cgroup.procs; for i in $(seq 100); do iperf3 -6 -c {THERE} -p 5202 -n 8M && exit 0; sleep 0.1; done; exit 1"
        );
        let done = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{here}"))
            .args(["sh", "-c", &client])
            .output()
            .unwrap();
        let _ = server.kill();
        let _ = server.wait();
        assert!(done.status.success(), "{done:?}");
    });
    let ours = of(&packets, 5202);
    let bad: Vec<_> = ours
        .iter()
        .filter(|packet| !packet.has_label(CMS_CACHE_LABEL) || !packet.has_option("000303"))
        .collect();
    // Refused connections before the server listens match the cgroup, too.
    assert!(
        ours.len() > 20 && bad.is_empty(),
        "by cgroup: {} of {}: {bad:?}",
        bad.len(),
        ours.len()
    );
    drop(marker);
    let _ = std::fs::remove_dir(format!("{root}{name}"));
}

/// The reduced capabilities suffice for a process rule that a reload adds.
#[test]
fn process_rule_covers_running_connections() {
    if !possible("running programs") {
        return;
    }
    let mut lab = Lab::new();
    let here = lab.here.clone();
    let marker = lab.marker(&here, "m", "", &["--http", "127.0.0.1:0"]);
    std::thread::scope(|scope| {
        let lab = &lab;
        let traffic = scope.spawn(|| lab.iperf(&format!("-6 -c {THERE} -t 5 -b 100M")));
        let passed =
            |status: &serde_json::Value| status["not_labelled"]["unmatched"]["packets"].as_u64();
        wait_for(lab, "m", "traffic", |status| passed(status) > Some(200));
        let rules = "[[rule]]\nscitag = \"3/14\"\nprocess = \"iperf3\"\n";
        std::fs::write(lab.dir.path().join("m.toml"), rules).unwrap();
        marker.signal("HUP");
        let sent = |status: &serde_json::Value| labelled(status).into_values().sum::<u64>();
        wait_for(lab, "m", "labels", |status| sent(status) > 0);
        let packets = lab.capture(|| {
            let before = sent(&lab.status("m"));
            wait_for(lab, "m", "more labels", |status| sent(status) > before + 100);
        });
        let ours = of(&packets, 5201);
        assert!(
            ours.len() > 10 && ours.iter().all(|packet| packet.has_label(CMS_INPUT_LABEL)),
            "{}",
            ours.len()
        );
        traffic.join().unwrap();
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", marker.child.id())).unwrap();
    let kept = status.lines().find(|line| line.starts_with("CapPrm:")).unwrap();
    let kept = u64::from_str_radix(kept.split_whitespace().nth(1).unwrap(), 16).unwrap();
    // CAP_NET_ADMIN 12, CAP_SYS_PTRACE 19, CAP_BPF 39.
    assert_eq!(kept, 1 << 12 | 1 << 19 | 1 << 39, "{kept:x}");
}

#[test]
fn others_at_the_same_device_stay() {
    if !possible("foreign filters") {
        return;
    }
    for attach in ["auto", "clsact"] {
        let mut lab = Lab::new();
        let here = lab.here.clone();
        let tc = |words: &str| sh(&format!("nsenter --net=/run/netns/{here} tc {words}"));
        tc("qdisc add dev pm0 clsact");
        tc("filter add dev pm0 egress protocol ipv6 prio 1 u32 match u32 0 0 flowid 1:1");
        let marker = lab.marker(&here, "m", &to(5201, "cms/analysis-input"), &["--attach", attach]);
        let by = if attach == "auto" && has_tcx() { "tcx" } else { "clsact" };
        assert_eq!(marker.facts["attached"][1]["by"], by);
        if by == "tcx" {
            let packets = lab.capture(|| lab.iperf(&format!("-6 -c {THERE} -n 4M")));
            assert!(
                of(&packets, 5201).iter().all(|packet| packet.has_label(CMS_INPUT_LABEL)),
                "{attach}"
            );
            assert!(tc("-s filter show dev pm0 egress").contains("u32"));
        }
        marker.end();
        let again = lab.marker(&here, "m", &to(5201, "cms/analysis-input"), &["--attach", attach]);
        assert_eq!(again.facts["attached"][1]["by"], by);
        if by == "clsact" {
            let shown = tc("filter show dev pm0 egress");
            assert_eq!(shown.matches("handle 0x70656e6d").count(), 1, "{shown}");
        }
        again.end();
        let stopped = lab.tag(&here).args(["stop", "--pin"]).arg(lab.pin("m")).output().unwrap();
        assert!(stopped.status.success(), "{stopped:?}");
        let shown = tc("filter show dev pm0 egress");
        assert!(shown.contains("u32") && !shown.contains("mark_frame"), "{shown}");
        assert!(!lab.pin("m").exists());
        let packets = lab.capture(|| lab.iperf(&format!("-6 -c {THERE} -n 1M")));
        assert!(of(&packets, 5201).iter().all(|packet| !packet.has_label(CMS_INPUT_LABEL)));
    }
}

/// Linux 6.6 and later.
fn has_tcx() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map_while(|word| word.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(6))
}

#[test]
fn clsact_alone_labels_everything() {
    if !possible("clsact") {
        return;
    }
    let mut lab = Lab::new();
    let here = lab.here.clone();
    let marker = lab.marker(&here, "m", &to(5201, "3/14"), &["--attach", "clsact"]);
    let packets = lab.capture(|| lab.iperf(&format!("-6 -c {THERE} -n 8M")));
    let ours = of(&packets, 5201);
    assert!(ours.len() > 20 && ours.iter().all(|packet| packet.has_label(CMS_INPUT_LABEL)));
    assert_eq!(lab.status("m")["attached"][0]["by"], "clsact");
    drop(marker);
}

#[test]
fn status_names_interface_across_namespaces() {
    if !possible("other namespaces") {
        return;
    }
    for attach in ["auto", "clsact"] {
        let mut lab = Lab::new();
        let (here, there) = (lab.here.clone(), lab.there.clone());
        // The same index belongs to another device there.
        sh(&format!("ip -n {here} link add d0 type veth peer name d1"));
        sh(&format!("ip -n {there} link add other0 type veth peer name other1"));
        let index = |ns: &str, device: &str| {
            sh(&format!("ip -n {ns} -o link show {device}")).split(':').next().unwrap().to_owned()
        };
        assert_eq!(index(&here, "d0"), index(&there, "other0"));
        let marker = lab.marker_on("d0", &here, "m", &to(5201, "3/14"), &["--attach", attach]);
        marker.end();
        let ask = |ns: &str, verb: &str| {
            let output = lab.tag(ns).args([verb, "--json", "--pin"]).arg(lab.pin("m")).output();
            let output = output.unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            (String::from_utf8_lossy(&output.stdout).into_owned(), text, output.status.code())
        };
        for ns in [&here, &there] {
            let (facts, error, _) = ask(ns, "status");
            assert!(facts.contains("\"d0\"") && !facts.contains("other0"), "{facts}{error}");
        }
        let (facts, error, code) = ask(&there, "stop");
        if attach == "clsact" || !has_tcx() {
            assert!(error.contains("in another network namespace"), "{facts}{error}");
            assert!(error.lines().count() == 1 && code == Some(1), "{error}");
            let (facts, error, code) = ask(&here, "stop");
            assert!(facts.contains("d0 egress") && code == Some(0), "{facts}{error}");
            let shown =
                sh(&format!("nsenter --net=/run/netns/{here} tc filter show dev d0 egress"));
            assert!(!shown.contains("mark_frame"), "{shown}");
        } else {
            assert!(facts.contains("d0 egress") && code == Some(0), "{facts}{error}");
        }
        assert!(!lab.pin("m").exists());
    }
}

#[test]
fn pipe_and_http_flows_survive_restart() {
    if !possible("pipe and HTTP") {
        return;
    }
    let mut lab = Lab::new();
    let here = lab.here.clone();
    let pipe = lab.dir.path().join("pipe");
    let more = ["--pipe", pipe.to_str().unwrap(), "--http", "127.0.0.1:0"];
    sh(&format!("ip -n {here} link set lo up"));
    let marker = lab.marker(&here, "m", "", &more);
    let (mut client, mut server) = connection(&lab);
    let (local, peer) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
    let line =
        |state: &str| format!("{state} tcp {HERE} {} {THERE} {} 3 14\n", local.port(), peer.port());
    let write = |text: &str| {
        std::fs::OpenOptions::new()
            .write(true)
            .open(&pipe)
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    };
    let long = "x".repeat(5000);
    write(&format!(
        "nonsense\nstart tcp 192.0.2.1 1 192.0.2.2 2 3 14\n{long}\n\n{}",
        line("start")
    ));
    wait_for(&lab, "m", "the flow", |status| status["rules"]["addresses"] == 1);
    let packets = lab.capture(|| exchange(&mut client, &mut server));
    assert!(of(&packets, local.port()).iter().all(|packet| packet.has_label(CMS_INPUT_LABEL)));

    // The HTTP port is in the namespace.
    let address = marker.facts["http"][0].as_str().unwrap().to_owned();
    let token = std::fs::read_to_string(lab.dir.path().join("state/token")).unwrap();
    let ask = |method: &str, path: &str, token: &str, body: &str| {
        inside(&here, || {
            let request = TestRequest::new(&address, method, path).host("x");
            request.token(token.trim()).body(body.as_bytes()).send()
        })
    };
    assert_eq!(ask("GET", "/api/v1/marker", "wrong", "").status, 401);
    let rule = r#"{"scitag": "cms/cache", "destination": "fd00:99::/64", "lifetime_s": 3600}"#;
    assert_eq!(ask("POST", "/api/v1/marker/rules", &token, rule).status, 200);
    for (bad, words) in [
        (r#"{"scitag": "cms/cach", "destination": "fd00:99::/64"}"#, "did you mean 'cache'"),
        (r#"{"scitag": "cms/cache", "destination": "10.0.0.1"}"#, "is IPv4"),
        (r#"{"scitag": "cms/cache"}"#, "by addresses"),
        (r#"{"scitag": "cms/cache", "port": 5}"#, "unknown field"),
    ] {
        let answer = ask("POST", "/api/v1/marker/rules", &token, bad);
        assert!(answer.status == 400 && answer.text().contains(words), "{answer:?}");
    }
    let metrics = ask("GET", "/metrics", &token, "").text();
    for words in [
        "penstock_marker_labelled_packets_total{scitag=\"206\",name=\"cms/analysis-input\",label=\"label\"}",
        "penstock_marker_passed_bytes_total{reason=\"ipv4\"}",
        "penstock_marker_bad_lines_total 3",
        "penstock_marker_rules 2",
    ] {
        assert!(metrics.contains(words), "{words}: {metrics}");
    }
    marker.end();
    let marker = lab.marker(&here, "m", "", &more);
    assert_eq!(lab.status("m")["rules"]["addresses"], 2);
    let packets = lab.capture(|| exchange(&mut client, &mut server));
    assert!(of(&packets, local.port()).iter().all(|packet| packet.has_label(CMS_INPUT_LABEL)));
    write(&line("end"));
    wait_for(&lab, "m", "the end", |status| status["rules"]["addresses"] == 1);
    let packets = lab.capture(|| exchange(&mut client, &mut server));
    let ours = of(&packets, local.port());
    assert!(
        ours.len() >= 10 && ours.iter().all(|packet| !packet.has_label(CMS_INPUT_LABEL)),
        "{ours:?}"
    );
    let address = marker.facts["http"][0].as_str().unwrap().to_owned();
    let gone = inside(&here, || {
        let path = "/api/v1/marker/rules?destination=fd00:99::/64";
        TestRequest::new(&address, "DELETE", path).host("x").token(token.trim()).send()
    });
    assert_eq!(gone.status, 200, "{gone:?}");
    assert_eq!(lab.status("m")["rules"]["addresses"], 0);
    // A flow without an end expires.
    marker.end();
    let marker =
        lab.marker(&here, "m", "", &["--pipe", pipe.to_str().unwrap(), "--lifetime", "1s"]);
    write(&line("start"));
    wait_for(&lab, "m", "the flow", |status| status["rules"]["addresses"] == 1);
    wait_for(&lab, "m", "its end", |status| status["rules"]["addresses"] == 0);
    drop(marker);
}

#[test]
fn ten_thousand_rules_cost_one_lookup() {
    if !possible("10,000 rules") {
        return;
    }
    let mut lab = Lab::new();
    let here = lab.here.clone();
    let mut rules = to(5201, "cms/analysis-input");
    for number in 0..9_999 {
        rules.push_str(&format!(
            "[[rule]]\nscitag = \"atlas/default\"\ndestination = \"fd00:1::{number:x}\"\ndestination_port = 1094\nprotocol = \"tcp\"\n"
        ));
    }
    let marker = lab.marker(&here, "m", &rules, &[]);
    let status = lab.status("m");
    assert_eq!(
        (&status["rules"]["addresses"], &status["rules"]["shapes"]),
        (&10_000.into(), &1.into())
    );
    let packets = lab.capture(|| lab.iperf(&format!("-6 -c {THERE} -n 8M")));
    let ours = of(&packets, 5201);
    assert!(ours.len() > 20 && ours.iter().all(|packet| packet.has_label(CMS_INPUT_LABEL)));
    assert_eq!(labelled(&lab.status("m")).len(), 1);
    drop(marker);
}

#[test]
fn invalid_rules_print_one_line() {
    if !possible("errors") {
        return;
    }
    let lab = Lab::new();
    let file = |name: &str, text: &str| {
        let path = lab.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = file("good.toml", "[[rule]]\nscitag = \"3/14\"\nprotocol = \"tcp\"\n");
    let bad = file("bad.toml", "[[rule]]\nscitag = \"cmss/default\"\nprotocol = \"tcp\"\n");
    let option =
        file("option.toml", "[[rule]]\nscitag = \"3/14\"\nlabel = \"both\"\nprotocol = \"tcp\"\n");
    let group = file("group.toml", "[[rule]]\nscitag = \"3/14\"\ncgroup = \"/no/such\"\n");
    let shapes: String =
        (0..33).map(|n| format!("[[rule]]\nscitag = \"3/14\"\nsource = \"::/{n}\"\n")).collect();
    let shapes = file("shapes.toml", &shapes);
    let pin = lab.pin("m").to_str().unwrap().to_owned();
    sh(&format!("ip -n {} link set pm0 gso_max_size 190000", lab.here));
    let run = |arguments: &[&str]| lab.tag(&lab.here).args(arguments).output().unwrap();
    for (arguments, code, words) in [
        (
            &["run", "--interface", "eth9", "--pin", &pin, "--config", &good][..],
            2,
            "no network interface 'eth9'",
        ),
        (
            &["run", "--interface", "pm0", "--pin", "/tmp/x", "--config", &good],
            1,
            "mount -t bpf bpf /sys/fs/bpf",
        ),
        (&["run", "--interface", "pm0", "--pin", &pin, "--config", "/no/file"], 2, "no such file"),
        (&["run", "--interface", "pm0", "--pin", &pin, "--config", &bad], 2, "did you mean 'cms'?"),
        (
            &["run", "--interface", "pm0", "--pin", &pin, "--config", &option],
            2,
            "gso_max_size 190000",
        ),
        (
            &["run", "--interface", "pm0", "--pin", &pin, "--config", &group],
            2,
            "give a directory below",
        ),
        (
            &["run", "--interface", "pm0", "--pin", &pin, "--config", &shapes],
            2,
            "33 different shapes",
        ),
        (
            &["run", "--interface", "pm0", "--pin", &pin, "--pipe", &good],
            1,
            "exists and is no pipe",
        ),
        (&["status", "--pin", "/no/such"], 1, "no marker is pinned at /no/such"),
        (&["stop", "--pin", "/no/such"], 1, "no marker is pinned at /no/such"),
    ] {
        let output = run(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.lines().count() == 1 && text.contains(words), "{arguments:?}: {text}");
    }
    let nobody = Command::new("setpriv")
        .args(["--reuid=65534", "--clear-groups", env!("CARGO_BIN_EXE_penstock"), "tag", "run"])
        .args(["--interface", "lo", "--pipe", "/tmp/none", "--pin"])
        .arg(lab.pin("n"))
        .output();
    if let Ok(output) = nobody {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        // User nobody may have no access to the binary.
        if !text.contains("setpriv") {
            assert!(text.contains("run as root or with CAP_BPF"), "{text}");
            assert_eq!(output.status.code(), Some(5));
        }
    }
}

#[test]
fn second_marker_on_device_is_refused() {
    if !possible("two markers") {
        return;
    }
    let mut lab = Lab::new();
    let here = lab.here.clone();
    let first = lab.marker(&here, "m", &to(5201, "cms/analysis-input"), &[]);
    let second = |device: &str, pin: &str| {
        let mut command = lab.tag(&here);
        command.args(["run", "--interface", device, "--pin"]).arg(lab.pin(pin));
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (device, pin, words) in [
        ("pm0", "m", "another penstock tag run uses"),
        ("lo", "m", "another penstock tag run uses"),
        ("pm0", "other", "another penstock tag run labels packets of pm0"),
    ] {
        let (code, text) = second(device, pin);
        assert_eq!((code, text.lines().count()), (Some(1), 1), "{text}");
        assert!(text.contains(words), "{text}");
    }
    // The first marker continues.
    let packets = lab.capture(|| lab.iperf(&format!("-6 -c {THERE} -n 1M")));
    assert!(of(&packets, 5201).iter().all(|packet| packet.has_label(CMS_INPUT_LABEL)));
    // An ended marker leaves its programs attached: a marker with another pin directory is refused.
    first.end();
    let other = lab.marker(&here, "other", &to(5201, "cms/analysis-input"), &[]);
    let log = other.end();
    assert!(!has_tcx() || log.contains("programs of another penstock tag run"), "{log}");
}

/// The marker labels connections that an agent accepted for a pull from the first block on.
#[test]
fn agent_sockets_are_labelled_by_map() {
    /// Most packets of a connection before its first block: handshakes and the join.
    const HANDSHAKE_PACKETS_MAX: usize = 20;
    if !possible("an agent that sends") {
        return;
    }
    let lab = Lab::new();
    let here = lab.here.clone();
    let path = |name: &str| lab.dir.path().join(name);
    let (root, config, asking) = (path("root"), path("agent.toml"), path("asking"));
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("file"), vec![7; 6 << 20]).unwrap();
    let text = format!(
        "[scitags]\nmarker = \"{}\"\n[[export]]\nname = \"/\"\npath = \"{}\"\nwho = [\"*\"]\n",
        lab.pin("m").display(),
        root.display()
    );
    std::fs::write(&config, text).unwrap();
    let inside = |ns: &str, state: &std::path::Path| {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{ns}")).arg(PENSTOCK).env("PENSTOCK_STATE", state);
        command.env_remove("JOURNAL_STREAM");
        command
    };
    let state = path("agent");
    let (far, target) = (lab.there.clone(), path("copy"));
    let listen = format!("[{HERE}]:0");
    let mut serve = inside(&here, &state);
    serve.args(["serve", "--listen", &listen, "--http", "none", "--json", "--config"]).arg(&config);
    let agent = Agent::spawn(serve);
    let mut login = inside(&far, &asking);
    login.args(["login", &agent.listen, "--fingerprint", &agent.fingerprint, "--token-file"]);
    run(login.arg(state.join("token"))).good();
    let copy = || {
        let mut command = inside(&far, &asking);
        command.args(["cp", "--json", "--scitag", "cms/analysis-input", "--streams", "2"]);
        run(command.arg(agent.url("file")).arg(&target)).good()
    };
    let done = copy();
    assert_eq!(done.json["label"], "none", "{done:?}");
    assert!(done.json["label_note"].as_str().unwrap().contains("tag run"), "{done:?}");
    std::fs::remove_file(&target).unwrap();

    // Without rules, pipe and HTTP only sockets tagged by the agent are labelled.
    let mut command = lab.tag(&here);
    command.args(["run", "--json", "--interface", "pm0", "--pin"]).arg(lab.pin("m"));
    let marker = ReadyProcess::start(command);
    let packets = lab.capture(|| assert_eq!(copy().json["label"], "flow"));
    let port: u32 = agent.listen.rsplit_once(':').unwrap().1.parse().unwrap();
    let mut streams = std::collections::BTreeMap::<u32, Vec<&Packet>>::new();
    for packet in
        packets.iter().filter(|packet| packet.source == HERE && packet.source_port == port)
    {
        streams.entry(packet.destination_port).or_default().push(packet);
    }
    // The control connection is not labelled.
    let mut labelled = 0;
    for packets in streams.values().filter(|packets| packets.len() > 2 * HANDSHAKE_PACKETS_MAX) {
        let rest = &packets[HANDSHAKE_PACKETS_MAX..];
        assert!(rest.iter().all(|packet| packet.has_label(CMS_INPUT_LABEL)), "{rest:?}");
        labelled += rest.len();
    }
    assert!(labelled > 2 * HANDSHAKE_PACKETS_MAX, "{labelled} of {}", packets.len());
    marker.end();
}
