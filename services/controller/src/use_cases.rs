//! Use cases of the controller, one per file: transactions of the repository around decisions of `penstock-control`.

pub(crate) mod append;
pub(crate) mod cancel;
pub(crate) mod change;
pub(crate) mod deadline;
pub(crate) mod fts_requests;
pub(crate) mod maintenance;
pub(crate) mod network;
pub(crate) mod outcomes;
mod quota_ledger;
pub(crate) mod report;
pub(crate) mod reserve;
pub(crate) mod schedule;
pub(crate) mod submit;
pub(crate) mod waiting;

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
