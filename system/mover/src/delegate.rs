//! An agent that sends files into a session at another agent, because a third party asks for it.
//!
//! Towards the destination it is a client like any other, with a session that somebody else opened.
//! Towards the requester it is a source of progress: [`Delegate`] is the end of a link that carries no
//! files. When the requester stays away the agent ends the session, and the same request resumes.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_protocol::control::Placed;
use penstock_protocol::open::{Refusal, RefusalKind};
use penstock_protocol::third_party::{Ended, FromSource, Progress, ThirdParty, ToSource};
use penstock_protocol::wire::{self, WireFormat};
use penstock_sys::event::Event;

use crate::client::{Begin, Plan, Snapshot, Transfer};
use crate::contact::{Contact, CopyError};
use crate::control::End;
use crate::dial::TcpDial;
use crate::granting::AnyEnd;
use crate::identity::{Fingerprint, tls_client_config};
use crate::session::lock;

/// Longest that a requester may have the destination stay out of reach.
const GIVE_UP_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// About the longest list of errors or files in one message.
const LIST_BYTES: usize = 128 * 1024;

/// A transfer to another agent, as its requester follows it.
#[derive(Debug)]
pub struct Delegate {
    transfer: Transfer,
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    /// It is time to say how it is going.
    due: bool,
    /// Errors that were said.
    errors: usize,
    /// Warnings that were said.
    warnings: usize,
    /// Files in place that were not.
    placed: VecDeque<Placed>,
    /// The last progress was said.
    last: bool,
    /// Everything was said.
    ended: bool,
}

fn addresses(texts: &[String]) -> Result<Vec<IpAddr>, Refusal> {
    let parse = |text: &String| {
        text.parse().map_err(|_| {
            Refusal::new(
                RefusalKind::Request,
                format!("'{text}' is no address: write it in figures"),
            )
        })
    };
    texts.iter().map(parse).collect()
}

impl Delegate {
    /// Starts to send what `end` reads into the session that the request names, over as many streams as
    /// the destination and this agent allow, to such of its addresses as are `allowed`.
    ///
    /// # Errors
    /// When the destination has no address or none that is allowed, or this process no more descriptors.
    pub fn start(
        request: &ThirdParty,
        end: AnyEnd,
        streams_max: u16,
        allowed: &dyn Fn(SocketAddr) -> Result<(), Refusal>,
    ) -> Result<Self, Refusal> {
        let refuse = |error: std::io::Error| Refusal::new(RefusalKind::Request, error.to_string());
        let (to, from) = (addresses(&request.to)?, addresses(&request.from)?);
        let congestion = request.congestion.clone();
        let dial =
            TcpDial::new(&request.host, request.port, &to, &from, congestion).map_err(refuse)?;
        let dial = dial.only_to(allowed)?;
        let tls = tls_client_config(Fingerprint(request.fingerprint), None)
            .map_err(|error| Refusal::new(RefusalKind::Agent, error.to_string()))?;
        if request.keep_placed {
            end.keep_placed(request.digest_skipped);
        }
        let contact = Contact {
            dial: Arc::new(dial),
            tls,
            token: String::new(),
            protection: request.pull.options.protection,
            give_up_after: Duration::from_secs(u64::from(request.give_up_after))
                .min(GIVE_UP_AFTER_MAX),
        };
        let mut session = request.session.clone();
        session.streams_max = session.streams_max.min(streams_max);
        let plan = Plan {
            contact,
            begin: Begin::Adopt(session),
            make_end: Box::new(move |_| Ok(end.clone())),
        };
        let transfer = Transfer::start(plan).map_err(refuse)?;
        Ok(Self { transfer, said: Mutex::default() })
    }

    fn next(&self, said: &mut Said) -> Option<FromSource> {
        // Looked at first, so that what is said after an end is all that there was.
        let outcome = self.transfer.outcome();
        if said.last {
            said.ended = true;
            let begun = self.transfer.snapshot().sessions > 0;
            return outcome.map(|outcome| FromSource::Ended(ended(outcome, begun)));
        }
        if !said.due && outcome.is_none() {
            return None;
        }
        let snapshot = self.transfer.snapshot();
        said.placed.extend(self.transfer.take_placed());
        let errors = limited(&mut snapshot.tally.errors.iter().skip(said.errors).cloned());
        if !errors.is_empty() {
            said.errors += errors.len();
            return Some(FromSource::Errors(errors));
        }
        let warnings = limited(&mut snapshot.tally.warnings.iter().skip(said.warnings).cloned());
        if !warnings.is_empty() {
            said.warnings += warnings.len();
            return Some(FromSource::Warnings(warnings));
        }
        let placed = limited(&mut std::iter::from_fn(|| said.placed.pop_front()));
        if !placed.is_empty() {
            return Some(FromSource::Placed(placed));
        }
        said.due = false;
        said.last = outcome.is_some();
        Some(FromSource::Progress(Box::new(progress(snapshot))))
    }
}

/// As many items as make a message of moderate length.
fn limited<T: WireFormat>(items: &mut dyn Iterator<Item = T>) -> Vec<T> {
    let mut bytes = 0;
    let mut list = Vec::new();
    while bytes < LIST_BYTES {
        let Some(item) = items.next() else { break };
        bytes += wire::encode(&item).len();
        list.push(item);
    }
    list
}

fn progress(snapshot: Snapshot) -> Progress {
    Progress {
        tally: snapshot.tally,
        streams: snapshot.streams,
        streams_peak: snapshot.streams_peak,
        bits_per_second: snapshot.bits_per_second,
        bound_by: snapshot.bound_by.to_owned(),
        engines: snapshot.engines,
        retransmits: snapshot.retransmits,
        network_bytes: snapshot.network_bytes,
        cpu_us: snapshot.cpu_us,
        streams_lost: snapshot.streams_lost,
        repeated: snapshot.repeated,
        mark: snapshot.mark,
        label: snapshot.label,
        readers: snapshot.readers,
        rate_bps: snapshot.rate_bps,
        dropped: snapshot.dropped,
    }
}

/// `begun`: the destination was reached once, so that another session may reach it again.
fn ended(outcome: Result<(), CopyError>, begun: bool) -> Ended {
    match outcome {
        Ok(()) => Ended::Finished(()),
        Err(CopyError::Cancelled(reason)) => Ended::Cancelled(reason),
        Err(error @ CopyError::Forgotten(_)) => Ended::Forgotten(error.to_string()),
        Err(error) if begun && error.may_pass() => Ended::Forgotten(error.to_string()),
        Err(error) => Ended::Failed(error.to_string()),
    }
}

impl End for Delegate {
    fn is_over(&self) -> bool {
        lock(&self.said).ended
    }

    fn wake(&self) -> &Event {
        self.transfer.over()
    }

    fn poll_message(&self) -> Option<Vec<u8>> {
        let mut said = lock(&self.said);
        if said.ended {
            return None;
        }
        self.next(&mut said).as_ref().map(wire::encode)
    }

    fn on_message(&self, message: &[u8]) -> Result<(), String> {
        match wire::decode(message).map_err(|error| error.to_string())? {
            ToSource::Settings(settings) => self.transfer.change(settings),
            ToSource::Cancel(reason) => self.transfer.cancel(&reason),
        }
        Ok(())
    }

    fn tick(&self) {
        lock(&self.said).due = true;
    }
}
