//! Wake-ups between threads (eventfd) and waiting for descriptors (poll).
//!
//! For: [`EventFd`], to stop or wake a thread from another, and [`poll`], to wait for it beside sockets.
//! Not for: many descriptors or carrying data.
//!
//! Fails with the errors of `eventfd` and `poll`; retries on EINTR.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::Errno;

/// A signal between threads that stays set until drained (eventfd). Its descriptor is readable while set.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// Creates an event that is not set.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Sets the signal; idempotent.
    pub fn signal(&self) -> io::Result<()> {
        loop {
            match rustix::io::write(&self.fd, &1u64.to_ne_bytes()) {
                // The counter is full: already set.
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Clears the signal; true if it was set.
    pub fn drain(&self) -> io::Result<bool> {
        loop {
            match rustix::io::read(&self.fd, &mut [0u8; 8]) {
                Ok(_) => return Ok(true),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for the signal without clearing it, at most `timeout`; true if it is set.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let ready = poll(&[(self.as_fd(), Interest::READ)], timeout)?;
        Ok(ready.iter().any(|ready| ready.readable))
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Events to wait for on a descriptor. Errors and hang-ups are always reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    /// Wait until the descriptor is readable (POLLIN).
    pub read: bool,
    /// Wait until the descriptor is writable (POLLOUT).
    pub write: bool,
}

impl Interest {
    /// POLLIN, errors and hang-ups.
    pub const READ: Self = Self { read: true, write: false };
    /// POLLOUT, errors and hang-ups.
    pub const WRITE: Self = Self { read: false, write: true };
    /// Errors and hang-ups alone.
    pub const NONE: Self = Self { read: false, write: false };
}

/// Events reported for a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Readiness {
    /// A read does not block; it may return end of file or an error.
    pub readable: bool,
    /// A write does not block; it may return an error.
    pub writable: bool,
    /// The other end is closed (POLLHUP, POLLRDHUP).
    pub hung_up: bool,
    /// An error is pending, on a socket also in its error queue; or the descriptor is not open.
    pub error: bool,
}

impl Readiness {
    /// True if any event was reported.
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// Waits until a descriptor is ready, at most `timeout` (`None`: no limit). Returns one answer per descriptor, in order;
/// after the timeout all are empty.
pub fn poll(
    fds: &[(BorrowedFd<'_>, Interest)],
    timeout: Option<Duration>,
) -> io::Result<Vec<Readiness>> {
    let mut polled: Vec<_> = fds
        .iter()
        .map(|(fd, interest)| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, interest.read);
            flags.set(PollFlags::OUT, interest.write);
            PollFd::from_borrowed_fd(*fd, flags)
        })
        .collect();
    // A timeout too long to add to the clock is no timeout.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.and_then(|deadline| {
            Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok()
        });
        match rustix::event::poll(&mut polled, left.as_ref()) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    Ok(polled
        .iter()
        .map(|polled| {
            let flags = polled.revents();
            Readiness {
                readable: flags.contains(PollFlags::IN),
                writable: flags.contains(PollFlags::OUT),
                hung_up: flags.intersects(PollFlags::HUP | PollFlags::RDHUP),
                error: flags.intersects(PollFlags::ERR | PollFlags::NVAL),
            }
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::thread;

    #[test]
    fn event_stays_set_until_drained() {
        let event = EventFd::new().unwrap();
        assert!(!event.drain().unwrap());
        assert!(!event.wait(Some(Duration::ZERO)).unwrap());
        event.signal().unwrap();
        event.signal().unwrap();
        assert!(event.wait(None).unwrap());
        assert!(event.wait(Some(Duration::MAX)).unwrap());
        assert!(event.drain().unwrap());
        assert!(!event.drain().unwrap());
    }

    #[test]
    fn event_wakes_another_thread() {
        let event = EventFd::new().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| event.wait(None).unwrap());
            event.signal().unwrap();
            assert!(waiter.join().unwrap());
        });
    }

    #[test]
    fn poll_reports_each_descriptor() {
        let event = EventFd::new().unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        let ready = |timeout| {
            let fds = [
                (event.as_fd(), Interest::READ),
                (reader.as_fd(), Interest::READ),
                (event.as_fd(), Interest::WRITE),
            ];
            poll(&fds, timeout).unwrap()
        };
        let idle = ready(Some(Duration::ZERO));
        assert_eq!(idle.iter().map(|ready| ready.any()).collect::<Vec<_>>(), [false, false, true]);
        assert!(idle[2].writable);
        writer.write_all(b"x").unwrap();
        assert!(ready(None)[1].readable);
        drop(writer);
        let closed = ready(None)[1];
        assert!(closed.readable && closed.hung_up && !closed.error);
    }

    #[test]
    fn poll_waits_for_the_timeout() {
        let event = EventFd::new().unwrap();
        let began = Instant::now();
        let ready =
            poll(&[(event.as_fd(), Interest::READ)], Some(Duration::from_millis(5))).unwrap();
        assert!(!ready[0].any());
        assert!(began.elapsed() >= Duration::from_millis(5));
        assert!(poll(&[], Some(Duration::ZERO)).unwrap().is_empty());
    }
}
