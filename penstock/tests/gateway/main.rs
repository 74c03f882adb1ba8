//! The gateway: files of an agent over HTTP and WebDAV.

#[path = "../common/mod.rs"]
mod common;

mod clients;
mod configuration;
mod filesystems;
mod head;
mod http;
mod issuer;
mod labels;
mod limits;
mod macaroons;
mod many_copies;
mod mover_pull;
mod mover_push;
mod namespace;
mod root;
mod site;
mod third_party;
mod tokens;
mod uploads;
mod xrootd;
