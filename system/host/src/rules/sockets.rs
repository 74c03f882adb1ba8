//! Socket rules: limits of buffers that programs set, default buffers, zero-copy memory.

use super::{
    Case, RULE, Rule, Verdict, at_least, host, no_op, ok, setting_where, together, unknown,
};
use crate::goal::Goal;

const FASTERDATA: &str = "fasterdata.es.net/host-tuning/linux/test-measurement-host-tuning";
const BIG: &str = "esnet/testing-harness: utils/enable_BIG.sh";
const OSG: &str = "osg-htc/networking: fasterdata-tuning.sh";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "socket-max",
        reads: "net.core.rmem_max, net.core.wmem_max",
        wants: "2 x the most of tcp_rmem and tcp_wmem, up to 2 GiB - 1",
        why: "bounds what programs ask for with SO_RCVBUF and SO_SNDBUF, as iperf3 -w, GridFTP and XRootD do; TCP's own \
              sizing goes by tcp_rmem and tcp_wmem",
        risk: "a program that asks turns TCP's own sizing off for its sockets",
        sources: &[FASTERDATA, "perfsonar/toolkit: scripts/configure_sysctl", OSG],
        weight: 4,
        judge: |case| {
            let most = |bytes| i64::try_from(Goal::socket_bytes(bytes)).unwrap_or(i64::MAX);
            let verdict = together(vec![
                at_least(case, "net.core.rmem_max", most(case.goal.receive_bytes())),
                at_least(case, "net.core.wmem_max", most(case.goal.send_bytes())),
            ]);
            host("socket-max", verdict)
        },
        ..RULE
    },
    Rule {
        name: "socket-default",
        reads: "net.core.rmem_default, net.core.wmem_default",
        wants: "to be left alone: under 16 MiB",
        why: "every UDP and raw socket gets it; TCP does not read it",
        risk: "memory that any local program can take",
        sources: &["Documentation/admin-guide/sysctl/net.rst"],
        contradicted: &[
            "osg-htc sets a quarter of the most: 512 MiB for each UDP socket of a 100G host",
        ],
        weight: 3,
        judge: |case| {
            const STOCK: &str = "212992";
            let good = |have: &str| have.parse::<u64>().is_ok_and(|have| have <= 16 << 20);
            let verdict = together(vec![
                setting_where(case, "net.core.rmem_default", STOCK, good),
                setting_where(case, "net.core.wmem_default", STOCK, good),
            ]);
            host("socket-default", verdict)
        },
        ..RULE
    },
    Rule {
        name: "optmem",
        reads: "net.core.optmem_max",
        wants: "1 MiB for MSG_ZEROCOPY",
        why: "the kernel's notes on buffers that are still on their way come out of it; iperf3 -Z and movers that send \
              without copying stall when it is used up",
        risk: "1 MiB for each socket of any program",
        sources: &[BIG, "bltierney/fasterdata-tuning: fasterdata_tuning.py"],
        weight: 2,
        judge: |case| host("optmem", at_least(case, "net.core.optmem_max", 1 << 20)),
        ..RULE
    },
    Rule {
        name: "max-skb-frags",
        reads: "net.core.max_skb_frags, CONFIG_MAX_SKB_FRAGS",
        wants: "45 where the kernel is built with 45, for BIG TCP with zero copy",
        why: "45 pages of 4 KiB are the 185,000 bytes of BIG TCP; with 17 a packet of pages ends at 68 KiB",
        risk: "above 17 some drivers copy",
        sources: &[BIG],
        weight: 1,
        judge: |case| host("max-skb-frags", frags(case)),
        ..RULE
    },
];

fn frags(case: &Case<'_>) -> Verdict {
    let Some(built) = case.facts.kernel.options.get("MAX_SKB_FRAGS") else {
        return unknown("how the kernel was built is not known");
    };
    match built.parse::<i64>() {
        Ok(built) if built > 17 => at_least(case, "net.core.max_skb_frags", built),
        Ok(built) => no_op(format!("the kernel is built with {built}, and takes no more")),
        Err(_) => ok("17"),
    }
}
