//! Gateway: the agent's exports for clients of other protocols.
//!
//! ```text
//! curl, davix, gfal2, xrdcp, rclone ── HTTP, WebDAV ──┐
//! ROOT, uproot, xrdcp ── root://, reading ────────────┤
//!                                                     ├── gatekeeper (exports, tokens) ── files
//! penstock cp ── mover ───────────────────────────────┘         agent (limits, list, labels)
//! ```
//!
//! The role `gateway` of `penstock serve`, configured by the table `[gateway]`. It has addresses of its own, as clients
//! address files by path alone. Requests obey the gatekeeper of the agent, and their data counts as transfers of the
//! agent ([`penstock_mover::GatewayTransfer`]).
//!
//! | module | purpose |
//! |---|---|
//! | [`config`] | the table `[gateway]` |
//! | `access` | credentials of a request |
//! | [`head`] | redirects to the agents behind a head node |
//! | `redirected` | requests that a head node redirected here |
//! | `url_path` | from the path of a URL to the path of an export |
//! | `dispatch` | methods and their errors |
//! | `read`, `range`, `conditions` | `GET` and `HEAD` |
//! | `write` | `PUT` |
//! | `read_ahead`, `batch_writer` | data between the network and storage without a thread for each client |
//! | `namespace` | `MKCOL`, `DELETE`, `MOVE`, `COPY` |
//! | `tree_copy`, `staged` | `COPY` inside this server, and replacing by exchange |
//! | `third_party` | `COPY` from and to other servers |
//! | `properties` | `PROPFIND`, `PROPPATCH` |
//! | `digest` | digests of files, stored in extended attributes |
//! | `macaroon` | `POST` of a request for a derived token |
//! | `account` | the transfers of a connection |
//! | `root` | `root://`, the protocol of XRootD, for reading |
//!
//! Not for: the agent's own API (`penstock-agent`), nor for what a client may do (its gatekeeper decides).

#![forbid(unsafe_code)]

mod access;
mod account;
mod batch_writer;
mod conditions;
pub mod config;
mod digest;
mod dispatch;
mod error;
#[doc(hidden)]
pub mod fuzzing;
pub(crate) mod head;
mod macaroon;
mod namespace;
mod properties;
mod range;
mod read;
mod read_ahead;
mod redirected;
mod role;
mod root;
mod staged;
mod third_party;
mod tree_copy;
mod url_path;
mod write;

pub use config::Config;
pub use role::{GatewayRole, GatewayStartError};
