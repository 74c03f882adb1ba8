//! Control connections of an agent: sessions that are opened, and those whose client reconnects.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use penstock_protocol::link::ControlLink;
use penstock_protocol::open::{
    Answer, FEATURE_OBSERVE, FEATURE_RDMA, OpenRequest, Opened, Protection, Reconnect, Refusal,
    RefusalKind, Request, dscp_feature, dscp_of_features,
};
use penstock_protocol::proof::SessionKey;
use penstock_sys::net::{interface_with, is_own_address};
use penstock_units::Dscp;

use super::active_session::ActiveSession;
use super::agent::AgentInner;
use super::delegate::{Delegate, DelegatedStreams};
use super::limits::PendingGrant;
use crate::base::lock::lock;
use crate::base::software::software;
use crate::base::timeouts::PEER_TIMEOUT;
use crate::endpoint::session_setup;
use crate::net::channel::Channel;
use crate::net::connector::{StreamDscp, TransportChoice};
use crate::net::handshake;
use crate::session::control::{self, DriveEnd};
use crate::session::gatekeeper::Caller;
use crate::session::outcome::SessionOutcome;
use crate::sink::destination::ReleasePartial;

impl AgentInner {
    pub(super) fn control(self: &Arc<Self>, mut channel: Channel, pending: u64) -> io::Result<()> {
        let open = handshake::read_request(&mut channel)?;
        // Before anything is granted: later failures belong to a session.
        channel.transport().notice_death(PEER_TIMEOUT)?;
        let handle = channel.transport().try_clone()?;
        if open.request == Request::Check(()) {
            return self.check(&open, channel);
        }
        let granted = match open.request {
            Request::Reconnect(ref back) => self.reconnect(back),
            _ => self.grant(&open, &channel),
        };
        let (running, answer) = match granted {
            Ok(granted) => granted,
            Err(refusal) => {
                tracing::info!("{}: refused: {}", channel.transport().peer(), refusal.text);
                handshake::send_answer(&mut channel, &Answer::Refused(refusal.clone()))?;
                return Err(io::Error::other(refusal.text));
            }
        };
        self.pending.remove(pending);
        if let Some(earlier) = lock(&running.connection).replace(handle) {
            earlier.shut_down();
        }
        // The driver of an earlier connection releases the link when that connection is shut down.
        let mut link = lock(&running.link);
        *lock(&running.lost) = None;
        let peer_received = match &open.request {
            Request::Reconnect(back) => back.received,
            _ => 0,
        };
        let answer = match answer {
            Answer::Reconnected(_) => Answer::Reconnected(link.received()),
            other => other,
        };
        let clock = running.clock();
        let stopped = match handshake::send_answer(&mut channel, &answer) {
            Ok(()) => match link.connected(peer_received, clock.elapsed()) {
                Ok(()) => control::drive(running.control(), &mut link, &mut channel, clock),
                Err(error) => DriveEnd::Fault(error.to_string()),
            },
            // The client disconnected before the answer: the session waits for it like any other.
            Err(error) => DriveEnd::Lost(error.to_string()),
        };
        link.disconnected();
        // With the link still held, so that a client that is already back does not count as lost.
        self.stopped(&running, stopped);
        drop(link);
        Ok(())
    }

    fn stopped(&self, running: &Arc<ActiveSession>, stopped: DriveEnd) {
        let session = running.end.session();
        match stopped {
            DriveEnd::Lost(why) if !session.is_over() => {
                tracing::info!("transfer {}: client lost ({why}), waiting for it", running.id);
                *lock(&running.lost) = Some(Instant::now());
            }
            DriveEnd::Fault(why) => {
                session.end(SessionOutcome::Failed(why));
                self.retire(running);
            }
            DriveEnd::Over | DriveEnd::Lost(_) => self.retire(running),
        }
    }

    /// Answers an authentication check.
    fn check(&self, open: &OpenRequest, mut channel: Channel) -> io::Result<()> {
        let (peer, certificate) = (channel.transport().peer(), channel.peer_fingerprint());
        let keeper = &self.config.gatekeeper;
        let answer = match keeper.authenticate(&open.token, certificate.as_ref(), &peer) {
            Ok(caller) => Answer::Known(caller.name),
            Err(refusal) => Answer::Refused(refusal),
        };
        handshake::send_answer(&mut channel, &answer)?;
        channel.finish_writing();
        Ok(())
    }

    fn reconnect(&self, back: &Reconnect) -> Result<(Arc<ActiveSession>, Answer), Refusal> {
        let running = lock(&self.sessions).get(&back.session).cloned();
        let running =
            running.filter(|running| *running.end.session().key() == SessionKey(back.key));
        match running {
            Some(running) => Ok((running, Answer::Reconnected(0))),
            None => Err(Refusal::new(RefusalKind::UnknownSession, "no such session")),
        }
    }

    pub(super) fn grant(
        self: &Arc<Self>,
        open: &OpenRequest,
        channel: &Channel,
    ) -> Result<(Arc<ActiveSession>, Answer), Refusal> {
        let peer = channel.transport().peer();
        let keeper = &self.config.gatekeeper;
        let caller =
            keeper.authenticate(&open.token, channel.peer_fingerprint().as_ref(), &peer)?;
        if self.stopping.load(Ordering::SeqCst) {
            return Err(Refusal::new(RefusalKind::Busy, "the agent is shutting down: try again"));
        }
        let limits = lock(&self.limits).clone();
        // Counts towards the limit from here on, until it is a session or refused.
        let entering = PendingGrant::new(&self.entering);
        self.check_room(&limits, entering.others)?;
        let requested = dscp_of_features(&open.features);
        let dscp = StreamDscp { requested, own: limits.dscp.decide(requested)? };
        let memory = self.memory.acquire(session_setup::block_bytes(&open.request))?;
        let grant = session_setup::SessionBuilder {
            keeper: keeper.as_ref(),
            caller: &caller,
            engine: self.engine,
            state: Some(&self.config.state),
            memory_bytes: memory.bytes(),
            homes: self.config.homes.as_ref().map(|homes| {
                let address = channel.transport().own_address();
                homes.via_interface(address.and_then(interface_with))
            }),
            pace: Some(Arc::clone(&self.pace)),
            collectors: &self.config.collectors,
            fireflies: &self.fireflies,
            locks: Some(&self.locks),
            release_partial: Some(self.release_partials_of(&caller)),
        };
        let granted = grant.build(&open.request, &|journal| {
            self.end_lost_sessions(|running| running.journal.as_ref() == Some(journal));
            channel.check_open().is_ok()
        })?;
        let session = granted.end.session();
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (delegate, name) = match &open.request {
            // The session has its identifier at the other agent, which may be this one too.
            Request::ThirdParty(request) => {
                let free = self.streams_free(&limits, None);
                let from_here = channel.transport().peer_address().is_none_or(is_own_address);
                let allowed = |to| keeper.may_send_to(to, from_here || self.listens_on(to));
                let is_observed = open.features.iter().any(|feature| feature == FEATURE_OBSERVE);
                let (to, end) = (&request.host, &granted.end);
                let tuning = self.delegate_tuning(id, to, end, &limits, free, is_observed);
                let end = granted.end.clone();
                let transport = TransportChoice::of_features(&open.features);
                let streams = DelegatedStreams { transport, dscp, streams_max: free, tuning };
                let delegate = Delegate::start(request, end, streams, &allowed)?;
                (Some(delegate), handshake::random())
            }
            _ => (None, session.id),
        };
        memory.attach(session.pool.clone());
        let opened = Opened {
            session: name,
            key: session.key().0,
            software: software(),
            features: common_features(open, session.options.protection, requested, || {
                self.allows_cleartext(channel)
            }),
            streams_max: limits.streams_per_transfer,
            transfer: id,
            mark: session.options.mark,
        };
        let running = Arc::new(ActiveSession {
            id,
            session: name,
            caller,
            peer,
            path: granted.path,
            journal: granted.journal,
            started: SystemTime::now(),
            conditions: self.start_conditions(Some(&granted.end.session().options)),
            dscp: dscp.sent(),
            link: Mutex::new(ControlLink::new(Duration::ZERO)),
            connection: Mutex::default(),
            lost: Mutex::default(),
            rate: Mutex::default(),
            memory: Mutex::new(Some(memory)),
            joined: AtomicUsize::new(0),
            by_rdma: AtomicBool::new(false),
            by_tcp: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            end: granted.end,
            delegate,
        });
        tracing::info!(
            "transfer {id}: {} {} for {}",
            running.end.direction(),
            running.path,
            running.caller.name
        );
        lock(&self.sessions).insert(running.session, Arc::clone(&running));
        lock(&self.totals).transfers_started += 1;
        // A withdrawn pass ends only the transfers that are listed; one listed later ends itself.
        if !keeper.still_admits(&running.caller) {
            let why = "what let it in was withdrawn meanwhile";
            running.end.session().end(SessionOutcome::Failed(why.to_owned()));
            self.retire(&running);
            return Err(Refusal::new(RefusalKind::Permission, why));
        }
        if running.delegate.is_none() {
            running.end.start();
        }
        Ok((running, Answer::Opened(opened)))
    }

    /// Ends matching sessions that have lost their client, so that their successors can start.
    pub(super) fn end_lost_sessions(&self, is_meant: impl Fn(&ActiveSession) -> bool) {
        let running: Vec<_> = lock(&self.sessions).values().cloned().collect();
        for running in running {
            if lock(&running.lost).is_some() && is_meant(&running) {
                running
                    .end
                    .session()
                    .end(SessionOutcome::Failed("its client opened a new session".to_owned()));
                self.retire(&running);
            }
        }
    }

    /// Returns a callback that ends sessions of `caller` that have lost their client and hold a partial
    /// file that another session of the same caller continues.
    pub(super) fn release_partials_of(self: &Arc<Self>, caller: &Caller) -> Arc<ReleasePartial> {
        let (agent, caller) = (Arc::downgrade(self), caller.name.clone());
        Arc::new(move |partial| {
            let Some(agent) = agent.upgrade() else { return };
            agent.end_lost_sessions(|running| {
                running.caller.name == caller && running.end.has_partial(partial)
            });
        })
    }
}

/// Features of the client that this agent has, too. RDMA encrypts nothing, which the operator may allow, and another agent
/// joins a third-party copy, of which the requester may leave the transport to this one.
fn common_features(
    open: &OpenRequest,
    protection: Protection,
    dscp: Option<Dscp>,
    allows_cleartext: impl Fn() -> bool,
) -> Vec<String> {
    let served = match open.request {
        Request::ThirdParty(_) => TransportChoice::of_features(&open.features).feature(),
        _ if protection == Protection::Integrity || allows_cleartext() => Some(FEATURE_RDMA),
        _ => None,
    };
    let is_asked = |name: &&str| open.features.iter().any(|feature| feature == name);
    served.filter(is_asked).map(str::to_owned).into_iter().chain(dscp.map(dscp_feature)).collect()
}

#[cfg(test)]
mod tests {
    use penstock_protocol::open::FEATURE_TRANSPORT_AUTO;

    use super::*;

    fn common(
        features: &[&str],
        request: Request,
        protection: Protection,
        allows_cleartext: bool,
    ) -> Vec<String> {
        let features: Vec<_> = features.iter().map(|&feature| feature.to_owned()).collect();
        let dscp = dscp_of_features(&features);
        let open = OpenRequest { software: String::new(), token: String::new(), features, request };
        common_features(&open, protection, dscp, || allows_cleartext)
    }

    #[test]
    fn features_follow_request_and_protection() {
        let asked = [FEATURE_RDMA, "later", FEATURE_TRANSPORT_AUTO, FEATURE_RDMA];
        let check = || Request::Check(());
        assert_eq!(common(&asked, check(), Protection::Integrity, false), [FEATURE_RDMA]);
        assert!(common(&asked, check(), Protection::Full, false).is_empty());
        assert_eq!(common(&asked, check(), Protection::Full, true), [FEATURE_RDMA]);
        assert!(common(&["later"], check(), Protection::Integrity, true).is_empty());
        assert_eq!(common(&["dscp-1", "dscp-x"], check(), Protection::Full, false), ["dscp-1"]);
    }
}
