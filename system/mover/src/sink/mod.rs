//! Receiving side: from announcements and frames to durable files under their final names.
//!
//! | module | purpose |
//! |---|---|
//! | `receiver` | the receiving end of a session: planner, streams, queues |
//! | `destination` | names, temporary names, existing files, metadata |
//! | `partial_files` | partial files: found, locked, continued and removed |
//! | `file` | state machine of one file |
//! | `writer` | writer threads; verification of resumed ranges |
//! | `committer` | syncs, renames, the end of a session |
//! | `resume_journal` | ranges of unfinished files across crashes |
//! | `orphans` | removal of temporary files of abandoned transfers |
//! | `file_locks` | locks of files being written by transfers of one agent |
//! | `storage` | file system interface of all of these |

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
