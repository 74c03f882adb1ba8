//! What an agent sends by itself, because somebody who plans for several agents has told it to.
//!
//! Towards the destination it is a client like any other. Here it is one of the agent's transfers: it takes its part
//! of the agent's memory, streams and rate, is listed with the others, and its operator changes and cancels it.
//! Not for: who plans, nor what became of files ([`Outgoing::take_settled`] tells once).

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use penstock_protocol::control::{Settings, Settled};
use penstock_protocol::digest::Digest;
use penstock_protocol::list::PathList;
use penstock_protocol::manifest::display_path;
use penstock_protocol::open::{Opened, Options, Push, Refusal, RefusalKind, Request};
use penstock_protocol::proof::SessionKey;
use penstock_sys::fs;
use penstock_sys::net::interface_towards;

use super::{Agent, Caller, Counters, Inner, Transfer};
use crate::client::{self, Begin, Plan, Snapshot};
use crate::contact::{Contact, CopyError};
use crate::dial::Pair;
use crate::granting::{AnyEnd, check_options};
use crate::memory::Hold;
use crate::scan::Source;
use crate::sending::{SenderControl, SenderEnd};
use crate::session::{STREAMS_DEFAULT, Session, lock};

/// Files that are to be sent.
#[derive(Debug)]
pub struct Sending {
    /// The agent that gets them.
    pub to: Contact,
    /// What is asked of it.
    pub push: Push,
    /// The directory here, as clients name it.
    pub from: Vec<u8>,
    /// Files below it.
    pub files: Arc<PathList>,
    /// Digests that they must have, by path.
    pub expected: HashMap<Vec<u8>, Digest>,
}

/// Files that are being sent.
#[derive(Debug)]
pub struct Outgoing {
    id: u64,
    caller: Caller,
    path: String,
    started: SystemTime,
    clock: Instant,
    transfer: client::Transfer,
    streams_max: u16,
    memory: Mutex<Option<Arc<Hold>>>,
}

impl Agent {
    /// Sends files for `caller`, within what its gatekeeper and its limits allow. What the files are is said by
    /// [`Outgoing::take_settled`].
    ///
    /// # Errors
    /// When it may not, or when there is no room now.
    pub fn send(&self, caller: Caller, sending: Sending) -> Result<Arc<Outgoing>, Refusal> {
        self.0.send(caller, sending)
    }
}

impl Inner {
    fn send(self: &Arc<Self>, caller: Caller, sending: Sending) -> Result<Arc<Outgoing>, Refusal> {
        let Sending { to, mut push, from, files, expected } = sending;
        if self.stopping.load(Ordering::SeqCst) {
            return Err(Refusal::new(RefusalKind::Busy, "the agent is shutting down"));
        }
        let limits = lock(&self.limits).clone();
        self.check_room(&limits, 0)?;
        check_options(&push.options)?;
        let keeper = &self.config.gatekeeper;
        let place = keeper.place(&caller, &from, false)?;
        push.options.mark = keeper.mark(&caller, &from, push.options.mark)?;
        let failed = |error: io::Error| {
            let kind = match error.kind() {
                io::ErrorKind::NotFound => RefusalKind::NotFound,
                _ => RefusalKind::Request,
            };
            Refusal::new(kind, format!("{}: {}", place.shown, fs::describe(&error)))
        };
        let dir = match place.path.is_empty() {
            true => place.root.try_clone(),
            false => place.root.open_dir(OsStr::from_bytes(&place.path)),
        };
        let dir = Arc::new(dir.map_err(failed)?);
        let streams_max = self.streams_free(&limits);
        let streams = push.options.settings.streams.unwrap_or(STREAMS_DEFAULT).min(streams_max);
        push.options.settings.streams = Some(streams.max(1));
        let memory = Arc::new(self.memory.enter(push.options.block_bytes)?);
        let homes = self.config.homes.as_ref().map(|homes| {
            let address = to.dial.leads_to();
            homes.by(address.and_then(|address| interface_towards(&address.to_string())))
        });
        let make_end = {
            let (inner, memory, options) =
                (Arc::clone(self), Arc::clone(&memory), push.options.clone());
            Box::new(move |opened: &Opened| -> Result<AnyEnd, CopyError> {
                let options = Options { mark: opened.mark, ..options.clone() };
                let pace = Some(Arc::clone(&inner.pace));
                let key = SessionKey(opened.key);
                let session = Session::new(opened.session, key, options, memory.bytes(), pace)
                    .map_err(|error| CopyError::Failed(fs::describe(&error)))?
                    .with_collectors(&inner.config.collectors, &inner.fireflies)
                    .with_homes(homes.clone());
                memory.attach(session.pool.clone());
                let source = Source { dir: Arc::clone(&dir), path: PathBuf::new() };
                let end = SenderEnd::new(session, inner.engine, vec![source], false)
                    .listed_here(Arc::clone(&files))
                    .expecting(expected.clone());
                end.keep_account();
                Ok(AnyEnd::Send(SenderControl(Arc::new(end))))
            })
        };
        let plan = Plan { contact: to, begin: Begin::Ask(Request::Push(push)), make_end };
        let transfer = client::Transfer::start(plan)
            .map_err(|error| Refusal::new(RefusalKind::Agent, fs::describe(&error)))?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let path = display_path(place.shown.as_bytes());
        tracing::info!("transfer {id}: send {path} to {} for {}", transfer.shown(), caller.name);
        let outgoing = Arc::new(Outgoing {
            id,
            caller,
            path,
            started: SystemTime::now(),
            clock: Instant::now(),
            transfer,
            streams_max,
            memory: Mutex::new(Some(memory)),
        });
        lock(&self.outgoing).insert(id, Arc::clone(&outgoing));
        lock(&self.totals).transfers_started += 1;
        Ok(outgoing)
    }

    pub(super) fn outgoing(&self) -> Vec<Arc<Outgoing>> {
        lock(&self.outgoing).values().cloned().collect()
    }

    /// Streams of all that is sent.
    pub(super) fn outgoing_streams(&self) -> usize {
        let streams = |one: &Arc<Outgoing>| usize::from(one.transfer.snapshot().streams).max(1);
        self.outgoing().iter().map(streams).sum()
    }

    /// Takes what has ended off the list.
    pub(super) fn retire_outgoing(&self) {
        for one in self.outgoing().into_iter().filter(|one| one.outcome().is_some()) {
            if lock(&self.outgoing).remove(&one.id).is_some() {
                drop(lock(&one.memory).take());
                // One that did not even begin is tried again by whoever ordered it, and is no news.
                if one.snapshot().sessions > 0 {
                    self.remember(one.show(), |totals| one.count(totals));
                }
            }
        }
    }
}

impl Outgoing {
    /// Its number at this agent.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<(), CopyError>> {
        self.transfer.outcome()
    }

    /// How it is going.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.transfer.snapshot()
    }

    /// What became of files since the last call.
    #[must_use]
    pub fn take_settled(&self) -> Vec<Settled> {
        self.transfer.take_settled()
    }

    /// Changes it while it runs, as far as the agent's limits allow.
    pub fn change(&self, mut settings: Settings) {
        settings.streams = settings.streams.map(|streams| streams.min(self.streams_max).max(1));
        self.transfer.change(settings);
    }

    /// Has it use these pairs of addresses; any where there are none.
    ///
    /// # Errors
    /// When they make no sense.
    pub fn use_path(&self, path: &[Pair]) -> io::Result<()> {
        self.transfer.use_path(path)
    }

    /// Stops it, in a state from which the same resumes.
    pub fn cancel(&self, reason: &str) {
        self.transfer.cancel(reason);
    }

    pub(super) fn count(&self, counters: &mut Counters) {
        let snapshot = self.transfer.snapshot();
        counters.sent_bytes += snapshot.network_bytes;
        counters.blocks_repeated += snapshot.repeated;
        counters.streams_lost += snapshot.streams_lost;
    }

    pub(super) fn show(&self) -> Transfer {
        let snapshot = self.transfer.snapshot();
        let outcome = self.transfer.outcome();
        let state = match &outcome {
            None if snapshot.waiting.is_some() || snapshot.sessions == 0 => "waiting",
            None => "running",
            Some(Ok(())) if snapshot.tally.failed > 0 && !snapshot.tally.has_arrivals() => "failed",
            Some(Ok(())) => "done",
            Some(Err(CopyError::Cancelled(_))) => "cancelled",
            Some(Err(_)) => "failed",
        };
        let seconds = self.clock.elapsed().as_secs_f64();
        let mean = (snapshot.network_bytes as f64 * 8.0 / seconds.max(1e-6)) as u64;
        let tally = snapshot.tally;
        Transfer {
            id: self.id,
            caller: self.caller.name.clone(),
            peer: self.transfer.shown(),
            direction: "send",
            path: self.path.clone(),
            state,
            started: self.started,
            seconds,
            bytes: tally.bytes,
            moved_bytes: tally.moved_bytes,
            resumed_bytes: tally.resumed_bytes,
            announced_bytes: tally.announced_bytes,
            files: tally.files,
            failed: tally.failed,
            streams: snapshot.streams,
            readers: snapshot.readers,
            writers: 0,
            rate_bps: snapshot.rate_bps,
            bits_per_second: if outcome.is_some() { mean } else { snapshot.bits_per_second },
            bound_by: snapshot.bound_by.to_owned(),
            engine: snapshot.engines.0,
            retransmits: snapshot.retransmits,
            scitag: snapshot.mark.map(|mark| mark.scitag),
        }
    }
}
