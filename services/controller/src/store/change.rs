//! Changes by clients and operators.

use sqlx::Row;

use super::outcomes::{self, RequestDeltas};
use super::rows::{self, SqlValue};
use super::submit::{self, NewBatch, NewFile};
use super::writer::{Audit, TxContext};
use super::{BatchKind, BatchState, dispatch};

/// Result of a change of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChangeOutcome {
    Done,
    Missing,
    /// The request is in this final state.
    Over(String),
    /// The request has this number of files, not the given one.
    OffsetMismatch(i64),
    /// The request is sealed.
    Sealed,
    /// Another request is writing the destination of a file.
    Taken {
        /// Index of the file in the call.
        file: usize,
        /// Id of the other request, if it still exists.
        by: Option<i64>,
    },
}

/// Changes of a request; none leaves a value as it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestChange {
    pub(crate) priority: Option<i64>,
    /// `Some(None)` removes the deadline.
    pub(crate) deadline: Option<Option<i64>>,
    pub(crate) paused: Option<bool>,
}

/// Returns the state number and class of a request, and true if it is paused.
async fn state_of(cx: &mut TxContext, id: i64) -> Result<Option<(i64, String, bool)>, sqlx::Error> {
    let row = sqlx::query("SELECT state, class, paused FROM request WHERE id = $1")
        .bind(id)
        .fetch_optional(&mut cx.tx)
        .await?;
    Ok(row.map(|row| (row.get(0), row.get(1), row.get::<i64, _>(2) > 0)))
}

fn over(state: i64) -> Option<ChangeOutcome> {
    let state = penstock_operations::state::RequestState::ALL[state.clamp(0, 6) as usize];
    state.is_final().then(|| ChangeOutcome::Over(state.as_str().to_owned()))
}

/// Changes priority or deadline, pauses or resumes.
pub(crate) async fn change(
    cx: &mut TxContext,
    id: i64,
    wanted: &RequestChange,
    audit: Audit,
) -> Result<ChangeOutcome, sqlx::Error> {
    let Some((state, class, paused)) = state_of(cx, id).await? else {
        return Ok(ChangeOutcome::Missing);
    };
    if let Some(over) = over(state) {
        return Ok(over);
    }
    let now = cx.now;
    if let Some(priority) = wanted.priority {
        for text in [
            "UPDATE request SET priority = $1, changed = $3 WHERE id = $2",
            "UPDATE batch SET priority = $1 WHERE request = $2 AND $3 > 0",
            "UPDATE run SET priority = $1 WHERE state < 2 AND $3 > 0 AND id IN (SELECT run FROM batch WHERE request = $2 AND state = 2)",
        ] {
            sqlx::query(text).bind(priority).bind(id).bind(now).execute(&mut cx.tx).await?;
        }
    }
    if let Some(deadline) = wanted.deadline {
        for text in [
            "UPDATE request SET deadline = $1, changed = $3 WHERE id = $2",
            "UPDATE batch SET deadline = $1 WHERE request = $2 AND $3 > 0",
            "UPDATE run SET deadline = $1 WHERE state < 2 AND $3 > 0 AND id IN (SELECT run FROM batch WHERE request = $2 AND state = 2)",
        ] {
            sqlx::query(text).bind(deadline).bind(id).bind(now).execute(&mut cx.tx).await?;
        }
    }
    if let Some(pause) = wanted.paused.filter(|pause| *pause != paused) {
        set_paused(cx, id, pause).await?;
        let (kind, text) = if pause { ("paused", "it waits") } else { ("resumed", "it goes on") };
        cx.event(Some(id), Some(&class), kind, text);
    }
    if wanted.priority.is_some() || wanted.deadline.is_some() {
        cx.event(Some(id), Some(&class), "changed", audit.detail.clone());
    }
    cx.audit(audit);
    cx.request_round();
    Ok(ChangeOutcome::Done)
}

/// Pauses or resumes a request.
async fn set_paused(cx: &mut TxContext, id: i64, pause: bool) -> Result<(), sqlx::Error> {
    let (from, to, sign) = match pause {
        true => ("(1)", 3, -1),
        false => ("(3)", 1, 1),
    };
    let set = "UPDATE request SET paused = $1, changed = $2 WHERE id = $3";
    let query = sqlx::query(set).bind(i64::from(pause)).bind(cx.now).bind(id);
    query.execute(&mut cx.tx).await?;
    let text = format!(
        "UPDATE batch SET state = {to} WHERE request = $1 AND state IN {from} RETURNING queue, files, bytes"
    );
    let moved = sqlx::query(sqlx::AssertSqlSafe(text)).bind(id).fetch_all(&mut cx.tx).await?;
    let mut counts = std::collections::HashMap::new();
    for row in moved {
        let count: &mut (i64, i64, i64) = counts.entry(row.get::<i64, _>(0)).or_default();
        *count = (
            count.0 + sign,
            count.1 + sign * row.get::<i64, _>(1),
            count.2 + sign * row.get::<i64, _>(2),
        );
    }
    submit::count_queues(cx, counts).await?;
    if pause {
        // Also pauses batches that wait for a retry. Running ones are withdrawn and resume from their partial files.
        let text = "UPDATE batch SET state = 3 WHERE request = $1 AND state = 0";
        sqlx::query(text).bind(id).execute(&mut cx.tx).await?;
        dispatch::withdraw(
            cx,
            "id IN (SELECT run FROM batch WHERE state = 2 AND request = $4)",
            SqlValue::Int(id),
            "a request in it was paused",
        )
        .await?;
    }
    Ok(())
}

/// Cancels a request: maintenance withdraws its orders and cancels its files.
pub(crate) async fn cancel(
    cx: &mut TxContext,
    id: i64,
    audit: Audit,
) -> Result<ChangeOutcome, sqlx::Error> {
    let Some((state, class, _)) = state_of(cx, id).await? else {
        return Ok(ChangeOutcome::Missing);
    };
    if let Some(over) = over(state) {
        return Ok(over);
    }
    let text = "UPDATE request SET cancel = 1, changed = $1 WHERE id = $2 AND cancel = 0";
    let query = sqlx::query(text).bind(cx.now).bind(id);
    if query.execute(&mut cx.tx).await?.rows_affected() > 0 {
        cx.event(Some(id), Some(&class), "cancelling", format!("by {}", audit.who));
        cx.audit(audit);
    }
    outcomes::refresh_request_state(cx, id).await?;
    cx.request_round();
    Ok(ChangeOutcome::Done)
}

/// Appends files to an open request, and seals it on demand.
pub(crate) async fn append(
    cx: &mut TxContext,
    id: i64,
    at: i64,
    files: &[NewFile],
    seal: bool,
    audit: Audit,
) -> Result<ChangeOutcome, sqlx::Error> {
    let row = sqlx::query(
        "SELECT state, files, open, class, source, destination, to_path, priority, deadline, lane, paused, cancel
         FROM request WHERE id = $1",
    )
    .bind(id)
    .fetch_optional(&mut cx.tx)
    .await?;
    let Some(row) = row else { return Ok(ChangeOutcome::Missing) };
    let there: i64 = row.get(1);
    // A retry of a call whose response was lost.
    if at + files.len() as i64 == there && at < there {
        return Ok(ChangeOutcome::Done);
    }
    if let Some(over) = over(row.get(0)) {
        return Ok(over);
    }
    if row.get::<i64, _>(2) == 0 || row.get::<i64, _>(11) > 0 {
        let sealed_before = seal && files.is_empty() && row.get::<i64, _>(11) == 0;
        return Ok(if sealed_before { ChangeOutcome::Done } else { ChangeOutcome::Sealed });
    }
    if at != there {
        return Ok(ChangeOutcome::OffsetMismatch(there));
    }
    let (class, source, site, to): (String, String, String, String) =
        (row.get(3), row.get(4), row.get(5), row.get(6));
    if !files.is_empty() {
        let queue = (class.clone(), source, site.clone());
        submit::queues(cx, vec![queue.clone()]).await?;
        let paused = row.get::<i64, _>(10) > 0;
        let base = NewBatch {
            root: None,
            request: id,
            queue: cx.queues.get(&queue).copied().unwrap_or_default(),
            kind: BatchKind::Copy,
            first: 0,
            last: -1,
            seqs: None,
            files: 0,
            bytes: 0,
            priority: row.get(7),
            deadline: row.get(8),
            lane: row.get(9),
            attempt: 0,
            state: if paused { BatchState::Paused } else { BatchState::Queued },
            not_before: 0,
        };
        if let Some((file, by)) = conflict(cx, &site, &to, files).await? {
            return Ok(ChangeOutcome::Taken { file, by });
        }
        submit::append(cx, &base, there, (&site, &to), files.to_vec()).await?;
    }
    if seal {
        let text = "UPDATE request SET open = 0, changed = $1 WHERE id = $2";
        sqlx::query(text).bind(cx.now).bind(id).execute(&mut cx.tx).await?;
        outcomes::apply_deltas(cx, RequestDeltas::from([(id, outcomes::RequestDelta::default())]))
            .await?;
    }
    cx.audit(audit);
    Ok(ChangeOutcome::Done)
}

/// Returns the first file whose destination another request is writing.
async fn conflict(
    cx: &mut TxContext,
    site: &str,
    to: &str,
    files: &[NewFile],
) -> Result<Option<(usize, Option<i64>)>, sqlx::Error> {
    let rows = files.iter().enumerate().map(|(at, file)| -> [SqlValue; 2] {
        [(at as i64).into(), SqlValue::Bytes(Some(submit::destination(site, to, &file.path)))]
    });
    let found = rows::query_values(
        &mut cx.tx,
        "n, h",
        rows.collect(),
        "SELECT v.n, f.request FROM v JOIN file f ON f.destination = v.h WHERE f.state < 2",
    )
    .await?;
    let first = found.iter().map(|row| (row.get::<i64, _>(0), row.get::<i64, _>(1))).min();
    Ok(first.map(|(at, by)| (at as usize, Some(by))))
}

/// Options of a drain.
#[derive(Debug, Clone)]
pub(crate) struct Drain {
    pub(crate) reason: String,
    /// Withdraws the orders at its hosts.
    pub(crate) now: bool,
    /// Declares its hosts gone for good: none of their orders continues.
    pub(crate) gone: bool,
}

/// Stops or resumes the start of work at a host or site.
pub(crate) async fn drain(
    cx: &mut TxContext,
    name: &str,
    hosts: &[String],
    on: Option<&Drain>,
    audit: Audit,
) -> Result<(), sqlx::Error> {
    let what = match on {
        Some(Drain { reason: why, now, gone }) => {
            sqlx::query(
                "INSERT INTO drain (name, since, who, why) VALUES ($1, $2, $3, $4)
                 ON CONFLICT (name) DO UPDATE SET why = excluded.why",
            )
            .bind(name.to_owned())
            .bind(cx.now)
            .bind(audit.who.clone())
            .bind(why.to_owned())
            .execute(&mut cx.tx)
            .await?;
            for host in hosts.iter().filter(|_| *gone) {
                let text = "UPDATE host SET gone_at = $1 WHERE name = $2";
                let query = sqlx::query(text).bind(cx.now).bind(host.clone());
                query.execute(&mut cx.tx).await?;
            }
            for host in hosts.iter().filter(|_| *now || *gone) {
                for column in ["from_host = $4", "to_host = $4"] {
                    let why = format!("{name} is {}", if *gone { "gone" } else { "drained" });
                    dispatch::withdraw(cx, column, SqlValue::Text(host.clone()), &why).await?;
                }
            }
            format!("{name} is {}: {why}", if *gone { "gone" } else { "drained" })
        }
        None => {
            for host in hosts {
                let text = "UPDATE host SET gone_at = 0 WHERE name = $1";
                sqlx::query(text).bind(host.clone()).execute(&mut cx.tx).await?;
            }
            let text = "DELETE FROM drain WHERE name = $1";
            sqlx::query(text).bind(name.to_owned()).execute(&mut cx.tx).await?;
            format!("{name} takes work again")
        }
    };
    cx.event(None, None, "drain", what);
    cx.audit(audit);
    cx.request_round();
    Ok(())
}

/// Sets a link down or up.
pub(crate) async fn link(
    cx: &mut TxContext,
    name: &str,
    down: bool,
    why: &str,
    audit: Audit,
) -> Result<(), sqlx::Error> {
    let rows: Vec<[SqlValue; 4]> =
        vec![[name.into(), i64::from(down).into(), cx.now.into(), why.into()]];
    rows::insert(
        &mut cx.tx,
        "INSERT INTO link (name, down, since, why)",
        rows,
        "ON CONFLICT (name) DO UPDATE SET down = excluded.down, since = excluded.since, why = excluded.why
         WHERE link.down <> excluded.down OR link.why <> excluded.why",
    )
    .await?;
    let state = if down { "down" } else { "up" };
    cx.event(None, None, "link", format!("{name} is {state}: {why}"));
    cx.audit(audit);
    cx.request_round();
    Ok(())
}
