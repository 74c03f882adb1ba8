//! Receiving side of storage: from announcements and frames to durable files under their final names.
//!
//! | module | purpose |
//! |---|---|
//! | `work` | state shared by the threads, queues of the writers |
//! | `shared_machine`, `task_queues` | hand-over between these threads |
//! | `planner` | inspects the destinations of announced entries |
//! | `destination` | names, temporary names, existing files, metadata |
//! | `partial_files` | partial files: found, locked, continued and removed |
//! | `file` | state machine of one file |
//! | `writer` | writer threads; verification of resumed ranges |
//! | `committer` | syncs, renames, the end of a session |
//! | `resume_journal` | ranges of unfinished files across crashes |
//! | `orphans` | removal of temporary files of abandoned transfers |
//! | `file_locks` | locks of files being written by transfers of one agent |
//! | `name_locks` | locks of names while uploads replace files |
//! | `hidden_names` | hidden names of uploads and copies, recorded until they are gone |
//! | `upload` | a file that another protocol delivers, in order or in ranges |
//! | `block_writer` | consecutive bytes in blocks, past the page cache |
//! | `storage` | file system interface of all of these |

mod block_writer;
pub(crate) mod committer;
pub(crate) mod destination;
pub(crate) mod file;
pub(crate) mod file_locks;
pub(crate) mod hidden_names;
pub(crate) mod name_locks;
mod name_sync;
pub(crate) mod orphans;
pub(crate) mod partial_files;
pub(crate) mod planner;
pub(crate) mod resume_journal;
pub(crate) mod shared_machine;
#[cfg(test)]
mod simulation;
pub(crate) mod storage;
pub(crate) mod task_queues;
pub(crate) mod upload;
pub(crate) mod work;
pub(crate) mod writer;
