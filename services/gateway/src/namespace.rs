//! `MKCOL`, `DELETE`, `MOVE` and `COPY` inside the exports (RFC 4918 section 9).

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use penstock_http::ProblemDetails;
use penstock_mover::{ResolvedPath, TransferDirection, lock_name};
use penstock_scopes::PathAccess;
use penstock_sys::fs::{Dir, Kind, Stat};

use crate::access::authenticate;
use crate::conditions::{Validators, check_pair, check_write, precondition_failed};
use crate::dispatch::{DavRequest, Gateway, WriteTarget, blocking};
use crate::error::failed;
use crate::staged::{StagedTree, remove};
use crate::third_party::{self, CopyFailure, CopyPaths, forwarded, single_header};
use crate::tree_copy::{DIRECTORY_MODE, TreeCopy};
use crate::url_path::UrlPath;
use crate::write::parent_problem;

/// A path of an export as the file system takes it.
pub(crate) fn native(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// Metadata of a place, following links that stay in the export; `None` if nothing is there.
pub(crate) fn stat(place: &ResolvedPath) -> io::Result<Option<Stat>> {
    let found = match place.path.is_empty() {
        true => place.root.stat_self(),
        false => place.root.stat_follow(native(&place.path)),
    };
    match found {
        Ok(stat) => Ok(Some(stat)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Metadata of what has the name of a place, without following a link; `None` if nothing has.
pub(crate) fn stat_name(place: &ResolvedPath) -> io::Result<Option<Stat>> {
    match place.root.stat(native(&place.path)) {
        Ok(stat) => Ok(Some(stat)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Answers `MKCOL`: 201 for a directory that was made.
pub(crate) async fn make_collection(
    gateway: &Arc<Gateway>,
    request: &DavRequest,
    has_body: bool,
) -> Result<Response, ProblemDetails> {
    if has_body {
        let text = "MKCOL with a body is not supported";
        return Err(ProblemDetails::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let place = gateway.writable(request, PathAccess::Create)?;
    let shown = place.shown.clone();
    let made = blocking(move || {
        if place.path.is_empty() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        place.root.create_dir(native(&place.path), DIRECTORY_MODE)
    });
    made.await.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(&shown),
        _ => parent_problem(&shown, &error),
    })?;
    Ok(StatusCode::CREATED.into_response())
}

/// 405 (RFC 4918 section 9.3.1).
fn exists(shown: &str) -> ProblemDetails {
    ProblemDetails::new(StatusCode::METHOD_NOT_ALLOWED, format!("{shown} exists"))
}

/// Answers `DELETE` of a file, or of a collection with all that is in it; with `Depth: 0` of an empty one alone.
///
/// RFC 4918 section 9.6.1 gives `Depth: 0` no meaning here. Without it a client could remove an empty collection only by listing
/// it first, and would remove what another client puts there meanwhile.
pub(crate) async fn delete(
    gateway: &Arc<Gateway>,
    request: &DavRequest,
) -> Result<Response, ProblemDetails> {
    let place = gateway.writable(request, PathAccess::Delete)?;
    refuse_root(&place, "deleted")?;
    let shown = place.shown.clone();
    let (headers, is_collection) = (request.headers.clone(), request.path.is_collection());
    let with_members = match request.header(HeaderName::from_static("depth")) {
        None => true,
        Some(depth) if depth.eq_ignore_ascii_case("infinity") => true,
        Some("0") => false,
        Some(_) => return Err(ProblemDetails::bad_request("Depth of DELETE: 0 or infinity")),
    };
    let deleted = blocking(move || {
        let there = place.root.stat(native(&place.path))?;
        if let Err(problem) = check_write(&headers, Some(&Validators::of(&there))) {
            return Ok(Err(problem));
        }
        if is_collection && there.kind != Kind::Directory {
            return Ok(Err(ProblemDetails::conflict(format!("{}: not a directory", place.shown))));
        }
        if there.kind == Kind::Directory && !with_members {
            return match place.root.remove_dir(native(&place.path)) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    Ok(Err(ProblemDetails::conflict(format!(
                        "{}: not empty (Depth: 0); hidden files of running transfers count, too",
                        place.shown
                    ))))
                }
                removed => removed.map(Ok),
            };
        }
        remove(&place.root, native(&place.path)).map(Ok)
    });
    deleted.await.map_err(|error| failed(&shown, &error))??;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn refuse_root(place: &ResolvedPath, verb: &str) -> Result<(), ProblemDetails> {
    match place.path.is_empty() {
        true => Err(ProblemDetails::forbidden(format!(
            "{} is the root of an export and cannot be {verb}",
            place.shown
        ))),
        false => Ok(()),
    }
}

/// Destination of a `MOVE` or `COPY`.
fn destination(request: &DavRequest) -> Result<UrlPath, ProblemDetails> {
    let name = HeaderName::from_static("destination");
    let text = single_header(&request.headers, &name)?.ok_or_else(|| {
        ProblemDetails::bad_request("no Destination: send the URL of the new name")
    })?;
    UrlPath::of_destination(text, request.header(header::HOST))
}

/// Outcome of a change at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DestinationOutcome {
    Created,
    Replaced,
    /// The destination exists and `Overwrite` is `F`.
    Exists,
    /// The destination is a directory and `Overwrite` is not given.
    Directory,
    NoParent,
}

fn answer(change: DestinationOutcome, shown: &str) -> Result<Response, ProblemDetails> {
    match change {
        DestinationOutcome::Created => Ok(StatusCode::CREATED.into_response()),
        DestinationOutcome::Replaced => Ok(StatusCode::NO_CONTENT.into_response()),
        DestinationOutcome::Exists => {
            Err(precondition_failed(&format!("{shown} exists (Overwrite: F or If-None-Match: *)")))
        }
        DestinationOutcome::Directory => Err(ProblemDetails::conflict(format!(
            "{shown} is a directory: name the path in it, or send Overwrite: T to replace it with all that is in it"
        ))),
        DestinationOutcome::NoParent => {
            Err(ProblemDetails::conflict(format!("the directory of {shown} does not exist")))
        }
    }
}

/// Source and destination of a `MOVE` or `COPY`, checked.
struct SourceAndTarget {
    from: ResolvedPath,
    to: ResolvedPath,
    /// Refusal to replace what exists at the target; `None` for a client that may.
    keeps: Option<ProblemDetails>,
}

/// Resolves both paths, each with the rights of its request.
fn pair(
    gateway: &Gateway,
    (source_request, target_request): (&DavRequest, &DavRequest),
    (source, target): (&UrlPath, &UrlPath),
    source_access: PathAccess,
) -> Result<SourceAndTarget, ProblemDetails> {
    if target.contains(source) || source.contains(target) {
        return Err(ProblemDetails::forbidden("source and destination contain each other"));
    }
    let from = gateway.place_at(source_request, source, source_access)?;
    let from = from.ok_or_else(|| ProblemDetails::forbidden("the path is no file of an export"))?;
    let WriteTarget { place: to, keeps } = gateway.write_target(target_request, target)?;
    refuse_root(&to, "replaced")?;
    Ok(SourceAndTarget { from, to, keeps })
}

/// Opens the directory of a destination; `None` if there is none.
fn parent_of(to: &ResolvedPath) -> io::Result<Option<(Dir, OsString)>> {
    match to.root.parent(native(&to.path)) {
        Ok(parent) => Ok(Some(parent)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Looks at the destination, and returns its metadata if something is there, or the refusal.
fn prepare(
    parent: &Dir,
    name: &OsStr,
    overwrites: bool,
    replaces_directories: bool,
) -> io::Result<Result<Option<Stat>, DestinationOutcome>> {
    match parent.stat(Path::new(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Ok(None)),
        Err(error) => Err(error),
        Ok(_) if !overwrites => Ok(Err(DestinationOutcome::Exists)),
        Ok(there) if there.kind == Kind::Directory && !replaces_directories => {
            Ok(Err(DestinationOutcome::Directory))
        }
        Ok(there) => Ok(Ok(Some(there))),
    }
}

/// Answers `MOVE`: the destination is replaced in one step, and a refusal changes nothing.
pub(crate) async fn rename(
    gateway: &Arc<Gateway>,
    request: &DavRequest,
) -> Result<Response, ProblemDetails> {
    let paths = (&request.path, &destination(request)?);
    let pair = pair(gateway, (request, request), paths, PathAccess::Rename)?;
    refuse_root(&pair.from, "moved")?;
    let SourceAndTarget { from, to, keeps } = pair;
    let (shown, overwrites) = (to.shown.clone(), request.may_replace() && keeps.is_none());
    let replaces_directories = request.replaces_directories();
    let (headers, names) = (request.headers.clone(), gateway.hidden_names.clone());
    let move_source = move || -> Result<DestinationOutcome, ProblemDetails> {
        let at_source = |error: io::Error| failed(&from.shown, &error);
        let at_target = |error: io::Error| parent_problem(&to.shown, &error);
        let at_either = |error: io::Error| rename_problem(&from.shown, &to.shown, &error);
        let source = from.root.stat(native(&from.path)).map_err(at_source)?;
        check_pair(&headers, &Validators::of(&source))?;
        let Some((target, name)) = parent_of(&to).map_err(at_target)? else {
            return Ok(DestinationOutcome::NoParent);
        };
        // Outlives the lock: what was replaced may take long to remove.
        let staged;
        let _locked = lock_name(&target, &name).map_err(at_target)?;
        let there = prepare(&target, &name, overwrites, replaces_directories);
        let there = match there.map_err(at_target)? {
            Ok(there) => there,
            Err(refused) => return Ok(refused),
        };
        let rename_over = |replace| {
            let renamed =
                from.root.rename_into(native(&from.path), &target, Path::new(&name), replace);
            renamed.map_err(at_either)
        };
        let Some(there) = there else {
            rename_over(false)?;
            return Ok(DestinationOutcome::Created);
        };
        if source.kind == Kind::Directory || there.kind == Kind::Directory {
            let (parent, source) = from.root.parent(native(&from.path)).map_err(at_source)?;
            staged = StagedTree::reserve(&names, parent).map_err(at_source)?;
            staged.exchange(&source, &target, &name).map_err(at_either)?;
        } else if (source.device, source.inode) == (there.device, there.inode) {
            // Two names of one file: a rename would leave both.
            from.root.remove_file(native(&from.path)).map_err(at_source)?;
        } else {
            rename_over(true)?;
        }
        Ok(DestinationOutcome::Replaced)
    };
    let moved = blocking(move || Ok(move_source())).await;
    let change = moved.map_err(|error| failed(&shown, &error))??;
    answer(kept(change, request, keeps)?, &shown)
}

/// Problem of a rename that names the end at fault.
fn rename_problem(from: &str, to: &str, error: &io::Error) -> ProblemDetails {
    use io::ErrorKind::{AlreadyExists, CrossesDevices, QuotaExceeded, StorageFull};
    match error.kind() {
        CrossesDevices => ProblemDetails::new(
            StatusCode::BAD_GATEWAY,
            format!("{to} is on another file system: use COPY and DELETE"),
        ),
        AlreadyExists | QuotaExceeded | StorageFull => failed(to, error),
        _ => failed(from, error),
    }
}

/// Prefers the refusal to replace over that of `Overwrite: F`, which the client did not send.
fn kept(
    change: DestinationOutcome,
    request: &DavRequest,
    keeps: Option<ProblemDetails>,
) -> Result<DestinationOutcome, ProblemDetails> {
    match keeps {
        Some(refusal) if change == DestinationOutcome::Exists && request.may_replace() => {
            Err(refusal)
        }
        _ => Ok(change),
    }
}

/// The request with the rights of the token for the other end of a `COPY`, which clients send to any server; `None` where
/// this gateway knows none.
async fn other_end(
    gateway: &Arc<Gateway>,
    request: &DavRequest,
) -> Result<Option<DavRequest>, ProblemDetails> {
    let headers = forwarded(&request.headers)?;
    if !headers.contains_key(header::AUTHORIZATION) {
        return Ok(None);
    }
    let caller = authenticate(&gateway.keeper, &headers, None, &request.connection).await;
    Ok(caller.ok().map(|caller| DavRequest { caller, ..request.clone() }))
}

/// Answers `COPY` inside this server. With the URL of a `source`, the path of the request is the destination.
pub(crate) async fn copy(
    gateway: &Arc<Gateway>,
    request: &DavRequest,
    source: Option<&str>,
) -> Result<Response, ProblemDetails> {
    let other = other_end(gateway, request).await?;
    let other = other.as_ref().unwrap_or(request);
    let pair = match source {
        Some(source) => {
            let source = UrlPath::of_destination(source, request.header(header::HOST))?;
            pair(gateway, (other, request), (&source, &request.path), PathAccess::Read)?
        }
        None => {
            let paths = (&request.path, &destination(request)?);
            pair(gateway, (request, other), paths, PathAccess::Read)?
        }
    };
    let recursive = match request.header(HeaderName::from_static("depth")) {
        None => true,
        Some(depth) if depth.eq_ignore_ascii_case("infinity") => true,
        Some("0") => false,
        Some(_) => return Err(ProblemDetails::bad_request("Depth of COPY: 0 or infinity")),
    };
    let SourceAndTarget { from, to, keeps } = pair;
    let (from, to) = (Arc::new(from), Arc::new(to));
    let replace = request.may_replace() && keeps.is_none();
    let is_pull = source.is_some();
    let prepared = {
        let (from, to, request) = (Arc::clone(&from), Arc::clone(&to), request.clone());
        blocking(move || Ok(prepare_copy(&from, &to, &request, is_pull, replace)))
    };
    let (source, there) = match prepared.await.map_err(|error| failed(&from.shown, &error))?? {
        Ok(found) => found,
        Err(outcome) => return answer(kept(outcome, request, keeps)?, &to.shown),
    };
    let client_address = request.connection.peer().to_string();
    let between = (TransferDirection::Receive, client_address.as_str());
    let running = third_party::begin(gateway, request, between, &to.shown, None).await?;
    let transfer = Arc::clone(&running.transfer);
    let (shown, names) = (to.shown.clone(), gateway.hidden_names.clone());
    let ends = CopyPaths::within(&shown);
    // Dropped with the future when the client disconnects: it would repeat the copy, or remove what it finds.
    let client = Arc::new(());
    let job = async move {
        let waiting = Arc::downgrade(&client);
        let copied = blocking(move || {
            let copy = TreeCopy {
                from: &from,
                to: &to,
                recursive,
                replace,
                names: &names,
                transfer: &running.transfer,
                is_wanted: &|| waiting.strong_count() > 0,
                copied: Cell::default(),
            };
            Ok(match copy.run(&source, there.as_ref()) {
                Ok(created) => {
                    let (files, bytes) = copy.copied.get();
                    running.finish(files, bytes);
                    Ok(created)
                }
                Err(_) if running.transfer.is_cancelled() => {
                    Err(ProblemDetails::conflict(format!(
                        "{}: the transfer was cancelled, or the client's token or certificate was removed",
                        to.shown
                    )))
                }
                Err(fault) => Err(fault.problem(&from.shown, &to.shown)),
            })
        });
        let created = copied.await.map_err(|error| failed(&shown, &error))??;
        drop(client);
        Ok::<bool, ProblemDetails>(created)
    };
    // Clients of third-party copies read markers and the result.
    if is_pull || request.headers.contains_key("x-number-of-streams") {
        let job =
            async { job.await.map(drop).map_err(|problem| CopyFailure::Within(problem.detail)) };
        return Ok(third_party::accepted(ends, job, transfer));
    }
    Ok(match job.await? {
        true => StatusCode::CREATED,
        false => StatusCode::NO_CONTENT,
    }
    .into_response())
}

/// Checks both ends of a `COPY`; returns the metadata of the source and of what it replaces, or the outcome of a refusal.
fn prepare_copy(
    from: &ResolvedPath,
    to: &ResolvedPath,
    request: &DavRequest,
    is_pull: bool,
    replace: bool,
) -> Result<Result<(Stat, Option<Stat>), DestinationOutcome>, ProblemDetails> {
    let at_source = |error: io::Error| failed(&from.shown, &error);
    let at_target = |error: io::Error| parent_problem(&to.shown, &error);
    let source = stat(from).map_err(at_source)?;
    let source = source.ok_or_else(|| at_source(io::ErrorKind::NotFound.into()))?;
    let there = stat_name(to).map_err(at_target)?;
    match is_pull {
        true => check_write(&request.headers, there.as_ref().map(Validators::of).as_ref())?,
        false => check_pair(&request.headers, &Validators::of(&source))?,
    }
    let Some((parent, name)) = parent_of(to).map_err(at_target)? else {
        return Ok(Err(DestinationOutcome::NoParent));
    };
    let there = prepare(&parent, &name, replace, request.replaces_directories());
    Ok(there.map_err(at_target)?.map(|there| (source, there)))
}
