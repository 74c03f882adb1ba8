//! Facts and settings of this machine, this process and this thread.
//!
//! For: CPU time and memory accounting, thread affinity and priority, resource limits. Not for: judging or changing the
//! machine (`system/host`): settings made here end with the process.
//!
//! Fails with plain errors; a fact that the kernel does not report is `None` or empty.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// UUID of this boot. A journal compares it to detect a restart, after which unsynced data may be lost.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Time of the system clock, in seconds since 1970.
#[must_use]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Effective user id; 0 is root.
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Width of the widest instructions of this processor that AES-GCM can use (VAES and VPCLMULQDQ, x86-64), in bits: 512
/// with AVX-512, 256 with AVX2, else 128.
#[must_use]
pub fn aes_instruction_bits() -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        let is_wide = is_x86_feature_detected!("vaes")
            && is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("avx2");
        let has_avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        match (is_wide, has_avx512) {
            (true, true) => 512,
            (true, false) => 256,
            (false, _) => 128,
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    128
}

/// CPU time of all threads of this process, user and system.
pub fn process_cpu() -> Duration {
    usage().map_or(Duration::ZERO, |usage| duration(usage.ru_utime) + duration(usage.ru_stime))
}

/// Peak resident set size of this process, in bytes.
pub fn peak_resident_bytes() -> u64 {
    // Linux reports KiB.
    usage().map_or(0, |usage| u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024)
}

fn usage() -> Option<libc::rusage> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel writes one `rusage` to the pointer, which has room for it.
    let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    if result != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so all of it is written.
    Some(unsafe { usage.assume_init() })
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

/// CPU time of the calling thread, user and system. On loopback the kernel does the receiver's protocol work in the
/// sender's context, and it counts as the sender's.
pub fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or(Duration::ZERO)
}

/// CPUs the calling thread may run on; at least 1.
pub fn cores() -> usize {
    match sched_getaffinity(None) {
        Ok(set) => set.count().max(1) as usize,
        // More CPUs than the set holds (1024).
        Err(_) => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// Numbers of the CPUs the calling thread may run on.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Pins the calling thread to these CPUs. `InvalidInput` for an empty list, a number out of range, or CPUs that are all
/// offline or forbidden to it.
pub fn pin_thread_to(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("no CPU {cpu}: the highest possible is {}", CpuSet::MAX_CPU - 1),
            ));
        }
        set.set(cpu);
    }
    sched_setaffinity(None, &set).map_err(|error| match error {
        rustix::io::Errno::INVAL => io::Error::new(
            io::ErrorKind::InvalidInput,
            "none of them is here, or this process may use none of them",
        ),
        error => error.into(),
    })
}

/// Gives the calling thread the real-time class SCHED_FIFO at its lowest priority, and a timer slack of 1 ns.
///
/// # Errors
/// `PermissionDenied` without CAP_SYS_NICE; the scheduling class is then unchanged.
pub fn become_realtime() -> io::Result<()> {
    // SAFETY: prctl with this option takes a number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads one `sched_param` from the pointer; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Keeps idle CPUs out of deep sleep states until drop (PM QoS, `/dev/cpu_dma_latency`), so that timers fire on time:
/// a sleeping CPU, above all a virtual one, sometimes wakes up milliseconds late.
#[derive(Debug)]
pub struct CpuLatencyRequest {
    _request: fs::File,
}

impl CpuLatencyRequest {
    /// Requests a wake-up latency of 0.
    ///
    /// # Errors
    /// Where the kernel lacks the interface or forbids it to this user.
    pub fn zero() -> io::Result<Self> {
        let mut request = fs::File::options().write(true).open("/dev/cpu_dma_latency")?;
        // Maximum wake-up latency in microseconds.
        request.write_all(&0_i32.to_ne_bytes())?;
        Ok(Self { _request: request })
    }
}

/// Redirects standard output and standard error to `file`, and standard input from `/dev/null`.
///
/// # Errors
/// The kernel's error.
pub fn redirect_output(file: &fs::File) -> io::Result<()> {
    let nothing = fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(file)?;
    Ok(rustix::stdio::dup2_stderr(file)?)
}

/// Makes the kernel send SIGTERM to this process when the thread that started it ends (PR_SET_PDEATHSIG).
///
/// # Errors
/// The kernel's error.
pub fn end_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?)
}

/// Sends SIGKILL to a process; a missing process is no error.
pub fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Raises the soft limit on open files to the hard limit, and returns it.
pub fn raise_open_files() -> io::Result<u64> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        rustix::process::setrlimit(Resource::Nofile, raised)?;
    }
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

/// True if the limit of locked memory does not hold for this thread (`CAP_IPC_LOCK`).
pub fn is_above_locked_memory_limit() -> bool {
    let own = rustix::thread::capabilities(None);
    own.is_ok_and(|own| own.effective.contains(CapabilitySet::IPC_LOCK))
}

/// Raises the soft limit of locked memory to the hard limit, and returns it in bytes; `None` without a limit.
pub fn raise_locked_memory() -> io::Result<Option<u64>> {
    let limit = rustix::process::getrlimit(Resource::Memlock);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        rustix::process::setrlimit(Resource::Memlock, raised)?;
    }
    Ok(limit.maximum)
}

/// CPUs of a NUMA node; empty for a missing node.
pub fn cpus_of_node(node: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    fs::read_to_string(path).map_or(Vec::new(), |list| parse_cpu_list(list.trim()))
}

/// Parses a CPU list (`0-3,8`); `None` for malformed text.
pub fn parse_cpus(list: &str) -> Option<Vec<usize>> {
    let well_formed = list.split(',').all(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        matches!((first.parse::<usize>(), last.parse::<usize>()), (Ok(a), Ok(b)) if a <= b && b < 4096)
    });
    well_formed.then(|| parse_cpu_list(list))
}

/// Parses the kernel's CPU list format, `0-3,8,10-11`, in order; skips malformed parts.
fn parse_cpu_list(list: &str) -> Vec<usize> {
    let mut cpus = BTreeSet::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            cpus.extend((first..=last).take_while(|&cpu| cpu < CpuSet::MAX_CPU));
        }
    }
    cpus.into_iter().collect()
}

/// Formats CPU numbers, or any numbers, as a list (`0-3,8`), the inverse of [`parse_cpus`].
#[must_use]
pub fn display_cpus(cpus: &[usize]) -> String {
    let sorted: BTreeSet<usize> = cpus.iter().copied().collect();
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for cpu in sorted {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    let text = runs.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    text.collect::<Vec<_>>().join(",")
}

/// Busy and total time of all CPUs since boot, in ticks, for differences between two calls.
pub fn machine_busy() -> Option<(u64, u64)> {
    parse_busy(&fs::read_to_string("/proc/stat").ok()?)
}

/// Parses the `cpu` line of `/proc/stat` (proc_stat(5)): user nice system idle iowait irq softirq steal. Guest time, which
/// follows, is part of user time.
fn parse_busy(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> =
        line.split_ascii_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let idle = ticks.get(3)?.saturating_add(ticks.get(4).copied().unwrap_or(0));
    let total = ticks.iter().fold(0u64, |sum, &ticks| sum.saturating_add(ticks));
    Some((total.saturating_sub(idle), total))
}

/// Mode bits that this process's new files do not get.
pub fn umask() -> u32 {
    // umask(2) would change it for all threads for a moment.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("Umask:"))
        .and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok())
        .unwrap_or(0o022)
}

/// True if this process ignores `signal`, as under `nohup`.
#[must_use]
pub fn ignores_signal(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=64).contains(&signal) && ignored & (1 << (signal - 1)) != 0
}

/// This machine's node name, as `uname -n`.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Machine architecture, as `uname -m`.
#[must_use]
pub fn architecture() -> String {
    rustix::system::uname().machine().to_string_lossy().into_owned()
}

/// Size and free space of the file system at `path`, in bytes.
///
/// # Errors
/// The error of `statvfs`.
pub fn disk_space(path: &Path) -> io::Result<(u64, u64)> {
    let facts = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(facts.f_frsize);
    Ok((bytes(facts.f_blocks), bytes(facts.f_bfree)))
}

/// Kernel release, as `uname -r`.
#[must_use]
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Starts a new session without a controlling terminal (setsid(2)), so that a hang-up does not end this process.
///
/// # Errors
/// When this process is a process group leader.
pub fn leave_session() -> io::Result<()> {
    Ok(rustix::process::setsid().map(|_| ())?)
}

/// True if the effective user is root.
pub fn is_superuser() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn boot_id_is_a_uuid() {
        let id = boot_id().unwrap();
        assert_eq!(id.len(), 36);
        assert_eq!(id, boot_id().unwrap());
    }

    #[test]
    fn cpu_lists_round_trip() {
        for list in ["0", "0-3,8", "0-1,4-5,7", "1023"] {
            assert_eq!(display_cpus(&parse_cpus(list).unwrap()), list);
        }
        assert_eq!(display_cpus(&[3, 1, 2, 2]), "1-3");
        assert_eq!(display_cpus(&[]), "");
    }

    #[test]
    fn work_counts_as_cpu_time() {
        let (process, thread) = (process_cpu(), thread_cpu());
        let mut value = 1u64;
        while thread_cpu() - thread < Duration::from_millis(20) {
            value = std::hint::black_box(value.wrapping_mul(31));
        }
        // The process's clock is read in coarser steps.
        assert!(process_cpu() - process >= Duration::from_millis(10));
    }

    #[test]
    fn memory_touched_is_resident() {
        let touched = vec![1u8; 16 << 20];
        assert!(peak_resident_bytes() >= touched.len() as u64);
    }

    #[test]
    fn pinned_thread_has_one_core() {
        thread::spawn(|| {
            let allowed = allowed_cpus().unwrap();
            assert_eq!(allowed.len(), cores());
            let last = *allowed.last().unwrap();
            pin_thread_to(&[last]).unwrap();
            assert_eq!((cores(), allowed_cpus().unwrap()), (1, vec![last]));
            assert!(pin_thread_to(&[]).is_err());
            assert_eq!(pin_thread_to(&[1 << 20]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn open_files_rise_to_hard_limit() {
        let limit = raise_open_files().unwrap();
        assert!(limit >= 64);
        let now = rustix::process::getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
        assert_eq!(raise_open_files().unwrap(), limit);
    }

    #[test]
    fn nodes_have_cpus() {
        assert!(cpus_of_node(usize::MAX).is_empty());
        if Path::new("/sys/devices/system/node/node0").exists() {
            assert!(!cpus_of_node(0).is_empty());
        } else {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Machine,
                "this kernel has no NUMA nodes",
            );
        }
    }

    #[test]
    fn malformed_cpu_lists_are_empty() {
        assert_eq!(parse_cpu_list("0-3,8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_cpu_list("5,1"), [1, 5]);
        for nothing in ["", "x", "3-1", "-", "1-"] {
            assert!(parse_cpu_list(nothing).is_empty(), "{nothing}");
        }
        assert!(parse_cpu_list("0-18446744073709551615").len() <= CpuSet::MAX_CPU);
    }

    #[test]
    fn busy_is_part_of_the_total() {
        let (busy, total) = machine_busy().unwrap();
        assert!(0 < busy && busy <= total);
        let stat = "cpu  10 20 30 400 50 6 7 8 9 1\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(parse_busy(stat), Some((81, 531)));
        assert_eq!(parse_busy("cpu  1 2 3 4"), Some((6, 10)));
        for broken in ["", "cpu0 1 2 3 4", "cpu  a b", "cpu  1 2"] {
            assert_eq!(parse_busy(broken), None);
        }
    }
}
