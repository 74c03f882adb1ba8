//! Errors of the combined layers of an agent's configuration, which belong to no line of its file.

use std::io;
use std::path::PathBuf;

use penstock_scopes::ScopePath;
use penstock_units::ByteCount;

use super::ExportName;

/// A configuration whose values do not fit each other or this machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentConfigError {
    /// A root directory beside an export of the same name.
    #[error("both a root directory and an [[export]] with name = \"/\" are given: drop one")]
    RootTwice,
    /// A directory whose absolute path is unknown.
    #[error("{key}: {error}")]
    Absolute {
        /// Key of the configuration.
        key: &'static str,
        /// Error of the system.
        error: io::Error,
    },
    /// A certificate without its key, or the reverse.
    #[error("[agent] certificate and key belong together: give both or neither")]
    HalfIdentity,
    /// The role agent without an export.
    #[error(
        "nothing is exported: give --root DIR, or [[export]] in {}, or --roles without agent",
        file.display()
    )]
    NoExport {
        /// Configuration file, which may be missing.
        file: PathBuf,
    },
    /// An export of something that is no directory.
    #[error(
        "export {export}: {} is not a directory: create it, mount it or name another",
        path.display()
    )]
    NoDirectory {
        /// Name of the export.
        export: ExportName,
        /// Path that it names.
        path: PathBuf,
    },
    /// An export inside another one that admits more clients or permits more.
    #[error(
        "export {inner} ({}) lies inside export {outer} ({}), whose clients would get what it withholds by that name: \
         move one of the directories, or give {inner} at least the who and mode of {outer}",
        path.display(), outer_path.display()
    )]
    NestedExports {
        /// Name of the export inside.
        inner: ExportName,
        /// Name of the export around it.
        outer: ExportName,
        /// Directory of the export inside.
        path: PathBuf,
        /// Directory of the export around it.
        outer_path: PathBuf,
    },
    /// The role agent without an address.
    #[error("the agent listens on no address: give --listen ADDR:PORT")]
    NoAddress,
    /// A node without the role agent and without HTTP.
    #[error(
        "without the role agent and without http the node serves nothing: give --http ADDR:PORT"
    )]
    NothingServed,
    /// An export that admits tokens of an issuer that is not configured.
    #[error(
        "export {export} admits tokens of '{issuer}', but no issuer has this name: add [[issuer]] name = \"{issuer}\""
    )]
    UnknownIssuer {
        /// Name of the export.
        export: ExportName,
        /// Name of the issuer.
        issuer: String,
    },
    /// An issuer whose tokens no export admits.
    #[error(
        "no export at {base} admits tokens of issuer {issuer}: add \"issuer:{issuer}\" to the who of one"
    )]
    UnusedIssuer {
        /// Path below which the issuer's tokens are valid.
        base: ScopePath,
        /// Name of the issuer.
        issuer: String,
    },
    /// An export that admits the controller where none is configured.
    #[error(
        "export {export} admits '{principal}', but no controller is named: add [agent.controller]"
    )]
    NoController {
        /// Name of the export.
        export: ExportName,
        /// Name under which an export admits the controller.
        principal: &'static str,
    },
    /// An export that admits a token that is not configured.
    #[error(
        "export {export} admits '{token}', but no token has this name: add [[token]] name = \"{token}\", or issue one with penstock token create"
    )]
    UnknownToken {
        /// Name of the export.
        export: ExportName,
        /// Name of the token.
        token: String,
    },
    /// A limit of memory below the buffers of one transfer.
    #[error("limit memory: {given} is too little for a transfer: give at least {least}")]
    Memory {
        /// Limit as configured.
        given: ByteCount,
        /// Least limit that is possible.
        least: ByteCount,
    },
}
