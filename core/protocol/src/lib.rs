//! Transfer protocol of the mover: wire formats and the state machines of sender and receiver.
//!
//! Sans-I/O: this crate opens no socket or file, starts no thread and reads no clock.
//! [`sender::Sender`] and [`receiver::Receiver`] consume messages and events and produce messages and
//! work. `penstock-mover` drives them with threads, sockets and files; the tests of this crate drive
//! them over an in-memory network that drops connections at seeded moments.
//!
//! A transfer has one control connection and any number of data connections, all to one TCP port:
//!
//! | layer | module |
//! |---|---|
//! | preamble of every connection | [`preamble`] |
//! | opening and joining a session, authentication | [`open`], [`proof`] |
//! | control messages, delivered once and in order across reconnects | [`link`], [`control`] |
//! | self-describing frames on data streams | [`block`] |
//! | third-party copy between two agents | [`third_party`] |
//! | paths, metadata, ranges and digests of files | [`manifest`], [`list`], [`extents`], [`digest`] |
//! | resume journal of the receiver | [`journal`] |
//!
//! `docs/protocol.md` specifies the bytes for other implementers.

#![forbid(unsafe_code)]

pub mod block;
pub mod control;
pub mod digest;
pub mod extents;
pub mod journal;
pub mod link;
pub mod list;
pub mod manifest;
pub mod open;
pub mod pace;
pub mod preamble;
pub mod proof;
pub mod receiver;
pub mod sender;
pub mod third_party;
pub mod wire;

/// Protocol version; both ends must have the same.
pub const PROTOCOL_VERSION: u16 = 3;
