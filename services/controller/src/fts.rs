//! REST interface of FTS3: jobs of third-party copies between HTTP storages.
//!
//! [`api`] serves the clients, [`driver`] runs the copies while this controller is the leader, [`copy`] makes one
//! attempt, [`storage`] is the client of one storage with the check of its address, [`policy`] is the configuration.
//! Between two agents of this controller ([`route`]) a request moves the file instead of a copy.

pub(crate) mod api;
mod copy;
pub(crate) mod driver;
pub(crate) mod policy;
mod route;
mod storage;
mod submit;
mod views;

pub(crate) use submit::is_of_storage;
