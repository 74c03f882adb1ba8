//! The CPU time one thread has used, so that a test pays for its own streams and not for its
//! neighbours in the same process.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// User and system time the calling thread has spent so far. On loopback the kernel does the
/// receiver's protocol work in the sender's context, and it shows here as the sender's.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(spent.tv_sec).unwrap_or(0),
        u32::try_from(spent.tv_nsec).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::thread_cpu_time;

    #[test]
    fn grows_while_the_thread_works() {
        let before = thread_cpu_time();
        let mut sum = 0_u64;
        while thread_cpu_time() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(thread_cpu_time() > before);
    }
}
