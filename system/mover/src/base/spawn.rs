//! Named threads.

use crate::base::sync::thread;

/// Spawns a named thread; panics if the process cannot have more threads.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .unwrap_or_else(|error| panic!("cannot start a thread (raise TasksMax): {error}"))
}
