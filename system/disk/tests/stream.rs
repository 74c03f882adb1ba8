//! Streams from a target in this process: equal bytes, and a cause for each fault.

mod target;

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use penstock_disk::controller::RemoteController;
use penstock_disk::nvme::auth::HostSecret;
use penstock_disk::stream::{DiskStreamReport, StreamDestination, StreamParams, stream};
use penstock_disk::{DiskError, DiskHost, DiskLocation, NvmeHostIdentity};
use penstock_protocol::digest::{Algorithm, crc32c};
use penstock_protocol::open::{Mark, PacketLabel};
use target::{TargetBehaviour, TargetFault, TestTarget, pattern};

const HOST_NQN: &str = "nqn.2020-01.org.example:h";
const DISK_BYTES: usize = 3 * (1 << 20) + 1536;

fn params() -> StreamParams {
    StreamParams {
        namespace: None,
        offset: 0,
        length: None,
        rate_bps: 1_000_000_000,
        rtt: None,
        queues: Some(3),
        depth: Some(8),
        size_bytes: 64 << 10,
        writers: 2,
        digest: Algorithm::Crc32c,
    }
}

fn host() -> DiskHost {
    DiskHost::new(NvmeHostIdentity::named(HOST_NQN).unwrap())
}

fn start(behaviour: TargetBehaviour) -> TestTarget {
    TestTarget::start("127.0.0.1:0", pattern(DISK_BYTES), behaviour).unwrap()
}

fn read(
    target: &TestTarget,
    host: &DiskHost,
    params: &StreamParams,
    file: &Path,
) -> Result<DiskStreamReport, DiskError> {
    let location: DiskLocation = target.location().parse()?;
    let controller = RemoteController::connect(&location, host)?;
    let destination = StreamDestination::of(file);
    let stop = AtomicBool::new(false);
    stream(controller, &location.nqn, params, &destination, &stop, &mut |_| {})
}

#[track_caller]
fn fails(fault: TargetFault, words: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("copy");
    let target = start(TargetBehaviour { fault, ..TargetBehaviour::default() });
    let mut host = host();
    host.timeout = Duration::from_millis(300);
    let error = read(&target, &host, &params(), &file).unwrap_err().to_string();
    assert!(error.contains(words), "{fault:?}: {error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{fault:?} leaves a file");
}

#[test]
fn stream_equals_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("copy");
    for (is_reversed, sends_responses) in [(false, false), (false, true), (true, false)] {
        let target =
            start(TargetBehaviour { is_reversed, sends_responses, ..TargetBehaviour::default() });
        let report = read(&target, &host(), &params(), &file).unwrap();
        assert!(fs::read(&file).unwrap() == pattern(DISK_BYTES), "{is_reversed}");
        assert_eq!(report.bytes, DISK_BYTES as u64);
        let digest = format!("{:08x}", crc32c(&pattern(DISK_BYTES)));
        assert_eq!(report.digest.as_deref(), Some(digest.as_str()));
        assert_eq!((report.queues, report.depth, report.label.as_str()), (3, 8, ""));
    }
}

#[test]
fn range_is_read_from_its_offset() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("copy");
    let target = start(TargetBehaviour::default());
    let part = StreamParams { offset: 1024, length: Some(70_144), ..params() };
    read(&target, &host(), &part, &file).unwrap();
    assert!(fs::read(&file).unwrap() == pattern(DISK_BYTES)[1024..1024 + 70_144]);
    for (offset, length) in [(100, None), (0, Some(0)), (0, Some(1 << 40)), (1 << 50, None)] {
        let wrong = StreamParams { offset, length, ..params() };
        let error = read(&target, &host(), &wrong, &file).unwrap_err();
        assert!(matches!(error, DiskError::Range { .. }), "{error}");
    }
}

#[test]
fn limits_of_the_target_are_kept() {
    let target = start(TargetBehaviour::default());
    let null = Path::new("/dev/null");
    // The target grants 4 queues of 64 entries, one of which stays free.
    let many = StreamParams {
        queues: Some(16),
        depth: None,
        rate_bps: 100_000_000_000,
        rtt: Some(Duration::from_millis(50)),
        ..params()
    };
    let report = read(&target, &host(), &many, null).unwrap();
    assert_eq!((report.queues, report.depth), (4, 63));
    let deep = StreamParams { depth: Some(64), ..params() };
    assert!(matches!(read(&target, &host(), &deep, null), Err(DiskError::QueueLimits { .. })));
    for size_bytes in [2048, 65_537, 2 << 20] {
        let wrong = StreamParams { size_bytes, ..params() };
        let error = read(&target, &host(), &wrong, null).unwrap_err();
        assert!(matches!(error, DiskError::ReadSize { most, .. } if most == 1 << 20), "{error}");
    }
}

#[test]
fn faults_of_targets_have_causes() {
    fails(TargetFault::NoInitialization, "does an NVMe/TCP target listen");
    fails(TargetFault::SlowInitialization, "does an NVMe/TCP target listen");
    fails(TargetFault::OtherProtocol, "does not speak NVMe/TCP");
    fails(TargetFault::HostNotAllowed, "--to nqn.2020-01.org.example:h");
    fails(TargetFault::UnknownDisk, "shows this host no disk");
    fails(TargetFault::FailedRead(5), "unrecovered read error");
    fails(TargetFault::TruncatedData(5), "closed the connection");
    fails(TargetFault::Closed(5), "closed the connection");
    fails(TargetFault::SwappedData(5), "comes next");
    fails(TargetFault::ShortData(5), "32768 of 65536 B");
    fails(TargetFault::ReadyToTransfer(5), "which only reads");
}

#[test]
fn missing_target_is_named() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let location: DiskLocation = format!("{unused}/test").parse().unwrap();
    let error = RemoteController::connect(&location, &host()).unwrap_err().to_string();
    assert!(error.contains("is the disk exported there"), "{error}");
}

#[test]
fn only_the_right_secret_reads() {
    let target = start(TargetBehaviour { key: Some([7; 32]), ..TargetBehaviour::default() });
    let null = Path::new("/dev/null");
    let with =
        |secret: Option<[u8; 32]>| DiskHost { secret: secret.map(HostSecret::of_key), ..host() };
    let report = read(&target, &with(Some([7; 32])), &params(), null).unwrap();
    assert_eq!(report.bytes, DISK_BYTES as u64);
    let wrong = read(&target, &with(Some([8; 32])), &params(), null).unwrap_err();
    assert!(wrong.is_refusal() && wrong.to_string().contains("the secret is wrong"), "{wrong}");
    let none = read(&target, &with(None), &params(), null).unwrap_err();
    assert!(none.to_string().contains("demands a secret"), "{none}");
    let closing = TargetBehaviour {
        key: Some([7; 32]),
        closes_at_response: true,
        ..TargetBehaviour::default()
    };
    let closed = read(&start(closing), &with(Some([8; 32])), &params(), null).unwrap_err();
    assert!(closed.to_string().contains("the secret is wrong"), "{closed}");
    let group =
        start(TargetBehaviour { key: Some([7; 32]), dh_group: 1, ..TargetBehaviour::default() });
    let error = read(&group, &with(Some([7; 32])), &params(), null).unwrap_err();
    assert!(error.to_string().contains("DH group 1"), "{error}");
}

#[test]
fn queues_carry_the_scitag() {
    let Some(target) =
        TestTarget::start("[::1]:0", pattern(DISK_BYTES), TargetBehaviour::default())
    else {
        penstock_testkit::skip(penstock_testkit::Requirement::Machine, "no IPv6 here");
        return;
    };
    let mark = Some(Mark { scitag: 0x0C_38, label: PacketLabel::Flow });
    let report = read(&target, &DiskHost { mark, ..host() }, &params(), Path::new("/dev/null"));
    assert_eq!(report.unwrap().label, "flow");
}

#[test]
fn stop_ends_a_silent_stream() {
    let target =
        start(TargetBehaviour { fault: TargetFault::Silent(3), ..TargetBehaviour::default() });
    let location: DiskLocation = target.location().parse().unwrap();
    let controller = RemoteController::connect(&location, &host()).unwrap();
    let stop = AtomicBool::new(false);
    let mut calls = 0;
    let result = stream(
        controller,
        &location.nqn,
        &params(),
        &StreamDestination::Discard,
        &stop,
        &mut |_| {
            calls += 1;
            if calls == 3 {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        },
    );
    assert!(matches!(result, Err(DiskError::Stopped)), "{result:?}");
}
