//! Choice between RDMA and TCP for each stream of a transfer, and the account of it.
//!
//! With `Auto` the first failure of RDMA turns the streams that join later to TCP: those that run stay, and any block
//! may use any stream. With `Rdma` the transfer fails unless a stream has joined by RDMA before; from then on streams
//! are joined again like those of TCP.

use std::sync::Mutex;

use penstock_protocol::open::{FEATURE_RDMA, Mark, Opened, Protection};

use crate::base::lock::lock;
use crate::endpoint::end::Endpoint;
use crate::net::connector::{JoinedStream, PeerConnector, TransportChoice};
use crate::net::rdma::{RdmaStreamError, transport_name};

/// Consecutive connections lost during the exchange of RDMA parameters that count as a failure of RDMA.
const LOSSES_MAX: u32 = 3;

/// Transports of the streams of a transfer.
#[derive(Debug)]
pub(super) struct StreamTransports {
    choice: TransportChoice,
    state: Mutex<TransportUse>,
}

/// Streams so far by transport, and the reason for the present one.
#[derive(Debug, Default)]
struct TransportUse {
    by_rdma: u64,
    by_tcp: u64,
    /// Reason for which streams no longer try RDMA.
    obstacle: Option<String>,
    /// Device of the first stream by RDMA.
    device: String,
    /// Set where copies are to be encrypted, and RDMA is an exception.
    is_exception: bool,
    /// Consecutive losses during the exchange.
    losses: u32,
}

/// Consequence of a failure of RDMA.
#[derive(Debug, PartialEq, Eq)]
enum AfterFailure {
    /// The stream joins again in the same way.
    Retry,
    /// Streams join by TCP from now on.
    UseTcp,
    /// The transfer fails.
    Fail,
}

impl TransportUse {
    fn joined_by_rdma(&mut self, device: &str) {
        self.by_rdma += 1;
        self.losses = 0;
        if self.device.is_empty() {
            device.clone_into(&mut self.device);
        }
    }

    /// Records a failure of RDMA.
    fn failed(&mut self, choice: TransportChoice, reason: &str, is_loss: bool) -> AfterFailure {
        self.losses = if is_loss { self.losses + 1 } else { 0 };
        if is_loss && self.losses < LOSSES_MAX {
            return AfterFailure::Retry;
        }
        match choice {
            TransportChoice::Rdma if self.by_rdma > 0 => AfterFailure::Retry,
            TransportChoice::Rdma => {
                self.obstacle.get_or_insert_with(|| reason.to_owned());
                AfterFailure::Fail
            }
            TransportChoice::Auto | TransportChoice::Tcp => {
                self.obstacle.get_or_insert_with(|| reason.to_owned());
                AfterFailure::UseTcp
            }
        }
    }

    const fn name(&self) -> &'static str {
        transport_name(self.by_rdma > 0, self.by_tcp > 0)
    }

    /// Reason for the choice, if there was one.
    fn reason(&self, choice: TransportChoice) -> String {
        match (choice, &self.obstacle) {
            (TransportChoice::Tcp, _) => String::new(),
            (_, Some(obstacle)) => obstacle.clone(),
            (_, None) if self.by_rdma > 0 => {
                let exception = match self.is_exception {
                    true => "; its data is not encrypted, as unencrypted in [rdma] allows",
                    false => "",
                };
                let device = &self.device;
                format!("{device} has the address of this end, and the path is open{exception}")
            }
            (_, None) => String::new(),
        }
    }
}

impl StreamTransports {
    pub(super) fn new(contact: &PeerConnector) -> Self {
        let is_exception = contact.protection == Protection::Full;
        let mut state = TransportUse { is_exception, ..TransportUse::default() };
        if contact.transport != TransportChoice::Tcp && !contact.wants_rdma() {
            let text = "RDMA does not encrypt, and full protection was asked for";
            state.obstacle = Some(text.to_owned());
        }
        Self { choice: contact.transport, state: Mutex::new(state) }
    }

    /// Transport of the streams, and the reason for it; both empty without.
    pub(super) fn report(&self) -> (&'static str, String) {
        let state = lock(&self.state);
        (state.name(), state.reason(self.choice))
    }

    /// Reason for which a transfer that requires RDMA has failed.
    pub(super) fn failure(&self) -> Option<String> {
        let state = lock(&self.state);
        state.obstacle.clone().filter(|_| self.choice == TransportChoice::Rdma)
    }

    /// Joins a stream by the transport whose turn it is.
    ///
    /// # Errors
    /// The reason for which this attempt failed; the caller tries again unless the session is over.
    pub(super) fn join(
        &self,
        contact: &PeerConnector,
        opened: &Opened,
        stream: u32,
        mark: Option<Mark>,
        end: &Endpoint,
    ) -> std::io::Result<JoinedStream> {
        let by_rdma = contact.wants_rdma() && lock(&self.state).obstacle.is_none();
        if !by_rdma {
            let joined = contact.join(opened, stream, mark)?;
            lock(&self.state).by_tcp += 1;
            return Ok(joined);
        }
        let attempt = match opened.features.iter().any(|feature| feature == FEATURE_RDMA) {
            true => contact.join_by_rdma(opened, stream, mark, end.rdma_settings()),
            false => Err(RdmaStreamError::There(
                match contact.protection {
                    Protection::Integrity => "it does not offer RDMA: it runs an earlier release",
                    Protection::Full => {
                        "it does not offer RDMA: unencrypted in its [rdma] does not have this host"
                    }
                }
                .to_owned(),
            )),
        };
        let failure = match attempt {
            Ok(joined) => {
                lock(&self.state).joined_by_rdma(joined.channel.rdma_device().unwrap_or_default());
                return Ok(joined);
            }
            Err(RdmaStreamError::Connection(error)) => return Err(error),
            Err(failure) => failure,
        };
        let text = failure.to_string();
        match lock(&self.state).failed(self.choice, &text, failure.is_loss()) {
            AfterFailure::Retry => {}
            AfterFailure::UseTcp => tracing::warn!("streams use TCP, not RDMA: {text}"),
            AfterFailure::Fail => end.cancel(&text),
        }
        Err(std::io::Error::other(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(state: &mut TransportUse, choice: TransportChoice) -> AfterFailure {
        state.failed(choice, "this host has no RDMA device", false)
    }

    #[test]
    fn auto_falls_back_and_says_why() {
        let mut state = TransportUse::default();
        assert_eq!(state.reason(TransportChoice::Auto), "");
        assert_eq!(fail(&mut state, TransportChoice::Auto), AfterFailure::UseTcp);
        state.by_tcp += 3;
        assert_eq!(state.name(), "tcp");
        assert_eq!(state.reason(TransportChoice::Auto), "this host has no RDMA device");
    }

    #[test]
    fn required_rdma_fails_before_first_stream() {
        let mut state = TransportUse::default();
        assert_eq!(fail(&mut state, TransportChoice::Rdma), AfterFailure::Fail);
        let mut state = TransportUse::default();
        state.joined_by_rdma("rxe0");
        assert_eq!(fail(&mut state, TransportChoice::Rdma), AfterFailure::Retry);
        assert_eq!((state.name(), state.obstacle.clone()), ("rdma", None));
        assert!(state.reason(TransportChoice::Auto).starts_with("rxe0 has the address"));
    }

    #[test]
    fn lost_exchanges_count_as_failure() {
        let mut state = TransportUse::default();
        let mut lose = || state.failed(TransportChoice::Auto, "closed", true);
        assert_eq!([lose(), lose()], [AfterFailure::Retry, AfterFailure::Retry]);
        assert_eq!(lose(), AfterFailure::UseTcp);
    }

    #[test]
    fn later_fallback_is_mixed() {
        let mut state = TransportUse::default();
        state.joined_by_rdma("rxe0");
        assert_eq!(fail(&mut state, TransportChoice::Auto), AfterFailure::UseTcp);
        state.by_tcp += 1;
        assert_eq!(state.name(), "mixed");
    }
}
