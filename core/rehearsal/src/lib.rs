//! Operations of many sites played in virtual time, before they are real.
//!
//! ```text
//! demand ── requests ──> desk <── reports, orders ──> nodes
//!                          └── a round: snapshot → penstock-operations → decision
//! ```
//!
//! For: what arrives in a day ([`demand`]), nodes that move it at the rates they are told ([`nodes`]), a controller without a
//! database ([`books`]), what came of it ([`figures`]). A [`desk::Desk`] is what both kinds of controller are to a
//! rehearsal: the books here, and the store of `penstock-controller`. Not for: clocks, files, threads; how rates are shared.
//!
//! What is not simulated: packets, congestion, disks. A transfer has exactly the rate that it is told while both ends are up.

#![forbid(unsafe_code)]

pub mod books;
pub mod demand;
pub mod desk;
pub mod figures;
pub mod nodes;
