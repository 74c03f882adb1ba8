//! Untrusted PDUs and data structures of an NVMe/TCP target: each is read within its limits, or ends the queue.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_nvme::auth::{HostAuthentication, HostSecret};
use penstock_nvme::identify::{
    ControllerData, NamespaceData, active_namespaces, discovery_entries, discovery_entry_count,
};
use penstock_nvme::nqn;
use penstock_nvme::pdu::{INITIALIZATION_BYTES, InitializationResponse, PDU_HEADER_BYTES, TargetPdu};
use penstock_nvme::queue::{CommandQueue, QueueEvent};

const READ_BYTES: u32 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    if let Some(pdu) = bytes.first_chunk::<INITIALIZATION_BYTES>()
        && let Ok(response) = InitializationResponse::parse(pdu)
    {
        assert!((4..=128).contains(&response.data_alignment));
    }
    let mut queue = CommandQueue::new(16);
    for _ in 0..16 {
        queue.issue(READ_BYTES);
    }
    let mut received = [0; 16];
    for header in bytes.chunks_exact(PDU_HEADER_BYTES) {
        let Ok(pdu) = TargetPdu::parse(header.try_into().unwrap()) else { continue };
        match queue.receive(&pdu) {
            Ok(QueueEvent::Data { command, offset, bytes }) => {
                let at = &mut received[usize::from(command)];
                assert!(offset == *at && offset + bytes <= READ_BYTES);
                *at += bytes;
                if let Ok(Some(done)) = queue.data_received(command) {
                    assert!(done.status.is_success() && *at == READ_BYTES);
                }
            }
            Ok(QueueEvent::Ended(done)) => {
                let at = received[usize::from(done.command)];
                assert!(!done.status.is_success() || at == READ_BYTES);
                assert!(!done.status.to_string().is_empty());
            }
            Err(fault) => assert!(!fault.to_string().is_empty()),
        }
    }
    let _ = ControllerData::parse(bytes);
    if let Ok(namespace) = NamespaceData::parse(1, bytes) {
        assert!(namespace.bytes() >= u64::from(namespace.block_bytes));
    }
    assert!(active_namespaces(bytes).iter().all(|number| *number != 0));
    assert!(discovery_entries(bytes).len() <= discovery_entry_count(&[0xFF; 16]));
    let mut host = HostAuthentication::new(&HostSecret::of_key([1; 32]), "nqn.h", "nqn.s", 1);
    let _ = host.receive(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(secret) = HostSecret::parse(text) {
            assert_eq!(HostSecret::parse(&secret.text()), Ok(secret));
        }
        let _ = nqn::of_disk(text);
    }
});
