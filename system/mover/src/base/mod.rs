//! Foundations of all other folders: threads, locks, limits, time-outs, storage engines.

pub(crate) mod convert;
pub(crate) mod engine;
pub(crate) mod file_digest;
pub(crate) mod limits;
pub(crate) mod lock;
pub(crate) mod software;
pub(crate) mod spawn;
pub(crate) mod sync;
pub(crate) mod temporary_name;
#[cfg(test)]
pub(crate) mod test_options;
pub(crate) mod timeouts;
