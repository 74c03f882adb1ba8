//! Reliable control link: messages arrive once and in order across any number of lost connections.
//!
//! Each message has a number, and both ends keep messages until the peer confirms them. On reconnect
//! each end reports the last number it received and the other resumes from the next. Idle ends send
//! keepalives, which distinguishes an idle connection from a dead one.
//!
//! ```text
//! frame = length u32 | kind u8 | number u64 | body     length counts kind, number and body
//! kind 0 message with its number; 1 confirmation of all up to number; 2 keepalive, confirming likewise
//! ```

use std::collections::VecDeque;
use std::time::Duration;

/// Size limit of a message body in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Time without received bytes after which an end drops the connection.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Time without sent bytes after which an end sends a keepalive.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// Unconfirmed bytes above which an end should produce no messages.
const BACKLOG_BYTES_MAX: usize = 8 << 20;

/// Number of received messages after which a confirmation is sent at once.
const CONFIRM_AFTER_MESSAGES: u64 = 64;

const FRAME_OVERHEAD: usize = 4 + 1 + 8;

/// Reason to drop the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A frame has a wrong length or kind.
    #[error("control connection carries a damaged frame ({0})")]
    Frame(&'static str),
    /// A message number is out of order.
    #[error("control connection skips from message {expected} to {found}")]
    Order {
        /// Expected number.
        expected: u64,
        /// Received number.
        found: u64,
    },
    /// The peer confirms a message that was never sent, or requests a discarded one.
    #[error("peer confirms message {confirmed} of {sent}")]
    Confirmation {
        /// Number that the peer confirms.
        confirmed: u64,
        /// Number of messages sent.
        sent: u64,
    },
    /// No bytes within [`IDLE_TIMEOUT`].
    #[error("control connection was silent for {} s", IDLE_TIMEOUT.as_secs())]
    IdleTimeout,
}

/// One end of a control link.
#[derive(Debug)]
pub struct ControlLink {
    connected: bool,
    /// Unconfirmed messages, oldest first; the first has number `confirmed + 1`.
    unconfirmed: VecDeque<Vec<u8>>,
    unconfirmed_bytes: usize,
    confirmed: u64,
    /// Number of `unconfirmed` messages written to this connection.
    written: usize,
    received: u64,
    confirmation_sent: u64,
    partial: Vec<u8>,
    last_receive: Duration,
    last_send: Duration,
}

impl ControlLink {
    /// Creates a link without a connection.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Self {
            connected: false,
            unconfirmed: VecDeque::new(),
            unconfirmed_bytes: 0,
            confirmed: 0,
            written: 0,
            received: 0,
            confirmation_sent: 0,
            partial: Vec::new(),
            last_receive: now,
            last_send: now,
        }
    }

    /// Number of messages received, sent to the peer on reconnect.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// True while the caller may produce more messages.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.unconfirmed_bytes < BACKLOG_BYTES_MAX
    }

    /// True if the peer has confirmed every message.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.unconfirmed.is_empty()
    }

    /// Queues a message for transmission.
    ///
    /// # Panics
    /// If it is longer than [`MESSAGE_BYTES_MAX`]; the caller must prevent that.
    pub fn send(&mut self, body: Vec<u8>) {
        assert!(body.len() <= MESSAGE_BYTES_MAX, "control message of {} bytes", body.len());
        self.unconfirmed_bytes += body.len();
        self.unconfirmed.push_back(body);
    }

    /// Attaches a connection whose peer has received `peer_received` messages.
    ///
    /// # Errors
    /// If that number is impossible; the session is then lost.
    pub fn connected(&mut self, peer_received: u64, now: Duration) -> Result<(), LinkError> {
        self.confirm(peer_received)?;
        self.connected = true;
        self.written = 0;
        self.confirmation_sent = self.received;
        self.partial.clear();
        self.last_receive = now;
        self.last_send = now;
        Ok(())
    }

    /// Detaches the connection; messages stay queued.
    pub fn disconnected(&mut self) {
        self.connected = false;
        self.partial.clear();
    }

    /// Consumes bytes from the connection and returns the messages they complete.
    ///
    /// # Errors
    /// If the connection must be dropped.
    pub fn receive(&mut self, bytes: &[u8], now: Duration) -> Result<Vec<Vec<u8>>, LinkError> {
        self.last_receive = now;
        self.partial.extend_from_slice(bytes);
        let mut messages = Vec::new();
        let mut at = 0;
        while let Some(frame) = self.partial.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
            let length = u32::from_be_bytes(*frame) as usize;
            if !(9..=MESSAGE_BYTES_MAX + 9).contains(&length) {
                return Err(LinkError::Frame("length"));
            }
            let Some(frame) = self.partial.get(at + 4..at + 4 + length) else { break };
            let number = u64::from_be_bytes(frame[1..9].try_into().expect("eight bytes"));
            let kind = frame[0];
            match kind {
                0 if number == self.received + 1 => {
                    self.received = number;
                    messages.push(frame[9..].to_vec());
                }
                0 => return Err(LinkError::Order { expected: self.received + 1, found: number }),
                1 | 2 => self.confirm(number)?,
                _ => return Err(LinkError::Frame("kind")),
            }
            at += 4 + length;
        }
        self.partial.drain(..at);
        Ok(messages)
    }

    /// Appends the bytes to write now, up to about `limit`.
    ///
    /// # Errors
    /// If the peer has been silent for [`IDLE_TIMEOUT`].
    pub fn transmit(
        &mut self,
        now: Duration,
        limit: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), LinkError> {
        if !self.connected {
            return Ok(());
        }
        if now.saturating_sub(self.last_receive) > IDLE_TIMEOUT {
            return Err(LinkError::IdleTimeout);
        }
        let start = out.len();
        while out.len() - start < limit {
            let Some(body) = self.unconfirmed.get(self.written) else { break };
            frame(out, 0, self.confirmed + 1 + self.written as u64, body);
            self.written += 1;
        }
        let quiet = out.len() == start;
        let unconfirmed_received = self.received - self.confirmation_sent;
        if unconfirmed_received >= CONFIRM_AFTER_MESSAGES || (quiet && unconfirmed_received > 0) {
            frame(out, 1, self.received, &[]);
            self.confirmation_sent = self.received;
        } else if quiet && now.saturating_sub(self.last_send) >= KEEPALIVE_INTERVAL {
            frame(out, 2, self.received, &[]);
        }
        if out.len() > start {
            self.last_send = now;
        }
        Ok(())
    }

    fn confirm(&mut self, number: u64) -> Result<(), LinkError> {
        let sent = self.confirmed + self.unconfirmed.len() as u64;
        if number > sent {
            return Err(LinkError::Confirmation { confirmed: number, sent });
        }
        // A confirmation from before a reconnect may be old and then confirms nothing new.
        while self.confirmed < number {
            let body = self.unconfirmed.pop_front().expect("number is at most what was sent");
            self.unconfirmed_bytes -= body.len();
            self.confirmed += 1;
            self.written = self.written.saturating_sub(1);
        }
        Ok(())
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, number: u64, body: &[u8]) {
    let length = u32::try_from(FRAME_OVERHEAD - 4 + body.len()).expect("a body is bounded");
    out.extend_from_slice(&length.to_be_bytes());
    out.push(kind);
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEST_NOW: Duration = Duration::from_secs(100);

    fn connect(a: &mut ControlLink, b: &mut ControlLink) {
        let (from_a, from_b) = (a.received(), b.received());
        a.connected(from_b, TEST_NOW).expect("b received what a sent");
        b.connected(from_a, TEST_NOW).expect("a received what b sent");
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        /// Each message arrives once and in order, in both directions, for any cuts.
        #[test]
        fn messages_survive_lost_connections(
            cuts in proptest::collection::vec((0_usize..120, 0_usize..120, 1_usize..7), 1..30),
        ) {
            let (mut a, mut b) = (ControlLink::new(TEST_NOW), ControlLink::new(TEST_NOW));
            let (mut sent, mut at_a, mut at_b) = (0_u32, Vec::new(), Vec::new());
            let sink = |link: &mut ControlLink, bytes: &[u8], to: &mut Vec<Vec<u8>>| {
                for piece in bytes.chunks(5) {
                    to.extend(link.receive(piece, TEST_NOW).expect("frames are whole"));
                }
            };
            for (cut_a, cut_b, count) in cuts {
                connect(&mut a, &mut b);
                for _ in 0..count {
                    a.send(sent.to_be_bytes().to_vec());
                    b.send((!sent).to_be_bytes().to_vec());
                    sent += 1;
                }
                let (mut from_a, mut from_b) = (Vec::new(), Vec::new());
                a.transmit(TEST_NOW, 1000, &mut from_a).expect("the peer is not silent");
                b.transmit(TEST_NOW, 1000, &mut from_b).expect("the peer is not silent");
                sink(&mut b, &from_a[..cut_a.min(from_a.len())], &mut at_b);
                sink(&mut a, &from_b[..cut_b.min(from_b.len())], &mut at_a);
                a.disconnected();
                b.disconnected();
            }
            connect(&mut a, &mut b);
            for _ in 0..4 {
                let (mut from_a, mut from_b) = (Vec::new(), Vec::new());
                a.transmit(TEST_NOW, 1 << 20, &mut from_a).expect("the peer is not silent");
                b.transmit(TEST_NOW, 1 << 20, &mut from_b).expect("the peer is not silent");
                sink(&mut b, &from_a, &mut at_b);
                sink(&mut a, &from_b, &mut at_a);
            }
            let expected: Vec<_> = (0..sent).map(|n| n.to_be_bytes().to_vec()).collect();
            prop_assert_eq!(at_b, expected);
            let expected: Vec<_> = (0..sent).map(|n| (!n).to_be_bytes().to_vec()).collect();
            prop_assert_eq!(at_a, expected);
            prop_assert!(a.is_settled() && b.is_settled());
        }

        #[test]
        fn arbitrary_messages_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ControlLink::new(TEST_NOW).receive(&bytes, TEST_NOW);
        }
    }

    #[test]
    fn idle_link_sends_keepalives_then_closes() {
        let (mut a, mut b) = (ControlLink::new(TEST_NOW), ControlLink::new(TEST_NOW));
        connect(&mut a, &mut b);
        let mut out = Vec::new();
        a.transmit(TEST_NOW + KEEPALIVE_INTERVAL, 1000, &mut out)
            .expect("the peer is not silent yet");
        assert_eq!(out.len(), FRAME_OVERHEAD);
        assert_eq!(b.receive(&out, TEST_NOW), Ok(vec![]));
        let late = TEST_NOW + IDLE_TIMEOUT + Duration::from_millis(1);
        assert_eq!(a.transmit(late, 1000, &mut out), Err(LinkError::IdleTimeout));
    }
}
