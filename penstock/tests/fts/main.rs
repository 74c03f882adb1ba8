//! The REST interface of FTS3, with the clients of PyPI and real storages.

#[path = "../common/mod.rs"]
mod common;
#[path = "../gateway/issuer.rs"]
mod issuer;
#[path = "../gateway/site.rs"]
#[allow(dead_code, reason = "the gateway's tests use the rest")]
mod site;
#[path = "../gateway/xrootd.rs"]
#[allow(dead_code, reason = "the gateway's tests use the rest")]
mod xrootd;

mod agents;
mod client;
mod failures;
mod kinds;
mod operator;
mod rucio;
