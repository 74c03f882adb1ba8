//! REST interface of FTS3: jobs of third-party copies between HTTP storages.
//!
//! [`api`] serves the clients, [`driver`] runs the copies while this controller is the leader, [`copy`] makes one
//! attempt, [`same_file`] recognises copies of a file onto itself, [`storage`] is the client of storages, [`policy`] is the configuration, [`token_key`] encrypts tokens in the
//! database.
//! Between two agents of this controller ([`route`]) a request moves the file instead of a copy.

pub(crate) mod api;
mod copy;
pub(crate) mod driver;
mod partial_copy;
pub(crate) mod policy;
mod route;
mod same_file;
mod storage;
mod submit;
mod token_key;
mod views;

pub(crate) use submit::is_of_storage;
