//! Host counters of sFlow (CPU, memory, disks, network) from procfs.
//!
//! Unreadable values are omitted or 0, as sFlow specifies.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use penstock_flows::sflow::counters::{
    Adapter, CounterRecord, GuestCpu, HostAdapters, HostCpu, HostDisk, HostId, HostMemory, HostNet,
};
use penstock_flows::sflow::xdr::{Mac, Opaque, XdrList};
use penstock_sys::machine;
use penstock_sys::net::CountedDevice;

use crate::interface::low;

/// Milliseconds per USER_HZ tick of /proc/stat: USER_HZ is 100 on all current architectures.
const MS_PER_TICK: u64 = 10;
/// Sector size in /proc/diskstats, independent of the device.
const SECTOR_BYTES: u64 = 512;

/// Machine types and operating systems of sFlow's host_descr.
const MACHINE_UNKNOWN: u32 = 0;
const MACHINE_OTHER: u32 = 1;
const MACHINE_X86_64: u32 = 3;
const MACHINE_ARM: u32 = 10;
const OS_LINUX: u32 = 2;

/// Most adapters that are reported: their record must fit a datagram.
const ADAPTERS_MAX: usize = 32;

/// Host description that does not change at run time.
#[derive(Debug)]
pub(crate) struct HostIdentity {
    name: String,
    release: String,
    machine: u32,
    uuid: [u8; 16],
}

impl HostIdentity {
    pub(crate) fn read() -> Self {
        let uuid = fs::read_to_string("/sys/class/dmi/id/product_uuid");
        Self {
            name: machine::host_name(),
            release: machine::kernel_release(),
            machine: match machine::architecture().as_str() {
                "" => MACHINE_UNKNOWN,
                "x86_64" => MACHINE_X86_64,
                "aarch64" => MACHINE_ARM,
                _ => MACHINE_OTHER,
            },
            uuid: uuid.ok().and_then(|text| parse_uuid(&text)).unwrap_or_default(),
        }
    }

    pub(crate) fn record(&self) -> CounterRecord<'_> {
        CounterRecord::HostId(HostId {
            hostname: Opaque(&self.name.as_bytes()[..self.name.len().min(64)]),
            uuid: self.uuid,
            machine: self.machine,
            os: OS_LINUX,
            os_release: Opaque(&self.release.as_bytes()[..self.release.len().min(32)]),
        })
    }
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    (digits.len() == 32).then_some(())?;
    Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
}

/// Record of the network adapters; `macs` and `adapters` are buffers for the encoded lists.
pub(crate) fn adapters<'a>(
    devices: &[CountedDevice],
    macs: &'a mut Vec<Vec<u8>>,
    adapters: &'a mut Vec<u8>,
) -> CounterRecord<'a> {
    let with_mac: Vec<(u32, Mac)> = devices
        .iter()
        .filter_map(|device| Some((device.index, Mac(device.hardware?))))
        .take(ADAPTERS_MAX)
        .collect();
    macs.clear();
    macs.resize(with_mac.len(), Vec::new());
    let list: Vec<Adapter<'a>> = with_mac
        .iter()
        .zip(macs.iter_mut())
        .map(|((index, mac), room)| Adapter { index: *index, macs: XdrList::of(&[*mac], room) })
        .collect();
    CounterRecord::HostAdapters(HostAdapters { adapters: XdrList::of(&list, adapters) })
}

/// Records of CPU, memory, disks, and the network traffic of these devices.
pub(crate) fn records(devices: &[CountedDevice]) -> [CounterRecord<'static>; 4] {
    let read = |name: &str| fs::read_to_string(Path::new("/proc").join(name)).unwrap_or_default();
    let [stat, loadavg, uptime, cpuinfo] = ["stat", "loadavg", "uptime", "cpuinfo"].map(read);
    let [meminfo, vmstat, diskstats, mounts] =
        ["meminfo", "vmstat", "diskstats", "self/mounts"].map(read);
    [
        CounterRecord::HostCpu(cpu(&stat, &loadavg, &uptime, &cpuinfo)),
        CounterRecord::HostMemory(memory(&meminfo, &vmstat)),
        CounterRecord::HostDisk(disk(&diskstats, &mounts)),
        CounterRecord::HostNet(net(devices)),
    ]
}

fn number<T: std::str::FromStr + Default>(word: Option<&str>) -> T {
    word.and_then(|word| word.parse().ok()).unwrap_or_default()
}

/// proc_stat(5), proc_loadavg(5), proc_uptime(5), proc_cpuinfo(5).
fn cpu(stat: &str, loadavg: &str, uptime: &str, cpuinfo: &str) -> HostCpu {
    let line = |name: &str| {
        let mut lines = stat.lines().map(|line| line.split_ascii_whitespace());
        let found = lines.find_map(|mut words| (words.next() == Some(name)).then_some(words));
        found.map_or(Vec::new(), |words| words.map(|word| number(Some(word))).collect::<Vec<u64>>())
    };
    let ticks = line("cpu");
    let ms = |at: usize| low(ticks.get(at).copied().unwrap_or(0).wrapping_mul(MS_PER_TICK));
    let first = |name: &str| low(line(name).first().copied().unwrap_or(0));
    let mut load = loadavg.split_ascii_whitespace();
    let [load_1m, load_5m, load_15m] = [(); 3].map(|()| number::<f32>(load.next()));
    let mut tasks = load.next().unwrap_or_default().split('/');
    let mhz = cpuinfo.lines().find_map(|line| line.strip_prefix("cpu MHz")?.split(':').nth(1));
    HostCpu {
        load_1m,
        load_5m,
        load_15m,
        running: number(tasks.next()),
        processes: number(tasks.next()),
        cpus: stat
            .lines()
            .filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "))
            .count() as u32,
        speed_mhz: number::<f64>(mhz.map(str::trim)) as u32,
        uptime_s: number::<f64>(uptime.split_ascii_whitespace().next()) as u32,
        user_ms: ms(0),
        nice_ms: ms(1),
        system_ms: ms(2),
        idle_ms: ms(3),
        wait_ms: ms(4),
        interrupt_ms: ms(5),
        soft_interrupt_ms: ms(6),
        interrupts: first("intr"),
        contexts: first("ctxt"),
        guests: Some(GuestCpu { steal_ms: ms(7), guest_ms: ms(8), guest_nice_ms: ms(9) }),
    }
}

/// proc_meminfo(5), proc_vmstat(5).
fn memory(meminfo: &str, vmstat: &str) -> HostMemory {
    let kib = |name: &str| {
        let found = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        number::<u64>(found.and_then(|rest| rest.split_ascii_whitespace().next()))
            .saturating_mul(1024)
    };
    let count = |name: &str| {
        let found = vmstat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        low(number::<u64>(found.map(str::trim)))
    };
    HostMemory {
        total_bytes: kib("MemTotal"),
        free_bytes: kib("MemFree"),
        shared_bytes: kib("Shmem"),
        buffers_bytes: kib("Buffers"),
        cached_bytes: kib("Cached"),
        swap_total_bytes: kib("SwapTotal"),
        swap_free_bytes: kib("SwapFree"),
        pages_in: count("pgpgin"),
        pages_out: count("pgpgout"),
        swaps_in: count("pswpin"),
        swaps_out: count("pswpout"),
    }
}

/// Space of file systems on block devices, each device once; reads and writes of whole disks.
fn disk(diskstats: &str, mounts: &str) -> HostDisk {
    let (mut total_bytes, mut free_bytes, mut fullest_part) = (0_u64, 0_u64, 0_i32);
    let mut seen = BTreeSet::new();
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (Some(device), Some(path)) = (words.next(), words.next()) else { continue };
        // Paths with blanks are escaped in /proc/mounts; they are skipped.
        if !device.starts_with("/dev/") || path.contains('\\') || !seen.insert(device) {
            continue;
        }
        let Ok((total, free)) = machine::disk_space(Path::new(path)) else { continue };
        if total == 0 {
            continue;
        }
        total_bytes = total_bytes.saturating_add(total);
        free_bytes = free_bytes.saturating_add(free);
        let used = u128::from(total.saturating_sub(free)) * 10_000 / u128::from(total);
        fullest_part = fullest_part.max(i32::try_from(used).unwrap_or(10_000));
    }
    let mut sums = [0_u64; 6];
    for words in diskstats.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>()) {
        let Some(name) = words.get(2).filter(|name| is_disk(name)) else { continue };
        debug_assert!(!name.is_empty());
        // Reads, sectors read, ms reading, writes, sectors written, ms writing.
        for (sum, at) in sums.iter_mut().zip([3, 5, 6, 7, 9, 10]) {
            *sum = sum.wrapping_add(number::<u64>(words.get(at).copied()));
        }
    }
    HostDisk {
        total_bytes,
        free_bytes,
        fullest_part,
        reads: low(sums[0]),
        read_bytes: sums[1].wrapping_mul(SECTOR_BYTES),
        read_ms: low(sums[2]),
        writes: low(sums[3]),
        written_bytes: sums[4].wrapping_mul(SECTOR_BYTES),
        write_ms: low(sums[5]),
    }
}

/// True for whole disks, by device name. I/O of partitions, dm, md and loop devices is counted on the disks below.
fn is_disk(name: &str) -> bool {
    let letters = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| {
            !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_lowercase())
        })
    };
    let nvme = name.starts_with("nvme") && name.contains('n') && !name[4..].contains('p');
    let card = name.starts_with("mmcblk") && !name[6..].contains('p');
    letters("sd") || letters("vd") || letters("xvd") || letters("hd") || nvme || card
}

fn net(devices: &[CountedDevice]) -> HostNet {
    let physical = || devices.iter().filter(|device| device.physical);
    let sum = |of: fn(&CountedDevice) -> u64| physical().map(of).fold(0, u64::wrapping_add);
    HostNet {
        in_bytes: sum(|device| device.statistics.rx_bytes),
        in_packets: low(sum(|device| device.statistics.rx_packets)),
        in_errors: low(sum(|device| device.statistics.rx_errors)),
        in_drops: low(sum(|device| device.statistics.rx_dropped)),
        out_bytes: sum(|device| device.statistics.tx_bytes),
        out_packets: low(sum(|device| device.statistics.tx_packets)),
        out_errors: low(sum(|device| device.statistics.tx_errors)),
        out_drops: low(sum(|device| device.statistics.tx_dropped)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cpu_counters_match_proc() {
        let stat = "cpu  100 2 30 400 5 6 7 8 9 1\ncpu0 50 1 1 1\ncpu1 50 1 1 1\nintr 4294967299 1 2\nctxt 77\n";
        let info = "processor\t: 0\ncpu MHz\t\t: 2595.124\n";
        let cpu = cpu(stat, "0.50 1.25 2.00 3/456 789\n", "1000.25 1.0\n", info);
        assert_eq!((cpu.load_1m, cpu.load_15m, cpu.running, cpu.processes), (0.5, 2.0, 3, 456));
        assert_eq!((cpu.cpus, cpu.speed_mhz, cpu.uptime_s), (2, 2595, 1000));
        assert_eq!((cpu.user_ms, cpu.idle_ms, cpu.soft_interrupt_ms), (1000, 4000, 70));
        assert_eq!((cpu.interrupts, cpu.contexts), (3, 77));
        assert_eq!(cpu.guests.map(|guests| guests.steal_ms), Some(80));
    }

    #[test]
    fn memory_and_disk_counters_match_proc() {
        let memory = memory(
            "MemTotal:  100 kB\nMemFree: 7 kB\nCached: 3 kB\nSwapCached: 9 kB\n",
            "pgpgin 12\npgpgout 13\n",
        );
        assert_eq!(
            (memory.total_bytes, memory.free_bytes, memory.cached_bytes),
            (102_400, 7168, 3072)
        );
        assert_eq!((memory.pages_in, memory.pages_out, memory.swaps_in), (12, 13, 0));
        let stats = " 8 0 sda 10 1 20 30 40 2 50 60 0 1 2\n 8 1 sda1 10 1 20 30 40 2 50 60 0 1 2\n 259 0 nvme0n1 1 0 2 3 4 0 5 6\n 259 1 nvme0n1p1 1 0 2 3 4 0 5 6\n 253 0 dm-0 9 9 9 9 9 9 9 9\n";
        let disk = disk(stats, "");
        assert_eq!((disk.reads, disk.read_bytes, disk.read_ms), (11, 22 * 512, 33));
        assert_eq!((disk.writes, disk.written_bytes, disk.write_ms), (44, 55 * 512, 66));
    }

    #[test]
    fn this_machine_has_processors_and_memory() {
        let [cpu, memory, disk, _] = records(&[]);
        let CounterRecord::HostCpu(cpu) = cpu else { panic!("{cpu:?}") };
        assert!(cpu.cpus > 0 && cpu.uptime_s > 0 && cpu.contexts > 0, "{cpu:?}");
        let CounterRecord::HostMemory(memory) = memory else { panic!("{memory:?}") };
        assert!(memory.total_bytes > memory.free_bytes && memory.free_bytes > 0, "{memory:?}");
        let CounterRecord::HostDisk(disk) = disk else { panic!("{disk:?}") };
        assert!(disk.total_bytes >= disk.free_bytes, "{disk:?}");
        assert_eq!(
            parse_uuid("01020304-0506-0708-090a-0b0c0d0e0f10\n").map(|uuid| uuid[15]),
            Some(16)
        );
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn arbitrary_proc_text_never_panics(text in "[a-z0-9 :/.\n-]{0,200}") {
            let _ = cpu(&text, &text, &text, &text);
            let _ = memory(&text, &text);
            let _ = disk(&text, "");
            let _ = parse_uuid(&text);
        }
    }
}
