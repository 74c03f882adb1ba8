//! Invariants of the control plane, held against the state of the controller, the agents and their files.

use std::collections::{BTreeMap, BTreeSet};

use penstock_control::file::RequestFileState;
use penstock_control::orders::{Instructions, OrderId};
use penstock_control::request::RequestState;
use penstock_controller::ControllerError;
use penstock_controller::simulation::{FileStatus, RequestStatus, RunStatus};

use crate::data_plane::{DataPlane, FileContent, FileKey};
use crate::scenario::LinkSpec;

/// A violated invariant, or a failure of the simulated controller.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct InvariantError(pub(crate) String);

impl From<ControllerError> for InvariantError {
    fn from(error: ControllerError) -> Self {
        Self(error.to_string())
    }
}

/// Returns an error with the description of a violated invariant.
pub(crate) fn violated<T>(text: impl Into<String>) -> Result<T, InvariantError> {
    Err(InvariantError(text.into()))
}

/// Earlier observations, against which each step is checked.
#[derive(Debug, Default)]
pub(crate) struct Invariants {
    /// Final state of each file.
    settled: BTreeMap<(i64, i64), RequestFileState>,
    /// Final state of each request.
    ended: BTreeMap<i64, RequestState>,
    /// Orders in the last instructions to a host.
    listed: BTreeMap<String, BTreeSet<OrderId>>,
    /// Orders that later instructions to a host omitted.
    withdrawn: BTreeSet<(String, OrderId)>,
}

impl Invariants {
    /// A withdrawn order is never listed again.
    pub(crate) fn check_instructions(
        &mut self,
        host: &str,
        instructions: &Instructions,
    ) -> Result<(), InvariantError> {
        let listed: BTreeSet<OrderId> = instructions.orders.iter().map(|one| one.order).collect();
        let before = self.listed.insert(host.to_owned(), listed.clone()).unwrap_or_default();
        for order in before.difference(&listed) {
            self.withdrawn.insert((host.to_owned(), *order));
        }
        for order in listed {
            if self.withdrawn.contains(&(host.to_owned(), order)) {
                return violated(format!(
                    "order {order} was withdrawn at {host} and is listed again"
                ));
            }
        }
        Ok(())
    }

    /// A file or request that has reached a final state keeps it; a file that is done was committed with its content.
    pub(crate) fn check_states(
        &mut self,
        requests: &[RequestStatus],
        files: &[FileStatus],
        plane: &DataPlane,
        wanted: impl Fn(&FileStatus) -> Option<(FileKey, FileContent)>,
    ) -> Result<(), InvariantError> {
        for request in requests {
            if let Some(before) = self.ended.get(&request.id) {
                if *before != request.state {
                    let (id, state) = (request.id, request.state);
                    return violated(format!("request {id} ended as {before:?} and is {state:?}"));
                }
            } else if request.state.is_final() {
                self.ended.insert(request.id, request.state);
                check_counts(request, files)?;
            }
        }
        for file in files {
            let key = (file.request, file.seq);
            let shown = || format!("file {} ({}) of request {}", file.seq, file.path, file.request);
            if let Some(before) = self.settled.get(&key) {
                if *before != file.state {
                    return violated(format!(
                        "{} settled as {before:?} and is {:?}",
                        shown(),
                        file.state
                    ));
                }
            } else if file.state.is_final() {
                self.settled.insert(key, file.state);
                if file.state == RequestFileState::Done
                    && !wanted(file).is_some_and(|copy| plane.committed.contains(&copy))
                {
                    return violated(format!("{} is done and was never committed", shown()));
                }
            }
        }
        Ok(())
    }
}

/// The counts of a request that has ended are those of its files.
fn check_counts(request: &RequestStatus, files: &[FileStatus]) -> Result<(), InvariantError> {
    let of_request = || files.iter().filter(|file| file.request == request.id);
    let count = |state| of_request().filter(|file| file.state == state).count() as i64;
    let counted = [
        of_request().count() as i64,
        count(RequestFileState::Done),
        count(RequestFileState::Failed),
        count(RequestFileState::Cancelled),
    ];
    if counted != request.files {
        let (id, stored) = (request.id, request.files);
        return violated(format!("request {id} counts {stored:?}, its files are {counted:?}"));
    }
    if request.cancel && !matches!(request.state, RequestState::Cancelled | RequestState::Done) {
        return violated(format!(
            "request {} was cancelled and ended as {:?}",
            request.id, request.state
        ));
    }
    Ok(())
}

/// The allotted rates of all active runs fit into each direction of each link.
pub(crate) fn check_allotments(
    runs: &[RunStatus],
    links: &[LinkSpec],
) -> Result<(), InvariantError> {
    let mut sums: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.active) {
        let Some(rate_bps) = run.rate_bps else { continue };
        let mut at = run.from.as_str();
        for name in &run.route {
            let link = links.iter().find(|link| link.name == *name);
            let link =
                link.ok_or_else(|| InvariantError(format!("run {} uses link {name}", run.id)))?;
            let ends = link.ends.each_ref().map(|end| end.split(':').next().unwrap_or(end));
            let other = usize::from(ends[0] == at);
            *sums.entry((link.name.as_str(), at)).or_default() += rate_bps;
            at = ends[other];
        }
    }
    for ((name, from), sum) in sums {
        let capacity = links.iter().find(|link| link.name == name).map_or(0, |link| link.rate_bps);
        if sum > capacity {
            return violated(format!(
                "link {name} from {from}: {sum} bit/s allotted of {capacity}"
            ));
        }
    }
    Ok(())
}
