//! `penstock sample`: sends packet samples and counters of this host to sFlow collectors.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use penstock_agent::marking::privilege;
use penstock_sampler::{
    Attach, Config, Notice, PacketDirection, RATE_MAX, RING_BYTES, RING_BYTES_MAX, RING_BYTES_MIN,
    Sampler, SamplerError, SamplerStatus,
};
use penstock_sys::event::EventFd;
use penstock_sys::fs::describe;
use penstock_units::ByteCount;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit::{Code, CommandFailure, OrExit};
use crate::json::sample as json;
use crate::tag::kernel_code;

/// Default UDP port of sFlow collectors.
const COLLECTOR_PORT: u16 = 6343;

/// Datagram size that fits an MTU of 1500 bytes with the headers of IPv6 and UDP.
const DATAGRAM_BYTES: usize = 1400;

/// Send packet samples and counters of this host to sFlow collectors
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Takes one of N packets by chance where they enter and leave the interfaces (eBPF at tc; whatever is \
attached there stays), and sends the first 160 bytes of each as sFlow version 5, with counters of the \
interfaces and of the host's processors, memory and disks. Without --rate N follows the speed: 400G \
20000, 100G 5000, 10G 500, not known 1000. What was lost is counted in the samples and in the status.

Runs until SIGINT or SIGTERM, and then leaves nothing attached. The log names an unreachable collector once a \
minute. Needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; gives up all others once attached.

--json prints a line when it runs (event started), one after each --polling (status) and a last one (ended); \
docs/json.md has their fields.

Examples:
  penstock sample --collector collector.example.org
  penstock sample --collector 192.0.2.7:6343 --collector '[2001:db8::7]:6343' \\
    --interface eth0 --rate 1000
  penstock sample --collector 127.0.0.1 --interface eth0,eth1 \\
    --egress --polling 1s --json")]
pub(crate) struct SampleArgs {
    /// Collectors, by name or address; port 6343 unless given
    #[arg(long, value_name = "HOST[:PORT]", value_delimiter = ',', required = true)]
    collector: Vec<String>,
    /// Network interfaces; all physical ones that are up unless given
    #[arg(long, value_name = "IF", value_delimiter = ',')]
    interface: Vec<String>,
    /// Sample one of N packets, on every interface
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(RATE_MAX)))]
    rate: Option<u32>,
    /// Only received packets
    #[arg(long, conflicts_with = "egress")]
    ingress: bool,
    /// Only sent packets
    #[arg(long)]
    egress: bool,
    /// Interval between two samples of counters
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = polling)]
    polling: Duration,
    /// Address that identifies this host to collectors [default: the one that the first collector sees]
    #[arg(long, value_name = "ADDR")]
    agent: Option<IpAddr>,
    /// Number that distinguishes several samplers of one host
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    sub_agent: u32,
    /// Size of the ring for waiting samples: a power of two from 4KiB to 256MiB
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = ring)]
    ring: u32,
    /// Hook of the programs: auto, tcx (Linux 6.6), clsact
    #[arg(long, value_name = "HOW", default_value = "auto")]
    attach: Attach,
    /// Print a JSON object for each event; docs/json.md has its fields
    #[arg(long)]
    json: bool,
}

fn polling(text: &str) -> anyhow::Result<Duration> {
    let time = penstock_units::parse_duration(text)?;
    let allowed = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
    if allowed.contains(&time) { Ok(time) } else { Err(anyhow!("use 1s to 24h")) }
}

fn ring(text: &str) -> anyhow::Result<u32> {
    let ByteCount(bytes) = text.parse::<ByteCount>()?;
    let fits =
        |bytes: &u32| bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(bytes);
    let found = u32::try_from(bytes).ok().filter(fits);
    found.with_context(|| {
        format!("use a power of two from 4KiB to 256MiB ({RING_BYTES} by default)")
    })
}

/// Resolves the first address of a collector.
fn address(text: &str) -> anyhow::Result<SocketAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((address, COLLECTOR_PORT).into());
    }
    let port = text.rsplit_once(':').map(|(_, port)| port);
    let is_number =
        |port: &&str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(port) = port.filter(is_number)
        && port.parse::<NonZeroU16>().is_err()
    {
        return Err(anyhow!("collector {text}: {port} is not a port"));
    }
    let with_port = port.is_some_and(|port| port.parse::<u16>().is_ok());
    let resolved =
        if with_port { text.to_socket_addrs() } else { (text, COLLECTOR_PORT).to_socket_addrs() };
    let remedy = || format!("collector {text}: give a name that resolves, or ADDRESS:PORT");
    let first = resolved.with_context(remedy)?.next();
    first.ok_or_else(|| anyhow!(remedy()))
}

pub(crate) fn run(args: SampleArgs) -> Result<Code, CommandFailure> {
    let collectors: Vec<SocketAddr> = args
        .collector
        .iter()
        .map(|one| address(one))
        .collect::<Result<_, _>>()
        .or_exit(Code::Usage)?;
    let directions = match (args.ingress, args.egress) {
        (true, _) => vec![PacketDirection::Ingress],
        (_, true) => vec![PacketDirection::Egress],
        _ => vec![PacketDirection::Ingress, PacketDirection::Egress],
    };
    let config = Config {
        interfaces: args.interface,
        directions,
        rate: args.rate,
        collectors,
        agent: args.agent,
        sub_agent: args.sub_agent,
        polling: args.polling,
        ring_bytes: args.ring,
        datagram_bytes: DATAGRAM_BYTES,
        attach: args.attach,
    };
    let mut sampler = Sampler::start(&config).map_err(failure)?;
    // Capabilities are per thread: drop them before other threads start.
    privilege::drop_capabilities()?;
    let stop = Arc::new(EventFd::new()?);
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("signals".into()).spawn({
        let stop = Arc::clone(&stop);
        move || {
            for _ in signals.forever() {
                let _ = stop.signal();
            }
        }
    })?;
    let as_json = args.json;
    print(&started(&sampler, &config), as_json, || started_lines(&sampler));
    let ran = sampler.run(&stop, &mut |notice| match notice {
        Notice::Collector { collector, failed, error } => tracing::warn!(
            "collector {collector}: {}: {failed} datagrams could not be sent so far; retrying",
            describe(&error)
        ),
        Notice::Gone(name) => {
            tracing::warn!("interface {name} is gone: start again to sample another of this name")
        }
        Notice::Counters(error) => tracing::warn!("cannot read the counters: {}", describe(&error)),
        Notice::Counted(status) => {
            print(&json::SampleEventJson::Status(counted(&status)), as_json, String::new)
        }
    });
    let status = sampler.status();
    drop(sampler);
    print(&json::SampleEventJson::Ended(counted(&status)), as_json, || ended_lines(&status));
    ran?;
    Ok(Code::Done)
}

fn failure(error: SamplerError) -> CommandFailure {
    let code = match &error {
        SamplerError::Kernel(error) => kernel_code(error),
        SamplerError::Io(_) => Code::Failed,
        _ => Code::Usage,
    };
    CommandFailure::new(code, error)
}

/// Prints to standard output without buffering. A closed output does not end the service.
fn print(event: &json::SampleEventJson, as_json: bool, lines: impl FnOnce() -> String) {
    let mut output = io::stdout();
    let text = if as_json { format!("{}\n", serde_json::json!(event)) } else { lines() };
    if let Err(error) = output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        tracing::debug!("cannot print: {error}");
    }
}

fn started(sampler: &Sampler, config: &Config) -> json::SampleEventJson {
    let status = sampler.status();
    let attached = sampler.attached().iter().map(|one| {
        let of = status.interfaces.iter().find(|of| of.name == one.interface);
        json::SamplerAttachmentJson {
            interface: one.interface.clone(),
            ifindex: of.map(|of| of.index),
            direction: one.direction.as_str(),
            by: one.by,
            rate: of.map(|of| of.rate),
        }
    });
    json::SampleEventJson::Started(json::SamplerStartJson {
        agent: sampler.agent().to_string(),
        sub_agent: config.sub_agent,
        polling_s: config.polling.as_secs_f64(),
        ring_bytes: config.ring_bytes,
        attached: attached.collect(),
        collectors: config.collectors.iter().map(ToString::to_string).collect(),
    })
}

fn started_lines(sampler: &Sampler) -> String {
    let status = sampler.status();
    let rate =
        |name: &str| status.interfaces.iter().find(|of| of.name == name).map_or(0, |of| of.rate);
    let attached = sampler.attached().iter().map(|one| {
        let (name, direction) = (&one.interface, one.direction.as_str());
        format!("sampling {name} {direction} ({}): 1 of {} packets\n", one.by, rate(name))
    });
    let to = status
        .collectors
        .iter()
        .map(|one| format!("sending to {} as {}\n", one.address, sampler.agent()));
    attached.chain(to).collect()
}

fn counted(status: &SamplerStatus) -> json::SamplerStatusJson {
    let interfaces = status.interfaces.iter().map(|one| json::SampleInterfaceJson {
        interface: one.name.clone(),
        ifindex: one.index,
        rate: one.rate,
        packets: one.packets,
        samples: one.samples,
        drops: one.drops,
    });
    let collectors = status.collectors.iter().map(|one| json::SampleCollectorJson {
        collector: one.address.to_string(),
        datagrams: one.datagrams,
        bytes: one.bytes,
        send_errors: one.errors,
    });
    let sum = |of: fn(&penstock_sampler::SampledInterface) -> u64| {
        status.interfaces.iter().map(of).sum::<u64>()
    };
    json::SamplerStatusJson {
        uptime_s: status.uptime.as_secs_f64(),
        packets: sum(|one| one.packets),
        samples: sum(|one| one.samples),
        drops: sum(|one| one.drops),
        datagrams: status.datagrams,
        send_errors: status.collectors.iter().map(|one| one.errors).sum(),
        too_long: status.too_long,
        interfaces: interfaces.collect(),
        collectors: collectors.collect(),
    }
}

fn ended_lines(status: &SamplerStatus) -> String {
    let mut text = String::new();
    for one in &status.interfaces {
        text += &format!(
            "{}: {} packets, {} samples, {} lost\n",
            one.name, one.packets, one.samples, one.drops
        );
    }
    for one in &status.collectors {
        text += &format!(
            "{}: {} datagrams, {} did not leave\n",
            one.address, one.datagrams, one.errors
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collector_is_name_or_address() {
        for (text, meant) in [
            ("127.0.0.1", "127.0.0.1:6343"),
            ("127.0.0.1:7000", "127.0.0.1:7000"),
            ("::1", "[::1]:6343"),
            ("[::1]:7000", "[::1]:7000"),
        ] {
            assert_eq!(address(text).unwrap().to_string(), meant);
        }
        assert_eq!(address("localhost").unwrap().port(), COLLECTOR_PORT);
        assert!(address("no such host").is_err());
        for port in ["0", "65536", "99999"] {
            let error = address(&format!("127.0.0.1:{port}")).unwrap_err().to_string();
            assert!(error.ends_with(&format!("{port} is not a port")), "{error}");
        }
    }

    #[test]
    fn ring_size_follows_kernel_limits() {
        assert_eq!(ring("4KiB").unwrap(), 4096);
        assert_eq!(ring("1MiB").unwrap(), RING_BYTES);
        for wrong in ["0", "2KiB", "5000", "512MiB", "x"] {
            assert!(ring(wrong).is_err(), "{wrong}");
        }
        assert!(polling("1s").is_ok() && polling("0.5s").is_err() && polling("48h").is_err());
    }
}
