//! Jobs of FTS3 clients: states, submissions, checksums, and the reports of third-party copies.

pub mod checksum;
pub mod progress;
pub mod state;
pub mod submission;
