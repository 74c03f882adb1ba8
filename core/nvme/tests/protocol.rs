//! PDUs and commands as Linux 6.12 exchanges them, and any bytes in their place.

use penstock_nvme::auth::{
    AuthenticationError, AuthenticationStep, HostAuthentication, HostSecret, SecretError,
};
use penstock_nvme::command::{CAPSULE_BYTES, ControllerCapabilities, NvmeCommand, connect_data};
use penstock_nvme::depth::{DepthLimits, ReadDepth, commands_needed};
use penstock_nvme::identify::{
    ControllerData, NamespaceData, NamespaceError, active_namespaces, discovery_entries,
};
use penstock_nvme::nqn;
use penstock_nvme::pdu::{
    InitializationResponse, PDU_HEADER_BYTES, PduError, TargetPdu, initialization_request,
};
use penstock_nvme::queue::{CommandQueue, QueueEvent, QueueFault};
use penstock_nvme::status::{ConnectRefusal, NvmeStatus};
use proptest::prelude::*;
use std::time::Duration;

fn data(command: u16, offset: u32, bytes: u32, flags: u8) -> [u8; PDU_HEADER_BYTES] {
    let mut header = [0; PDU_HEADER_BYTES];
    header[..4].copy_from_slice(&[7, flags, 24, 24]);
    header[4..8].copy_from_slice(&(bytes + 24).to_le_bytes());
    header[8..10].copy_from_slice(&command.to_le_bytes());
    header[12..16].copy_from_slice(&offset.to_le_bytes());
    header[16..20].copy_from_slice(&bytes.to_le_bytes());
    header
}

fn response(command: u16, result: u64, status: u16) -> [u8; PDU_HEADER_BYTES] {
    let mut header = [0; PDU_HEADER_BYTES];
    header[..8].copy_from_slice(&[5, 0, 24, 0, 24, 0, 0, 0]);
    header[8..16].copy_from_slice(&result.to_le_bytes());
    header[20..22].copy_from_slice(&command.to_le_bytes());
    header[22..].copy_from_slice(&(status << 1).to_le_bytes());
    header
}

fn receive(
    queue: &mut CommandQueue,
    header: &[u8; PDU_HEADER_BYTES],
) -> Result<QueueEvent, QueueFault> {
    queue.receive(&TargetPdu::parse(header).unwrap())
}

#[test]
fn initialization_takes_format_zero_only() {
    let request = initialization_request();
    assert_eq!((request[0], request[2], request[4]), (0, 128, 128));
    let mut answer = request;
    answer[0] = 1;
    answer[12..16].copy_from_slice(&0x4_0000_u32.to_le_bytes());
    assert_eq!(
        InitializationResponse::parse(&answer),
        Ok(InitializationResponse { data_alignment: 4 })
    );
    for (at, value, error) in [
        (0, 2, PduError::NotNvmeTcp),
        (4, 127, PduError::NotNvmeTcp),
        (8, 1, PduError::Format(1)),
        (10, 32, PduError::Alignment(32)),
        (11, 1, PduError::Digests),
    ] {
        let mut wrong = answer;
        wrong[at] = value;
        assert_eq!(InitializationResponse::parse(&wrong), Err(error));
    }
    let http = [b'H'; 128];
    assert_eq!(InitializationResponse::parse(&http), Err(PduError::NotNvmeTcp));
}

/// Bytes of the commands that nvme-cli 2.3 and Linux 6.12 send for the same purposes.
#[test]
fn capsules_equal_the_specification() {
    let mut out = Vec::new();
    NvmeCommand::read(1, 0x1_0000_0002, 2048, 1 << 20).write_capsule(7, &[], 4, &mut out);
    let mut expected = vec![4, 0, 72, 0, 72, 0, 0, 0, 0x02, 0x40, 7, 0, 1, 0, 0, 0];
    expected.extend([0; 16]);
    expected.extend([0; 8]);
    expected.extend([0, 0, 16, 0, 0, 0, 0, 0x5A]);
    expected.extend([2, 0, 0, 0, 1, 0, 0, 0, 0xFF, 7, 0, 0]);
    expected.resize(CAPSULE_BYTES, 0);
    assert_eq!(out, expected);

    let mut out = Vec::new();
    let data = connect_data(&[9; 16], None, "nqn.2014-08.org.nvmexpress:x", "nqn.host");
    NvmeCommand::connect(0, 31, 5000).write_capsule(0, &data, 4, &mut out);
    assert_eq!(out.len(), 72 + 1024);
    assert_eq!(out[..8], [4, 0, 72, 72, 0x48, 4, 0, 0]);
    assert_eq!((out[8], out[12], out[8 + 39]), (0x7F, 1, 1));
    assert_eq!(out[8 + 40..8 + 52], [0, 0, 0, 0, 31, 0, 4, 0, 0x88, 0x13, 0, 0]);
    assert_eq!(out[72 + 16..72 + 18], [0xFF, 0xFF]);
    assert_eq!(&out[72 + 512..72 + 520], b"nqn.host");
}

#[test]
fn data_alignment_moves_capsule_data() {
    let mut out = Vec::new();
    NvmeCommand::authentication_send(8).write_capsule(1, &[0xAA; 8], 64, &mut out);
    assert_eq!((out[3], out.len()), (128, 136));
    assert!(out[72..128].iter().all(|byte| *byte == 0) && out[128] == 0xAA);
}

#[test]
fn commands_end_in_any_order() {
    let mut queue = CommandQueue::new(3);
    let issued: Vec<u16> = (0..3).map(|_| queue.issue(100).unwrap()).collect();
    assert_eq!((issued.as_slice(), queue.issue(1)), ([0, 1, 2].as_slice(), None));
    assert_eq!(
        receive(&mut queue, &data(2, 0, 60, 0)),
        Ok(QueueEvent::Data { command: 2, offset: 0, bytes: 60 })
    );
    assert_eq!(queue.data_received(2), Ok(None));
    receive(&mut queue, &data(0, 0, 100, 0b1100)).unwrap();
    let ended = queue.data_received(0).unwrap().unwrap();
    assert_eq!((ended.command, ended.status), (0, NvmeStatus::SUCCESS));
    receive(&mut queue, &data(2, 60, 40, 0b0100)).unwrap();
    assert_eq!(queue.data_received(2), Ok(None));
    assert!(
        matches!(receive(&mut queue, &response(2, 0, 0)), Ok(QueueEvent::Ended(one)) if one.command == 2)
    );
    assert_eq!(queue.outstanding(), 1);
    assert_eq!(queue.issue(1), Some(2));
}

#[test]
fn protocol_faults_end_the_queue() {
    let queue = || {
        let mut queue = CommandQueue::new(2);
        queue.issue(100);
        queue
    };
    let faults = [
        (data(1, 0, 10, 0), QueueFault::UnknownCommand(1)),
        (data(9, 0, 10, 0), QueueFault::UnknownCommand(9)),
        (data(0, 10, 10, 0), QueueFault::OutOfOrder { command: 0, offset: 10, expected: 0 }),
        (
            data(0, 0, 101, 0),
            QueueFault::Excess { command: 0, offset: 0, bytes: 101, expected: 100 },
        ),
        (response(0, 0, 0), QueueFault::Short { command: 0, received: 0, expected: 100 }),
        (response(1, 0, 0), QueueFault::UnknownCommand(1)),
    ];
    for (header, fault) in faults {
        assert_eq!(receive(&mut queue(), &header), Err(fault));
    }
    let mut late = queue();
    receive(&mut late, &data(0, 0, 50, 0b1100)).unwrap();
    assert_eq!(
        late.data_received(0),
        Err(QueueFault::Short { command: 0, received: 50, expected: 100 })
    );
    assert_eq!(queue().data_received(0), Err(QueueFault::UnknownCommand(0)));
    let mut after_last = queue();
    receive(&mut after_last, &data(0, 0, 50, 0b0100)).unwrap();
    after_last.data_received(0).unwrap();
    assert!(receive(&mut after_last, &data(0, 50, 50, 0)).is_err());
}

#[test]
fn failed_commands_need_no_data() {
    let mut queue = CommandQueue::new(1);
    queue.issue(100);
    let ended = receive(&mut queue, &response(0, 0, 0x4080)).unwrap();
    let QueueEvent::Ended(completion) = ended else { panic!("{ended:?}") };
    assert!(completion.status.is_final() && completion.status.to_string().contains("LBA"));
    assert_eq!(queue.outstanding(), 0);
}

#[test]
fn malformed_headers_are_refused() {
    let good = data(0, 0, 8, 0);
    for (at, value) in
        [(0, 4), (0, 99), (1, 1), (1, 0b1000), (2, 72), (3, 28), (4, 31), (16, 9), (7, 255)]
    {
        let mut wrong = good;
        wrong[at] = value;
        assert!(TargetPdu::parse(&wrong).is_err(), "{at} {value}");
    }
    let mut empty = good;
    empty[4] = 24;
    empty[16] = 0;
    assert!(TargetPdu::parse(&empty).is_err());
}

#[test]
fn connect_refusals_have_causes() {
    let status = |code: u16| NvmeStatus::of_entry((0x4000 | code) << 1);
    for (code, result, cause) in [
        (0x182, 1 << 16 | 256, ConnectRefusal::UnknownSubsystem),
        (0x182, 1 << 16 | 512, ConnectRefusal::HostNotAllowed),
        (0x182, 44, ConnectRefusal::QueueLimits),
        (0x184, 1 << 16 | 512, ConnectRefusal::HostNotAllowed),
        (0x191, 0, ConnectRefusal::AuthenticationRequired),
        (0x181, 0, ConnectRefusal::Busy),
        (0x006, 0, ConnectRefusal::Other),
    ] {
        assert_eq!(status(code).connect_refusal(result), cause, "{code:#x}");
    }
}

#[test]
fn identify_reads_sizes_and_limits() {
    let mut bytes = vec![0; 4096];
    bytes[..8].copy_from_slice(&2048_u64.to_le_bytes());
    bytes[26] = 1;
    bytes[128 + 4 + 2] = 12;
    let namespace = NamespaceData::parse(3, &bytes).unwrap();
    assert_eq!((namespace.block_bytes, namespace.bytes()), (4096, 8 << 20));
    bytes[128 + 6] = 8;
    assert_eq!(
        NamespaceData::parse(3, &bytes),
        Err(NamespaceError::BlockSize { number: 3, shift: 8 })
    );
    assert_eq!(NamespaceData::parse(4, &[]), Err(NamespaceError::Missing(4)));

    let mut bytes = vec![0; 4096];
    bytes[4..9].copy_from_slice(b"SN-1 ");
    bytes[77] = 5;
    bytes[1792..1796].copy_from_slice(&65_540_u32.to_le_bytes());
    let controller = ControllerData::parse(&bytes);
    assert_eq!((controller.serial.as_str(), controller.transfer_pages_max), ("SN-1", Some(32)));
    assert_eq!(controller.in_capsule_bytes, 1 << 20);
    assert_eq!(ControllerCapabilities::of(0x01_0F00_007F).queue_entries_max, 128);
    assert_eq!(active_namespaces(&[1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0]), [1, 5]);
}

#[test]
fn secrets_have_a_checksum() {
    // The key 00 to 1f with its CRC-32, by Python.
    let secret = HostSecret::of_key(std::array::from_fn(|at| at as u8));
    let text = secret.text();
    assert_eq!(text, "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:");
    assert_eq!(HostSecret::parse(&text), Ok(secret));
    let damaged = text.replace("AAEC", "AAED");
    assert_eq!(HostSecret::parse(&damaged), Err(SecretError::Checksum));
    for wrong in
        ["", "DHHC-1:00:AAAA:", "DHHC-1:09:AAEC:", "DHHC-2:00:x:", "secret", "DHHC-1:00:*:"]
    {
        assert_eq!(HostSecret::parse(wrong), Err(SecretError::Format), "{wrong}");
    }
}

fn challenge(group: u8, transaction: u16) -> Vec<u8> {
    let mut message = vec![0; 48];
    message[..2].copy_from_slice(&[1, 1]);
    message[4..6].copy_from_slice(&transaction.to_le_bytes());
    message[6..10].copy_from_slice(&[32, 0, 1, group]);
    message[12..16].copy_from_slice(&77_u32.to_le_bytes());
    message[16..].fill(0xC1);
    message
}

#[test]
fn response_depends_on_the_secret() {
    let reply = |key: u8| {
        let secret = HostSecret::of_key([key; 32]);
        let mut host = HostAuthentication::new(&secret, "nqn.h", "nqn.s", 5);
        match host.receive(&challenge(0, 5)) {
            Ok(AuthenticationStep::Send(message)) => message,
            other => panic!("{other:?}"),
        }
    };
    let message = reply(1);
    assert_eq!((message.len(), &message[..2], message[6]), (80, &[1, 2][..], 32));
    // HMAC-SHA-256 of the fields of the challenge, by Python.
    let hex: String = message[16..48].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "ea57340e00431d81e80455d5dbfa4d2bd223c4d34e075852e87930859536a653");
    assert_ne!(message, reply(2));
}

#[test]
fn authentication_failures_have_causes() {
    let secret = HostSecret::of_key([1; 32]);
    let host = || HostAuthentication::new(&secret, "nqn.h", "nqn.s", 5);
    let failure = [0, 0xF1, 0, 0, 5, 0, 1, 1];
    let mut replied = host();
    replied.receive(&challenge(0, 5)).unwrap();
    assert_eq!(replied.clone().receive(&failure), Err(AuthenticationError::WrongSecret));
    assert_eq!(host().receive(&failure), Err(AuthenticationError::Refused(1)));
    assert_eq!(host().receive(&challenge(1, 5)), Err(AuthenticationError::Group(1)));
    assert!(host().receive(&challenge(0, 6)).is_err());
    let mut success = vec![0; 16];
    success[..2].copy_from_slice(&[1, 3]);
    success[4] = 5;
    assert_eq!(replied.receive(&success), Ok(AuthenticationStep::Done));
    assert!(replied.receive(&success).is_err());
}

/// The table of the law in docs/disk.md.
#[test]
fn depth_follows_bandwidth_and_rtt() {
    let limits = DepthLimits { queues_max: 128, depth_max: 128 };
    let ms = Duration::from_millis;
    let one = |depth, size_bytes| ReadDepth { queues: 1, depth, size_bytes };
    assert_eq!(one(128, 128 << 10).rate_bps(ms(27)) / 10_000_000, 497);
    assert_eq!(one(128, 1 << 20).rate_bps(ms(108)) / 100_000_000, 99);
    // 130 Gb/s over 88 ms, as the testbed of the seed reached it: 1.43 GB in flight.
    assert_eq!(commands_needed(130_000_000_000, ms(88), 1 << 20), 1705);
    let chosen = ReadDepth::choose(130_000_000_000, ms(88), 1 << 20, 1, limits);
    assert_eq!((chosen.queues, chosen.depth), (14, 122));
    assert!(chosen.rate_bps(ms(88)) > 130_000_000_000);
    let small = ReadDepth::choose(1_000_000, ms(1), 1 << 20, 2, limits);
    assert_eq!((small.queues, small.depth), (2, 2));
    let most = ReadDepth::choose(u64::MAX, ms(10_000), 4096, 1, limits);
    assert_eq!((most.queues, most.depth), (128, 128));
}

#[test]
fn names_are_checked() {
    assert_eq!(nqn::of_disk("run-7").unwrap(), "nqn.2014-08.org.nvmexpress:penstock:run-7");
    assert_eq!(nqn::export_name("nqn.2014-08.org.nvmexpress:penstock:run-7"), Some("run-7"));
    assert!(nqn::of_disk("nqn.2020-01.org.example:disk").is_ok());
    for wrong in ["", "a b", "../x", ".x", "nqn.", "nqn.a,b", "nqn.a b"] {
        assert!(nqn::of_disk(wrong).is_err(), "{wrong}");
    }
    let uuid = nqn::parse_uuid("0f14d0ab-9605-4a62-a9e4-5ed26688389b").unwrap();
    assert_eq!(
        nqn::of_host(&uuid),
        "nqn.2014-08.org.nvmexpress:uuid:0f14d0ab-9605-4a62-a9e4-5ed26688389b"
    );
    assert_eq!(nqn::parse_uuid("0f14d0ab"), None);
}

proptest! {
    #![proptest_config(penstock_testkit::properties())]

    #[test]
    fn any_bytes_end_without_panic(headers in prop::collection::vec(any::<[u8; 24]>(), 1..20), page in prop::collection::vec(any::<u8>(), 0..5000)) {
        let mut queue = CommandQueue::new(8);
        for _ in 0..8 {
            queue.issue(1 << 16);
        }
        for header in &headers {
            if let Ok(pdu) = TargetPdu::parse(header)
                && let Ok(QueueEvent::Data { command, offset, bytes }) = queue.receive(&pdu)
            {
                prop_assert!(offset + bytes <= 1 << 16);
                let _ = queue.data_received(command);
            }
        }
        let _ = (ControllerData::parse(&page), NamespaceData::parse(1, &page));
        let _ = (active_namespaces(&page), discovery_entries(&page));
        let mut host = HostAuthentication::new(&HostSecret::of_key([1; 32]), "nqn.h", "nqn.s", 1);
        let _ = host.receive(&page);
    }

    /// Each byte of each command arrives once, in any order of commands.
    #[test]
    fn interleaved_data_is_complete(parts in prop::collection::vec((0_u16..4, 1_u32..50), 1..200)) {
        let mut queue = CommandQueue::new(4);
        let mut received = [0_u32; 4];
        for _ in 0..4 {
            queue.issue(1000);
        }
        for (command, bytes) in parts {
            let at = received[usize::from(command)];
            let bytes = bytes.min(1000 - at);
            if bytes == 0 {
                continue;
            }
            let is_last = at + bytes == 1000;
            let flags = if is_last { 0b1100 } else { 0 };
            let event = receive(&mut queue, &data(command, at, bytes, flags)).unwrap();
            prop_assert_eq!(event, QueueEvent::Data { command, offset: at, bytes });
            prop_assert_eq!(queue.data_received(command).unwrap().is_some(), is_last);
            received[usize::from(command)] += bytes;
        }
        prop_assert_eq!(queue.outstanding(), received.iter().filter(|bytes| **bytes < 1000).count());
    }
}
