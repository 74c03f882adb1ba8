//! PCI Express rules: lanes, speed and transfer sizes. They plan no changes.

use super::{Case, RULE, Rule, Verdict, differs, each_nic, not_applicable, ok, unknown};
use crate::facts::Nic;

const MLNX: &str = "Mellanox/mlnx-tools: mlnx_tune";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "pcie",
        reads: "current and maximum link speed and width of the card's slot",
        wants: "the slot faster than the card's ports together: 400G needs Gen5 x16 (504 Gb/s), 200G Gen4 x16 (252)",
        why: "a card that trained at fewer lanes or an older generation is slow, and nothing else shows it",
        risk: "none: it is only read; another slot is the remedy",
        sources: &["PCI Express Base Specification 5.0: 128b/130b from 8 GT/s on", MLNX],
        weight: 9,
        judge: |case| each_nic(case, "pcie", |nic| pcie(case, nic)),
        ..RULE
    },
    Rule {
        name: "pcie-transfers",
        reads: "MaxReadReq and MaxPayload of the card, MaxPayload of the port above it (configuration space, as root)",
        wants: "read requests of 512 bytes or more; a payload of what card and port could, from 10 Gb/s on",
        why: "each transfer has a header: with 128 bytes a sixth of the slot's rate is headers",
        risk: "by hand (setpci, or pci=pcie_bus_perf on the kernel's command line): a payload that a bridge on the way \
               does not take stops the card",
        sources: &[
            "PCI Express Base Specification 5.0, 7.5.3.4",
            "Documentation/admin-guide/kernel-parameters.txt",
            MLNX,
        ],
        weight: 2,
        judge: |case| each_nic(case, "pcie-transfers", |nic| transfers(case, nic)),
        ..RULE
    },
];

/// PCI slot without the function, as in `pci 0000:17:00.1`; all ports of a card share it.
fn slot_of(nic: &Nic) -> Option<&str> {
    nic.bus.as_deref()?.rsplit_once('.').map(|(slot, _)| slot)
}

fn pcie(case: &Case<'_>, nic: &Nic) -> Verdict {
    let Some(slot) = nic.pcie else {
        return match &nic.kind {
            Some(_) => not_applicable("a software device"),
            None if nic.bus.as_deref().is_some_and(|bus| !bus.starts_with("pci ")) => {
                not_applicable("it is in no slot")
            }
            None => unknown("its slot is not known"),
        };
    };
    // Line code: 128b/130b from PCIe 3.0 on, 8b/10b before.
    let usable = |gts: f64, width: u32| {
        let coded = if gts >= 8.0 { 128.0 / 130.0 } else { 0.8 };
        gts * f64::from(width) * coded
    };
    let (now, could) =
        (usable(slot.speed_gts, slot.width), usable(slot.speed_gts_max, slot.width_max));
    let have = format!("{} GT/s x{}, {now:.0} Gb/s", slot.speed_gts, slot.width);
    let ports =
        case.nics.iter().filter(|one| slot_of(one).is_some() && slot_of(one) == slot_of(nic));
    let all = ports.filter_map(|port| port.speed_mbps).map(f64::from).sum::<f64>() / 1000.0;
    let own = nic.speed_mbps.map(|mbps| f64::from(mbps) / 1000.0);
    let Some(port) = own.map(|own| own.max(all)) else {
        return if now >= could {
            ok(have)
        } else {
            differs(have, format!("{} GT/s x{}", slot.speed_gts_max, slot.width_max), Vec::new())
        };
    };
    if now >= port {
        return ok(have);
    }
    let want = if could >= port {
        format!(
            "{} GT/s x{}, as the card could: seat it again, or another slot",
            slot.speed_gts_max, slot.width_max
        )
    } else {
        format!(
            "more than the {port:.0} Gb/s of its ports: a slot of a newer generation or more lanes"
        )
    };
    differs(have, want, Vec::new())
}

fn transfers(case: &Case<'_>, nic: &Nic) -> Verdict {
    const READ_REQUEST_BYTES: u32 = 512;
    if case.facts.machine.virtual_machine == Some(true) {
        return not_applicable("a virtual machine's: its host decides");
    }
    let Some(slot) = nic.pcie else {
        return match &nic.kind {
            Some(_) => not_applicable("a software device"),
            None => unknown("its slot is not known"),
        };
    };
    let sizes = (slot.max_read_request_bytes, slot.max_payload_bytes, slot.max_payload_bytes_max);
    let (Some(request), Some(payload), Some(could)) = sizes else {
        return unknown("its configuration space cannot be read: only root may");
    };
    let have = format!("requests of {request} bytes, payload of {payload}");
    let wanted = (request.max(READ_REQUEST_BYTES), payload.max(could));
    if wanted == (request, payload) || !super::nic::fast(case, nic) {
        return ok(have);
    }
    differs(have, format!("{} and {}: by hand, with setpci", wanted.0, wanted.1), Vec::new())
}
