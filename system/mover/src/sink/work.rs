//! State shared by planner, writers, committer and streams of a receiving end: the receiving state machine,
//! the files being written and the queues of their devices.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use penstock_protocol::block::{FrameKind, Header, PackItem};
use penstock_protocol::extents::Extent;
use penstock_protocol::receiver::{FrameTarget, Receiver, SenderFault};
use penstock_sys::buffer::Buffer;

use super::destination::Destination;
use super::file::SinkFile;
use super::shared_machine::{HasWork, SharedMachine};
use super::task_queues::TaskQueues;
use crate::base::engine::Engine;
use crate::base::limits::WRITERS_DEFAULT;
use crate::base::lock::lock;
use crate::session::close::CloseOnEnd;
use crate::session::state::Session;
use crate::session::worker_pool::{ThreadCount, WorkerPool};

/// Task of a writer.
#[derive(Debug)]
pub(crate) enum WriteTask {
    /// Write a received frame.
    Write(ReceivedFrame),
    /// Read a range of an unfinished copy back and verify it.
    Verify(Arc<SinkFile>, Extent),
}

/// Frame with its payload and file.
#[derive(Debug)]
pub(crate) struct ReceivedFrame {
    /// Header of the frame.
    pub header: Header,
    /// File of the frame; `None` for a pack.
    pub sink: Option<Arc<SinkFile>>,
    /// Payload of the length in the header; `None` for a hole.
    pub buffer: Option<Buffer>,
}

impl HasWork for Receiver {
    fn has_plan_work(&self) -> bool {
        self.has_discards()
    }

    fn has_commit_work(&self) -> bool {
        self.has_finishes()
    }
}

impl CloseOnEnd for TaskQueues<WriteTask> {
    fn close(&self) {
        Self::close(self);
    }
}

/// Sink of one session: what its planner, writers, committer and streams share.
#[derive(Debug)]
pub(crate) struct SinkWork {
    /// State common to both kinds of end.
    pub session: Session,
    /// Storage engine of the writers.
    pub engine: Engine,
    /// Destination of the files.
    pub destination: Destination,
    pub(crate) machine: SharedMachine<Receiver>,
    pub(crate) sinks: Mutex<HashMap<u64, Arc<SinkFile>>>,
    /// Tasks of the writers, by device.
    pub(crate) tasks: Arc<TaskQueues<WriteTask>>,
    /// Writer threads, per device.
    pub writers: WorkerPool,
    pack_device: AtomicU64,
}

impl SinkWork {
    /// Creates the sink of a session; nothing is written before its planner runs.
    #[must_use]
    pub(crate) fn new(session: Session, engine: Engine, destination: Destination) -> Self {
        let options = &session.options;
        let algorithm = options.algorithm;
        let writers = ThreadCount::new(options.settings.writers, WRITERS_DEFAULT, algorithm);
        let tasks = Arc::new(TaskQueues::default());
        let closed_at_end: Arc<dyn CloseOnEnd> = Arc::<TaskQueues<WriteTask>>::clone(&tasks);
        session.close_at_end(closed_at_end);
        let pack_device = AtomicU64::new(destination.base().device);
        Self {
            engine,
            machine: SharedMachine::new(Receiver::new(algorithm)),
            sinks: Mutex::default(),
            tasks,
            writers: WorkerPool::new("write", writers),
            pack_device,
            destination,
            session,
        }
    }

    /// Calls `ask` with the state machine, then wakes the threads that may have work.
    pub(crate) fn with_machine<T>(&self, ask: impl FnOnce(&mut Receiver) -> T) -> T {
        let answer = self.machine.update(ask);
        self.session.wake_control();
        answer
    }

    /// Returns the file of this number while it is expected.
    #[must_use]
    pub(crate) fn sink(&self, file: u64) -> Option<Arc<SinkFile>> {
        lock(&self.sinks).get(&file).cloned()
    }

    /// Returns the destinations of a pack's files; `None` for files no longer needed.
    ///
    /// # Errors
    /// If one was never announced or requested, or is not complete.
    pub(crate) fn places(
        &self,
        items: &[(usize, PackItem)],
    ) -> Result<Vec<Option<Arc<SinkFile>>>, SenderFault> {
        let mut machine = self.machine.lock();
        let sinks = lock(&self.sinks);
        let place = |(_, item): &(usize, PackItem)| {
            let place = machine.accept(item.file, 0, u64::from(item.bytes))?;
            let wanted = matches!(place, FrameTarget::Write(_));
            Ok(sinks.get(&item.file).filter(|_| wanted).cloned())
        };
        items.iter().map(place).collect()
    }

    /// True if a file not yet committed has this partial name.
    #[must_use]
    pub(crate) fn has_partial(&self, name: &OsStr) -> bool {
        lock(&self.sinks).values().any(|sink| sink.partial_name() == name)
    }

    /// Records a written extent.
    pub(crate) fn record(&self, sink: &SinkFile, extent: Extent) {
        sink.touch();
        let number = sink.journal_number.load(Ordering::SeqCst);
        if number > 0 {
            self.destination.journal.written(number, extent);
        }
    }

    /// Adds a block to a digest in file order if it is next. Blocks out of order are read again when
    /// the file is complete.
    pub(crate) fn digest_in_order(&self, sink: &SinkFile, offset: u64, data: &[u8]) {
        if let Some(serial) = lock(&sink.serial).as_mut().filter(|serial| serial.next() == offset) {
            serial.update(data);
        }
    }

    /// Queues a frame for the writers of its device.
    ///
    /// # Errors
    /// If it belongs to no requested file.
    pub(crate) fn received(&self, header: Header, buffer: Option<Buffer>) -> io::Result<()> {
        if header.kind == FrameKind::Pack {
            let device = self.pack_device.load(Ordering::Relaxed);
            self.tasks.push(device, WriteTask::Write(ReceivedFrame { header, sink: None, buffer }));
            return Ok(());
        }
        let place = self.machine.lock().accept(header.file, header.offset, header.bytes);
        let place = place.map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))?;
        match (place, self.sink(header.file)) {
            (FrameTarget::Write(_), Some(sink)) => {
                let device = sink.parent.device;
                self.tasks.push(
                    device,
                    WriteTask::Write(ReceivedFrame { header, sink: Some(sink), buffer }),
                );
            }
            _ => self.with_machine(|machine| machine.acknowledge(header.sequence)),
        }
        Ok(())
    }

    /// Passes warnings of the destination on to both ends.
    pub(crate) fn pass_warnings(&self) {
        let warnings = self.destination.take_warnings();
        let mut machine = self.machine.lock();
        warnings.into_iter().for_each(|(path, warning)| machine.warn(path, warning));
    }
}
