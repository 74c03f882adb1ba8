//! Calibration in the background, so that the lab serves requests meanwhile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use penstock_sys::event::EventFd;
use penstock_topology::LinkId;

use crate::calibrate::LinkSockets;
use crate::control::MeasuredLink;
use crate::lab::{Lab, LabError};

/// A measurement that cannot begin, or failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CalibrationError {
    #[error("links are being measured already: wait until that is done")]
    Busy,
    #[error("link {link}: {error}")]
    Link { link: String, error: io::Error },
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A finished measurement and the client that requested it.
#[derive(Debug)]
pub(crate) struct FinishedCalibration {
    pub(crate) stream: UnixStream,
    pub(crate) links: Vec<LinkId>,
    pub(crate) found: Result<Vec<MeasuredLink>, CalibrationError>,
}

/// Open sockets of the links to measure, by name, and the client.
#[derive(Debug)]
pub(crate) struct PreparedCalibration {
    ends: Vec<(String, LinkSockets)>,
    links: Vec<LinkId>,
    stream: UnixStream,
}

/// The one measurement that may run at a time: two would disturb each other.
#[derive(Debug)]
pub(crate) struct CalibrationTask {
    ended: Arc<EventFd>,
    results_tx: Sender<FinishedCalibration>,
    results: Receiver<FinishedCalibration>,
    is_running: bool,
    cancelled: Arc<AtomicBool>,
}

impl CalibrationTask {
    pub(crate) fn new() -> io::Result<Self> {
        let (results_tx, results) = mpsc::channel();
        Ok(Self {
            ended: Arc::new(EventFd::new()?),
            results_tx,
            results,
            is_running: false,
            cancelled: Arc::default(),
        })
    }

    /// Opens sockets at both ends of the links.
    pub(crate) fn prepare(
        &self,
        lab: &Lab,
        links: Vec<LinkId>,
        stream: UnixStream,
    ) -> Result<PreparedCalibration, CalibrationError> {
        if self.is_running {
            return Err(CalibrationError::Busy);
        }
        let open = |link: &LinkId| {
            let name = lab.plan().topology.links[link.0].name.clone();
            let ends = lab.ends(*link)?;
            Ok::<_, CalibrationError>((name, ends))
        };
        Ok(PreparedCalibration {
            ends: links.iter().map(open).collect::<Result<_, _>>()?,
            links,
            stream,
        })
    }

    /// Starts the measurement on a thread.
    pub(crate) fn begin(&mut self, ready: PreparedCalibration) -> Result<(), CalibrationError> {
        let PreparedCalibration { ends, links, stream } = ready;
        let (results_tx, ended) = (self.results_tx.clone(), Arc::clone(&self.ended));
        let cancelled = Arc::clone(&self.cancelled);
        let work = move || {
            let found = measure(&ends, &cancelled);
            drop(ends);
            let _ = results_tx.send(FinishedCalibration { stream, links, found });
            let _ = ended.signal();
        };
        let thread = thread::Builder::new().name("measure".to_owned()).spawn(work);
        thread?;
        self.is_running = true;
        Ok(())
    }

    /// Returns the finished measurement, once the descriptor ([`AsFd`]) is readable.
    pub(crate) fn take(&mut self) -> Option<FinishedCalibration> {
        let _ = self.ended.drain();
        let done = self.results.try_recv().ok()?;
        self.is_running = false;
        Some(done)
    }
}

impl AsFd for CalibrationTask {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }
}

impl Drop for CalibrationTask {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

fn measure(
    links: &[(String, LinkSockets)],
    cancelled: &AtomicBool,
) -> Result<Vec<MeasuredLink>, CalibrationError> {
    let running = links.iter().take_while(|_| !cancelled.load(Ordering::Relaxed));
    let measured = running.map(|(name, ends)| match ends.measure() {
        Ok(found) => Ok(MeasuredLink::new(name, &found)),
        Err(error) => Err(CalibrationError::Link { link: name.clone(), error }),
    });
    measured.collect()
}
