//! Committer of a receiving end: makes received files durable.
//!
//! Takes all complete files, syncs them together, renames them and then settles them; about once a
//! second it syncs unfinished large files and appends `Synced` to the journal. Many small files thus
//! share one sync.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock_protocol::control::{Failure, FailureKind};
use penstock_protocol::receiver::Finish;
use penstock_sys::fs;

use super::destination::destination;
use super::file::{FileEvent, SinkFile, SinkFileState};
use super::work::SinkWork;
use crate::base::file_digest::{catch_up, digest_file};
use crate::base::lock::lock;
use crate::session::outcome::SessionOutcome;

/// Interval of syncs of unfinished files and the journal.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Longest delay of complete small files to share a sync, while more are arriving.
const SHARED_SYNC_DELAY: Duration = Duration::from_millis(250);

/// Interval at which more complete files are gathered for a shared sync.
const GATHER_INTERVAL: Duration = Duration::from_millis(20);

/// Number of complete small files from which one sync of the file system is cheaper than one per file.
const SYNC_ALL_FILES_MIN: usize = 8;

/// Size of the buffer for read-back, in bytes.
const READ_BUFFER_BYTES: usize = 1 << 20;

/// Result of one step of the committer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitStep {
    /// Nothing to do for this time, unless a file becomes complete.
    Wait(Duration),
    /// Some work was done.
    Done,
    /// Everything is durable, or the session has failed.
    Over,
}

/// Committer of one receiving end.
#[derive(Debug)]
pub(crate) struct Committer<'a> {
    work: &'a SinkWork,
    synced: Instant,
    settled: Instant,
    /// Device near which the thread is pinned.
    near: Option<u64>,
}

/// Complete file to be committed.
struct CompleteFile {
    finish: Finish,
    sink: Arc<SinkFile>,
}

impl<'a> Committer<'a> {
    pub(crate) fn new(work: &'a SinkWork, now: Instant) -> Self {
        Self { work, synced: now, settled: now, near: None }
    }

    pub(crate) fn run(mut self) {
        while !self.work.session.is_over() {
            match self.step(Instant::now()) {
                CommitStep::Over => return,
                CommitStep::Done => {}
                CommitStep::Wait(time) => {
                    self.work.machine.wait_to_commit(|machine| {
                        if !machine.has_finishes() {
                            Some(time)
                        } else if !machine.only_finishes() && !machine.is_complete() {
                            Some(GATHER_INTERVAL)
                        } else {
                            None
                        }
                    });
                }
            }
        }
    }

    /// Commits complete files, syncs unfinished ones or finishes the session, whichever is due.
    pub(crate) fn step(&mut self, now: Instant) -> CommitStep {
        let sync_is_due = now.duration_since(self.synced) >= SYNC_INTERVAL;
        let mut machine = self.work.machine.lock();
        let complete = machine.is_complete();
        let is_worth_it =
            now.duration_since(self.settled) >= SHARED_SYNC_DELAY || machine.only_finishes();
        if !complete && !is_worth_it && !sync_is_due {
            return CommitStep::Wait(Duration::from_millis(100));
        }
        let finishes: Vec<_> = std::iter::from_fn(|| machine.poll_finish()).collect();
        drop(machine);
        if finishes.is_empty() && !complete && !sync_is_due {
            return CommitStep::Wait(Duration::from_millis(100));
        }
        if !finishes.is_empty() {
            self.settle(finishes);
            self.settled = now;
        }
        if complete {
            self.finish();
            return CommitStep::Over;
        }
        if sync_is_due {
            self.sync_unfinished();
            self.synced = now;
        }
        CommitStep::Done
    }

    /// Syncs files together, renames them, and settles them.
    fn settle(&mut self, finishes: Vec<Finish>) {
        let work = self.work;
        let mut whole = Vec::with_capacity(finishes.len());
        let mut results = Vec::with_capacity(finishes.len());
        let mut packed = 0;
        for finish in finishes {
            let Some(sink) = lock(&work.sinks).remove(&finish.file) else { continue };
            let device = sink.parent.device;
            if self.near.replace(device) != Some(device) {
                work.session.pin_near_disk(device);
            }
            let prepared = self.prepare(&finish, &sink);
            let file = CompleteFile { finish, sink };
            match prepared {
                Ok(()) => {
                    packed += usize::from(file.is_packed());
                    whole.push(file);
                }
                Err(failure) => results.push((file, Err(failure))),
            }
        }
        let journal = &work.destination.journal;
        let ended = journal.ended();
        let all = if packed >= SYNC_ALL_FILES_MIN {
            let synced = work.destination.sync_file_systems();
            if synced.is_ok() {
                journal.names_durable(ended);
            }
            Some(synced)
        } else {
            None
        };
        for file in whole {
            let result = match &all {
                Some(Err(error)) => Err(destination(error)),
                Some(Ok(())) => self.put_in_place(&file, true),
                None => self.put_in_place(&file, false),
            };
            results.push((file, result));
        }
        for (file, result) in &results {
            if result.is_err() {
                work.destination.discard(&file.sink);
            }
            journal.end_file(file.sink.journal_number.load(Ordering::SeqCst));
        }
        work.with_machine(|machine| {
            for (CompleteFile { finish, .. }, result) in results {
                machine.settle(finish.file, result.map(|()| finish.digest));
            }
        });
    }

    /// Verifies and completes a file, except for the sync of one from a pack.
    fn prepare(&self, finish: &Finish, sink: &SinkFile) -> Result<(), Failure> {
        let place = &self.work.destination;
        if finish.same {
            return place.refresh(sink).map_err(|error| destination(&error));
        }
        check_serial(finish, sink)?;
        if !sink.is_packed() {
            place.complete(sink).map_err(|error| destination(&error))?;
        }
        Ok(())
    }

    fn put_in_place(&self, file: &CompleteFile, is_synced: bool) -> Result<(), Failure> {
        let CompleteFile { finish, sink } = file;
        if finish.same {
            return Ok(());
        }
        if sink.is_packed() {
            let sync = || -> std::io::Result<()> {
                if !is_synced {
                    sink.reopen()?.sync_all()?;
                }
                sink.advance(FileEvent::Synced)
            };
            sync().map_err(|error| destination(&error))?;
        }
        if self.work.session.options.readback {
            self.read_back(finish, sink)?;
        }
        self.work.destination.rename(sink).map_err(|error| destination(&error))
    }

    /// Reads a file back, from its device if the page cache releases it.
    fn read_back(&self, finish: &Finish, sink: &SinkFile) -> Result<(), Failure> {
        let algorithm = self.work.session.options.algorithm;
        let digest = sink.reopen().and_then(|file| {
            file.drop_cache(0, sink.entry.bytes)?;
            digest_file(&*file, algorithm, &mut vec![0; READ_BUFFER_BYTES])
        });
        match digest.map_err(|error| destination(&error))? {
            Some(digest) if digest != finish.digest => Err(damaged()),
            _ => Ok(()),
        }
    }

    fn sync_unfinished(&self) {
        let journal = &self.work.destination.journal;
        let length = journal.length();
        let sinks: Vec<_> = lock(&self.work.sinks).values().cloned().collect();
        let mut any = false;
        for sink in sinks {
            if let Some(file) = sink.take_dirty() {
                any = true;
                if let Err(error) = file.sync_data() {
                    let failure = destination(&error);
                    self.work.with_machine(|machine| machine.fail(sink.file, failure));
                    return;
                }
            }
        }
        if any {
            journal.synced(length);
        }
    }

    /// Finishes the session: sets metadata of directories, makes names durable and removes the journal.
    fn finish(&self) {
        let work = self.work;
        // Before directories get their times.
        work.destination.remove_leftovers();
        let failures = work.destination.finish_directories();
        if let Err(error) = work.destination.sync_changes() {
            let text = format!("cannot make names durable: {}", fs::describe(&error));
            return work.session.end(SessionOutcome::Failed(text));
        }
        work.destination.journal.remove(&work.destination.folders());
        let report = work.session.report();
        work.pass_warnings();
        work.with_machine(|machine| {
            machine.report(report);
            for (path, failure) in failures {
                machine.note_failure(path, failure);
            }
            machine.finished();
        });
    }
}

impl CompleteFile {
    fn is_packed(&self) -> bool {
        !self.finish.same && self.sink.is_packed()
    }
}

impl SinkFile {
    fn is_packed(&self) -> bool {
        matches!(&*lock(&self.state), SinkFileState::Packed(_))
    }
}

/// Completes a digest in file order and compares it with the sender's.
fn check_serial(finish: &Finish, sink: &SinkFile) -> Result<(), Failure> {
    let Some(mut serial) = lock(&sink.serial).take() else { return Ok(()) };
    if serial.next() < sink.entry.bytes {
        sink.reopen()
            .and_then(|file| catch_up(&mut serial, &*file, sink.entry.bytes))
            .map_err(|error| destination(&error))?;
    }
    if serial.finish() == finish.digest { Ok(()) } else { Err(damaged()) }
}

fn damaged() -> Failure {
    let text =
        "the file at the destination differs from what was read at the source: copy it again";
    Failure::new(FailureKind::Integrity, text)
}
