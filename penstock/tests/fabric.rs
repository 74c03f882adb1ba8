//! `penstock fabric` by its command line: results, resumed sweeps, files of the HPCC simulator, mistakes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use serde_json::Value;

fn penstock(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_penstock"))
        .args(arguments)
        .output()
        .expect("the binary starts")
}

fn json(arguments: &[&str]) -> Value {
    let output = penstock(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {arguments:?}"))
}

/// Runs a command that must fail with exit code 2, and returns its one error line.
fn refused(arguments: &[&str]) -> String {
    let output = penstock(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    errors
}

#[test]
fn perftest_goodput_accounts_for_headers() {
    let run = json(&["fabric", "run", "--star", "2", "--iterations", "2000", "--json"]);
    let gbps = run["rows"][0]["average_gigabits_per_second"].as_f64().unwrap();
    assert!((gbps / 92.565 - 1.0).abs() < 0.002, "{gbps}");
    let latency = json(&[
        "fabric",
        "run",
        "--star",
        "2",
        "--workload",
        "write_lat",
        "--iterations",
        "10",
        "--set",
        "nic_latency=500ns",
        "--json",
    ]);
    // 2 + 62 + 16 + 20 bytes of 80 ps on two lines, 2 us of links, and the hosts' delays.
    let us = latency["rows"][0]["average_microseconds"].as_f64().unwrap();
    assert!((us - 2.516).abs() < 1e-9, "{us}");
    let all = json(&["fabric", "run", "--star", "2", "--all", "--iterations", "20", "--json"]);
    assert_eq!(all["rows"].as_array().unwrap().len(), 23);
}

#[test]
fn run_report_folder_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let run = json(&[
        "fabric",
        "run",
        "--star",
        "9",
        "--workload",
        "incast",
        "--size",
        "500kB",
        "--set",
        "cc=none",
        "--set",
        "pfc_threshold=static",
        "--set",
        "pfc_xoff=100k",
        "--set",
        "pfc_xon=80k",
        "--json",
        "--out",
        out.to_str().unwrap(),
    ]);
    assert_eq!((run["flows_finished"].as_u64(), run["dropped"].as_u64()), (Some(8), Some(0)));
    assert!(run["pauses"].as_u64() > Some(0) && run["fairness"].as_f64() > Some(0.9));
    assert_eq!(run["parameters"]["cc"], "none");
    for file in ["result.json", "flows.csv", "ports.csv", "report.html", "fct.txt", "pfc.txt"] {
        let text = std::fs::read_to_string(out.join(file)).unwrap_or_else(|_| panic!("{file}"));
        assert!(text.lines().count() > 1, "{file}");
    }
    parquet_has_the_flows(&out.join("results.parquet"));
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    for words in [
        "Goodput over time",
        "Queues over time",
        "Pauses over time",
        "Completion times",
        "Slowdown of flows of 500 kB",
        "s0&gt;h0",
        "(us)",
        "(Gb/s)",
        "<th>cc</th><td>none</td>",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    // Sampling during the run changes no result.
    let plain = json(&[
        "fabric",
        "run",
        "--star",
        "9",
        "--workload",
        "incast",
        "--size",
        "500kB",
        "--set",
        "cc=none",
        "--set",
        "pfc_threshold=static",
        "--set",
        "pfc_xoff=100k",
        "--set",
        "pfc_xon=80k",
        "--json",
    ]);
    for key in ["digest", "events", "simulated_seconds", "ports"] {
        assert_eq!(plain[key], run[key], "{key}");
    }
    let unfinished =
        penstock(&["fabric", "run", "--star", "3", "--workload", "incast", "--until", "1us"]);
    assert_eq!(unfinished.status.code(), Some(3));
}

/// Asserts the columns of eight flows of 500 kB.
fn parquet_has_the_flows(path: &Path) {
    let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 8);
    for (number, row) in rows.iter().enumerate() {
        let field = |name: &str| {
            let (_, field) = row.get_column_iter().find(|(of, _)| *of == name).expect(name);
            field.to_string()
        };
        assert_eq!(field("from"), format!("\"h{}\"", number + 1));
        assert_eq!((field("bytes"), field("delivered_bytes")), ("500000".into(), "500000".into()));
        assert_eq!(field("state"), "\"done\"");
        let seconds: f64 = field("completion_seconds").parse().unwrap();
        // Eight times 500 kB at 12.5 GB/s, or a little less for the first flow.
        assert!((250e-6..1e-3).contains(&seconds), "{seconds}");
    }
}

/// SPECIFICATION.md: 1.5 KiB for each flow and port, reports included.
#[test]
fn memory_per_flow_stays_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let peak = |flows: u64| {
        let trace = folder.path().join("trace");
        let line =
            |n: u64| format!("{}us h{} h{} 2000\n", n / 50, n % 128, (n * 7 + 1 + n / 128) % 128);
        let lines: String =
            (0..flows).filter(|n| n % 128 != (n * 7 + 1 + n / 128) % 128).map(line).collect();
        std::fs::write(&trace, lines).unwrap();
        let run = json(&[
            "fabric",
            "run",
            "--fat-tree",
            "8",
            "--workload",
            "trace",
            "--trace",
            trace.to_str().unwrap(),
            "--json",
        ]);
        assert_eq!(run["flows_finished"], run["flows"]);
        (run["flows"].as_u64().unwrap(), run["memory_peak_bytes"].as_u64().unwrap())
    };
    let (few, many) = (peak(100), peak(100_000));
    // Both runs have the same ports, so the difference is due to flows.
    let each = (many.1 - few.1) as f64 / (many.0 - few.0) as f64;
    assert!(each < 1536.0, "{each} bytes for each of {} flows", many.0);
    // 768 ports, and the program itself.
    assert!(few.1 < 768 * 1536 + (64 << 20), "{} bytes", few.1);
}

/// Failures of a spine, a pause storm and a trace, by options and files.
#[test]
fn failures_are_reported_by_name() {
    let run = json(&[
        "fabric",
        "run",
        "--spine-leaf",
        "2x2x2",
        "--workload",
        "all_to_all",
        "--size",
        "1MB",
        "--fail",
        "spine1@100us",
        "--repair",
        "spine1@1ms",
        "--set",
        "reroute=50us",
        "--set",
        "recovery=selective",
        "--json",
    ]);
    assert_eq!((run["flows_finished"].as_u64(), run["flows_failed"].as_u64()), (Some(12), Some(0)));
    assert!(run["lost"].as_u64() > Some(0));
    let stalled = run["stalled_seconds_max"].as_f64().unwrap();
    assert!(stalled > 20e-6 && stalled < 2e-3, "{stalled}");
    let stormed = json(&[
        "fabric",
        "run",
        "--star",
        "4",
        "--workload",
        "incast",
        "--storm",
        "h0@10us+1s",
        "--set",
        "timeout_exponent=20",
        "--json",
    ]);
    assert!(stormed["simulated_seconds"].as_f64() > Some(1.0));
    assert_eq!(stormed["cyclic_waits"], Value::Array(Vec::new()));
}

/// Compares all results but wall-clock times, with a link failure; the page names the thread count.
#[test]
fn results_do_not_depend_on_threads() {
    let folder = tempfile::tempdir().unwrap();
    let run = |threads: &str| {
        let out = folder.path().join(threads);
        let mut run = json(&[
            "fabric",
            "run",
            "--fat-tree",
            "4",
            "--workload",
            "poisson",
            "--load",
            "0.6",
            "--time",
            "200us",
            "--fail",
            "middle0-core0@50us",
            "--set",
            "pfc_alpha=0.002",
            "--threads",
            threads,
            "--out",
            out.to_str().unwrap(),
            "--json",
        ]);
        assert_eq!(run["threads"].to_string(), threads);
        let page = std::fs::read_to_string(out.join("report.html")).unwrap();
        assert!(page.contains(&format!("on {threads} thread")), "{page}");
        let keys = ["threads", "wall_seconds", "events_per_second", "hops_per_second"];
        for key in keys.into_iter().chain(["memory_peak_bytes"]) {
            assert!(run.as_object_mut().unwrap().remove(key).is_some(), "{key}");
        }
        let files = ["flows.csv", "ports.csv", "fct.txt", "pfc.txt"];
        let files = files.map(|file| std::fs::read_to_string(out.join(file)).unwrap());
        assert!(files.iter().all(|text| text.lines().count() > 1), "there were pauses, too");
        (run, files)
    };
    let one = run("1");
    for threads in ["2", "3", "4"] {
        assert!(run(threads) == one, "{threads} threads");
    }
    // One switch cannot be partitioned.
    let star =
        json(&["fabric", "run", "--star", "3", "--workload", "incast", "--threads", "4", "--json"]);
    assert_eq!(star["threads"], 1);
    let refused = penstock(&["fabric", "run", "--star", "3", "--threads", "0"]);
    assert_eq!(refused.status.code(), Some(2));
}

/// Equal bytes for any number of threads, and after a sweep was interrupted in the middle of a line.
#[test]
fn sweep_resumes_identically_on_any_threads() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = |file: &Path, jobs: &str| {
        let output = penstock(&[
            "fabric",
            "sweep",
            "--star",
            "5",
            "--workload",
            "incast",
            "--size",
            "200kB",
            "--grid",
            "cc=none,dcqcn,hpcc",
            "--grid",
            "seed=1,2",
            "--jobs",
            jobs,
            "--out",
            file.to_str().unwrap(),
        ]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read_to_string(file).unwrap()
    };
    let one = sweep(&folder.path().join("one"), "1");
    assert_eq!(one.lines().count(), 6);
    for jobs in ["2", "8"] {
        assert_eq!(sweep(&folder.path().join(jobs), jobs), one);
    }
    let cut = folder.path().join("cut");
    std::fs::write(&cut, &one[..one.len() / 2]).unwrap();
    assert_eq!(sweep(&cut, "2"), one);
}

#[test]
fn hpcc_simulator_files_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("topology.txt", "3 1 2\n2\n0 2 100Gbps 1us 0\n1 2 100Gbps 0.001ms 0\n");
    write("flow.txt", "2\n0 1 3 100 1000000 2\n1 0 3 100 1000 2.001\n");
    write(
        "config.txt",
        "ENABLE_QCN 1\nCC_MODE 3\nPACKET_PAYLOAD_SIZE 1000\nTOPOLOGY_FILE mix/topology.txt\nFLOW_FILE mix/flow.txt\n\
         U_TARGET 0.95\nMI_THRESH 0\nRATE_AI 50Mb/s\nKMAX_MAP 1 100000000000 1600\nKMIN_MAP 1 100000000000 400\n\
         PMAX_MAP 1 100000000000 0.2\nSIMULATOR_STOP_TIME 3\nQLEN_MON_START 2000000000\nQLEN_MON_END 2000010000\n",
    );
    let config = folder.path().join("config.txt");
    let out = folder.path().join("out");
    let run = json(&[
        "fabric",
        "run",
        "--hpcc",
        config.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
        "--json",
    ]);
    assert_eq!(run["flows_finished"], 2);
    assert_eq!(run["parameters"]["cc"], "hpcc");
    let fct = std::fs::read_to_string(out.join("fct.txt")).unwrap();
    let first: Vec<&str> = fct.lines().next().unwrap().split(' ').collect();
    assert_eq!(first[..6], ["0b000001", "0b000101", "10000", "100", "1000000", "2000000000"]);
    assert_eq!(first[7], "88000");
    assert!(first[6].parse::<u64>().unwrap() > 88_000);
    let queues = std::fs::read_to_string(out.join("qlen.txt")).unwrap();
    assert!(queues.starts_with("time: ") && queues.contains("\n2 1 "), "{queues}");

    for (file, text, line) in [
        ("topology.txt", "3 1 2\n2\n0 2 0Gbps 1us 0\n", "topology.txt:3: "),
        ("topology.txt", "3 1 1\n2\n0 2 100Gbps 1us 0\n", "host 'n1' has no link"),
        ("topology.txt", "3 1 2 4 5\n", "topology.txt:1: "),
        // File variants of PowerTCP and SimAI.
        ("topology.txt", "3 1 1 2\n2\n0 2 100Gbps 1us 0\n1 2 100Gbps 1us 0\n", ""),
        (
            "topology.txt",
            "4 1 1 1 3 A100\n3\n2\n0 2 1Gbps 1us 0\n1 2 1Gbps 1us 0\n2 3 1Gbps 1us 0\n",
            "",
        ),
        ("flow.txt", "1\n0 1 3 100 1000000 2\n", ""),
        ("flow.txt", "1\n0 9 3 100 1000000 2\n", "there is no node 9"),
        ("flow.txt", "1\n0 1 3 100 -5 2\n", "flow.txt:2: "),
        ("flow.txt", "2\n0 1 3 100 5 2\n", "flow.txt:2: "),
        ("config.txt", "CC_MODE 10\n", "config.txt:1: "),
        ("config.txt", "LINK_DOWN 5 x 1\n", "config.txt:1: "),
        (
            "config.txt",
            "TOPOLOGY_FILE topology.txt\nFLOW_FILE flow.txt\nLINK_DOWN 5 0 1\n",
            "no link is between 0 and 1",
        ),
        (
            "config.txt",
            "TOPOLOGY_FILE topology.txt\nFLOW_FILE flow.txt\nLINK_DOWN 9000000 0 2\nSIMULATOR_STOP_TIME 20\n",
            "",
        ),
        ("config.txt", "CC_MODE 3\n", "config.txt:1: "),
    ] {
        let kept = std::fs::read_to_string(folder.path().join(file)).unwrap();
        write(file, text);
        if line.is_empty() {
            json(&["fabric", "run", "--hpcc", config.to_str().unwrap(), "--json"]);
        } else {
            let error = refused(&["fabric", "run", "--hpcc", config.to_str().unwrap()]);
            assert!(error.contains(line), "{error}");
        }
        write(file, &kept);
    }
}

/// Two hosts of a leaf send to one of another over two spines. With LINK_DOWN a spine loses a leaf link 100 us after the
/// flows began.
fn hpcc_set_up(folder: &Path, keys: &str) -> PathBuf {
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    write(
        "topology.txt",
        "8 4 8\n4 5 6 7\n0 4 100Gbps 1us 0\n1 4 100Gbps 1us 0\n2 5 100Gbps 1us 0\n3 5 100Gbps 1us 0\n\
         4 6 100Gbps 1us 0\n4 7 100Gbps 1us 0\n5 6 100Gbps 1us 0\n5 7 100Gbps 1us 0\n",
    );
    let flow = |number: u32| format!("{} 2 3 100 2000000 2\n", number % 2);
    write("flow.txt", &format!("8\n{}", (0..8).map(flow).collect::<String>()));
    let config = format!(
        "TOPOLOGY_FILE topology.txt\nFLOW_FILE flow.txt\nPACKET_PAYLOAD_SIZE 1000\nL2_ACK_INTERVAL 1\nRATE_AI 20Mb/s\n\
         RATE_HAI 200Mb/s\nRP_TIMER 300\nEWMA_GAIN 0.00390625\nSIMULATOR_STOP_TIME 3\nBUFFER_SIZE 32\n\
         KMIN_MAP 1 100000000000 400\nKMAX_MAP 1 100000000000 1600\nPMAX_MAP 1 100000000000 0.2\n{keys}\n"
    );
    write("config.txt", &config);
    folder.join("config.txt")
}

/// The HPCC simulator reroutes at the instant of a failure.
#[test]
fn hpcc_link_down_reroutes_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let config = hpcc_set_up(folder.path(), "CC_MODE 1\nHAS_WIN 0\nLINK_DOWN 100 4 6");
    let config = config.to_str().unwrap();
    let run = json(&["fabric", "run", "--hpcc", config, "--json"]);
    assert_eq!(run["flows_finished"], 8);
    assert!(run["lost"].as_u64() > Some(0));
    let stalled = run["stalled_seconds_max"].as_f64().unwrap();
    assert!(stalled < 500e-6, "{stalled}");
    // Flows begin after 2 s and keep the receiver's link busy for about 2 ms.
    let busiest =
        run["ports"].as_array().unwrap().iter().map(|port| port["utilisation"].as_f64().unwrap());
    let busiest = busiest.fold(0.0, f64::max);
    assert!((0.4..=1.0).contains(&busiest), "{busiest}");
    let set = ["--set", "reroute=5ms", "--set", "timeout_exponent=8"];
    let later = json(&[&["fabric", "run", "--hpcc", config, "--json"][..], &set].concat());
    assert!(later["stalled_seconds_max"].as_f64() > Some(0.004), "it can still be set");
}

/// Without ECN marks DCQCN never slows down; its window still limits it, and the requested congestion control runs.
#[test]
fn hpcc_enable_qcn_stops_marking_only() {
    let folder = tempfile::tempdir().unwrap();
    for keys in ["CC_MODE 1\nENABLE_QCN 0", "ENABLE_QCN 0\nCC_MODE 1"] {
        let config = hpcc_set_up(folder.path(), keys);
        let run = json(&["fabric", "run", "--hpcc", config.to_str().unwrap(), "--json"]);
        assert_eq!(
            (run["parameters"]["cc"].as_str(), run["marks"].as_u64()),
            (Some("dcqcn"), Some(0))
        );
        assert_eq!(run["parameters"]["ecn"], "false");
    }
    let config = hpcc_set_up(folder.path(), "CC_MODE 1\nENABLE_QCN 1\nHAS_WIN 0");
    let run = json(&["fabric", "run", "--hpcc", config.to_str().unwrap(), "--json"]);
    assert!(run["marks"].as_u64() > Some(0));
}

/// Round-trip time and window follow the HPCC simulator's formulas; the result lists ignored keys.
#[test]
fn hpcc_keys_are_followed_or_noted() {
    let folder = tempfile::tempdir().unwrap();
    let run = |keys: &str| {
        let config = hpcc_set_up(folder.path(), keys);
        json(&["fabric", "run", "--hpcc", config.to_str().unwrap(), "--json"])
    };
    let one = run("CC_MODE 7\nHAS_WIN 1\nVAR_WIN 1");
    // 8 us of delays and 4 x 80 ns for a payload of 1000 bytes; 100 Gb/s times that.
    assert_eq!(one["parameters"]["base_rtt"], "8320ns");
    assert_eq!(one["parameters"]["window_bytes"], "104000");
    let without = run("CC_MODE 7\nHAS_WIN 0\nVAR_WIN 1");
    assert_ne!(one["digest"], without["digest"], "TIMELY takes the window");
    let queues = [&one, &without].map(|run| run["queue_bytes_max"].as_u64().unwrap());
    assert!(queues[0] < queues[1], "{queues:?}");
    let hpcc = "CC_MODE 3\nVAR_WIN 1\nMULTI_RATE 0\n";
    let usual = run(hpcc);
    for key in ["MULTI_RATE 1", "SAMPLE_FEEDBACK 1", "RATE_BOUND 0", "FAST_REACT 0", "INT_MULTI 4"]
    {
        let other = run(&format!("{hpcc}{key}"));
        assert_ne!(other["digest"], usual["digest"], "{key}");
        assert_eq!(other["flows_finished"], 8, "{key}");
    }
    let noted = run("CC_MODE 1\nLB_MODE 3\nL2_ACK_INTERVAL 16");
    let warnings = noted["warnings"].to_string();
    assert!(warnings.contains("LB_MODE has no meaning here"), "{warnings}");
}

#[test]
fn mistakes_print_one_line_with_remedy() {
    for (arguments, words) in [
        (&["fabric", "run"][..], "no network"),
        (&["fabric", "run", "--star", "1"], "fewer than two hosts"),
        (&["fabric", "run", "--star", "3", "--set", "ccc=none"], "penstock fabric parameters"),
        (&["fabric", "run", "--star", "3", "--set", "cc=vegas"], "hpcc"),
        (&["fabric", "run", "--star", "3", "--set", "buffer=10k"], "larger buffer"),
        (&["fabric", "run", "--star", "3", "--from", "h9"], "there is no host 'h9'"),
        (&["fabric", "run", "--star", "3", "--rate", "0"], "nothing would move"),
        (&["fabric", "run", "--fat-tree", "3"], "2, 4, 6"),
        (&["fabric", "run", "--spine-leaf", "2x8"], "2x8x4"),
        (&["fabric", "run", "--star", "99999999"], "hosts"),
        (&["fabric", "run", "--star", "3", "--workload", "poisson", "--load", "9"], "--load"),
        (&["fabric", "run", "--star", "3", "--workload", "poisson", "--sizes", "x"], "web-search"),
        (
            &["fabric", "run", "--star", "3", "--workload", "read_bw", "--set", "cc=hpcc"],
            "a read has no acknowledgements",
        ),
        (&["fabric", "run", "--star", "3", "--workload", "incast", "--senders", "3"], "--senders"),
        (&["fabric", "run", "--star", "3", "--fail", "h0-s9@1ms"], "h0-s0"),
        (&["fabric", "run", "--star", "3", "--fail", "h0-s0"], "NAME@TIME"),
        (&["fabric", "run", "--star", "3", "--storm", "h0@1ms"], "h0@1ms+25s"),
        (&["fabric", "run", "--star", "3", "--storm", "s0@1ms+1s"], "there is no host 's0'"),
        (&["fabric", "run", "--star", "3", "--workload", "trace"], "--trace"),
        (&["fabric", "run", "--star", "3", "--workload", "read_bw", "--set", "cc=bbr"], "no reads"),
        (&["fabric", "sweep", "--star", "3", "--grid", "cc"], "NAME=VALUE"),
        (&["fabric", "sweep", "--star", "3", "--grid", "cc=x"], "cc: 'x'"),
        (
            &["fabric", "run", "--star", "3", "--set", "seed=18446744073709551616"],
            "is not a whole number up to 18446744073709551615",
        ),
        (
            &["fabric", "sweep", "--star", "3", "--grid", "cc=hpcc", "--out", "/dev/zero"],
            "no regular file",
        ),
    ] {
        let error = refused(arguments);
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
}
