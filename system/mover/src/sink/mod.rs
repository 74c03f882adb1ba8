//! The receiving side: from frames and announcements to durable files under their names.
//!
//! | module | purpose |
//! |---|---|
//! | `receiver` | the receiving end of a session: planner, streams, queues |
//! | `destination` | names, temporary names, existing files, metadata |
//! | `partial_files` | partial files: found, locked, continued and removed |
//! | `file` | the life of one file as a state machine |
//! | `writer` | writer threads; verification of resumed ranges |
//! | `committer` | syncs, renames, the end of a session |
//! | `resume_journal` | ranges of unfinished files across crashes |
//! | `orphans` | removal of what transfers left that do not come back |
//! | `file_locks` | files that transfers of one agent are writing |
//! | `storage` | the file system as all of these use it |

mod committer;
mod destination;
mod file;
mod file_locks;
mod orphans;
mod partial_files;
mod receiver;
mod resume_journal;
#[cfg(test)]
mod simulation;
mod storage;
mod writer;

pub use destination::{Destination, ReleasePartial, Target};
pub use file::SinkFile;
pub use file_locks::FileLocks;
pub use orphans::{PART, Removed, remove, remove_after};
pub use receiver::{ReceiverControl, ReceiverEnd};
pub use resume_journal::{Journal, JournalError, JournalName};
pub use storage::{Directory, JournalStore, Names, OpenBase, StoredFile};
