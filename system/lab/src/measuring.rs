//! Measurements of links, beside whatever else a lab is asked: a slow link takes its time, and the lab still listens.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use penstock_sys::event::Event;
use penstock_topology::LinkId;

use crate::calibrate::Ends;
use crate::control::Measured;
use crate::lab::Lab;

/// What was measured, and who is to hear of it.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) stream: UnixStream,
    pub(crate) links: Vec<LinkId>,
    pub(crate) found: Result<Vec<Measured>, String>,
}

/// Links whose ends are open, by name, and who asked.
#[derive(Debug)]
pub(crate) struct Ready {
    ends: Vec<(String, Ends)>,
    links: Vec<LinkId>,
    stream: UnixStream,
}

/// The one measurement that may run: two would measure each other.
#[derive(Debug)]
pub(crate) struct Measuring {
    ended: Arc<Event>,
    tell: Sender<Done>,
    told: Receiver<Done>,
    runs: bool,
    over: Arc<AtomicBool>,
}

impl Measuring {
    pub(crate) fn new() -> io::Result<Self> {
        let (tell, told) = mpsc::channel();
        Ok(Self { ended: Arc::new(Event::new()?), tell, told, runs: false, over: Arc::default() })
    }

    /// Opens both ends of links.
    pub(crate) fn prepare(
        &self,
        lab: &Lab,
        links: Vec<LinkId>,
        stream: UnixStream,
    ) -> Result<Ready, String> {
        if self.runs {
            return Err("links are being measured already: wait until that is done".to_owned());
        }
        let open = |link: &LinkId| {
            let name = lab.plan().topology.links[link.0].name.clone();
            let ends = lab.ends(*link).map_err(|error| error.to_string())?;
            Ok::<_, String>((name, ends))
        };
        Ok(Ready { ends: links.iter().map(open).collect::<Result<_, _>>()?, links, stream })
    }

    /// Begins; the end is told by [`Self::take`].
    pub(crate) fn begin(&mut self, ready: Ready) -> Result<(), String> {
        let Ready { ends, links, stream } = ready;
        let (tell, ended) = (self.tell.clone(), Arc::clone(&self.ended));
        let over = Arc::clone(&self.over);
        let work = move || {
            let found = measure(&ends, &over);
            drop(ends);
            let _ = tell.send(Done { stream, links, found });
            let _ = ended.signal();
        };
        let thread = thread::Builder::new().name("measure".to_owned()).spawn(work);
        thread.map_err(|error| error.to_string())?;
        self.runs = true;
        Ok(())
    }

    /// What has ended, where [`AsFd`] is ready.
    pub(crate) fn take(&mut self) -> Option<Done> {
        let _ = self.ended.drain();
        let done = self.told.try_recv().ok()?;
        self.runs = false;
        Some(done)
    }
}

impl AsFd for Measuring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn measure(links: &[(String, Ends)], over: &AtomicBool) -> Result<Vec<Measured>, String> {
    let running = links.iter().take_while(|_| !over.load(Ordering::Relaxed));
    let measured = running.map(|(name, ends)| match ends.measure() {
        Ok(found) => Ok(Measured::new(name, &found)),
        Err(error) => Err(format!("link {name}: {error}")),
    });
    measured.collect()
}
