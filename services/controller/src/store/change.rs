//! Changes that clients and operators ask for.

use sqlx::Row;

use super::rows::{self, Value};
use super::settle::{self, Deltas};
use super::submit::{self, NewBatch, NewFile};
use super::writer::{Audit, Context};
use super::{BatchKind, BatchState, dispatch};

/// What a change of a request came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Changed {
    /// It is made.
    Done,
    /// There is no such request.
    Missing,
    /// It cannot be made any more; this is its state.
    Over(String),
    /// Files were appended at another place than where the request ends.
    Elsewhere(i64),
    /// It takes no more files.
    Sealed,
    /// The destination of a file is being written.
    Taken {
        /// Its place in the call.
        file: usize,
        /// By which request.
        by: Option<i64>,
    },
}

/// A change of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    pub(crate) priority: Option<i64>,
    /// None where it stays; `Some(None)` for no deadline.
    pub(crate) deadline: Option<Option<i64>>,
    pub(crate) paused: Option<bool>,
}

/// The state and class of a request.
async fn state_of(cx: &mut Context, id: i64) -> Result<Option<(i64, String, bool)>, sqlx::Error> {
    let row = sqlx::query("SELECT state, class, paused FROM request WHERE id = $1")
        .bind(id)
        .fetch_optional(&mut cx.tx)
        .await?;
    Ok(row.map(|row| (row.get(0), row.get(1), row.get::<i64, _>(2) > 0)))
}

fn over(state: i64) -> Option<Changed> {
    let state = penstock_operations::state::RequestState::ALL[state.clamp(0, 6) as usize];
    state.is_final().then(|| Changed::Over(state.as_str().to_owned()))
}

/// Changes priority, deadline, or whether it is paused.
pub(crate) async fn change(
    cx: &mut Context,
    id: i64,
    wanted: &Wanted,
    audit: Audit,
) -> Result<Changed, sqlx::Error> {
    let Some((state, class, paused)) = state_of(cx, id).await? else { return Ok(Changed::Missing) };
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
        hold(cx, id, pause).await?;
        let (kind, text) = if pause { ("paused", "it waits") } else { ("resumed", "it goes on") };
        cx.event(Some(id), Some(&class), kind, text);
    }
    if wanted.priority.is_some() || wanted.deadline.is_some() {
        cx.event(Some(id), Some(&class), "changed", audit.detail.clone());
    }
    cx.audit(audit);
    cx.wake();
    Ok(Changed::Done)
}

/// Pauses a request, or lets it go on.
async fn hold(cx: &mut Context, id: i64, pause: bool) -> Result<(), sqlx::Error> {
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
        // What waits for another attempt is held, too; what runs is taken back and resumes where it was.
        let text = "UPDATE batch SET state = 3 WHERE request = $1 AND state = 0";
        sqlx::query(text).bind(id).execute(&mut cx.tx).await?;
        dispatch::withdraw(
            cx,
            "id IN (SELECT run FROM batch WHERE state = 2 AND request = $4)",
            Value::Int(id),
            "a request in it was paused",
        )
        .await?;
    }
    Ok(())
}

/// Cancels a request: what runs is taken back, the rest is worked at later.
pub(crate) async fn cancel(
    cx: &mut Context,
    id: i64,
    audit: Audit,
) -> Result<Changed, sqlx::Error> {
    let Some((state, class, _)) = state_of(cx, id).await? else { return Ok(Changed::Missing) };
    if let Some(over) = over(state) {
        return Ok(over);
    }
    let text = "UPDATE request SET cancel = 1, changed = $1 WHERE id = $2 AND cancel = 0";
    let query = sqlx::query(text).bind(cx.now).bind(id);
    if query.execute(&mut cx.tx).await?.rows_affected() > 0 {
        cx.event(Some(id), Some(&class), "cancelling", format!("by {}", audit.who));
        cx.audit(audit);
    }
    settle::recount(cx, id).await?;
    cx.wake();
    Ok(Changed::Done)
}

/// Appends files to a request that is open, and seals it.
pub(crate) async fn append(
    cx: &mut Context,
    id: i64,
    at: i64,
    files: &[NewFile],
    seal: bool,
    audit: Audit,
) -> Result<Changed, sqlx::Error> {
    let row = sqlx::query(
        "SELECT state, files, open, class, source, destination, to_path, priority, deadline, lane, paused, cancel
         FROM request WHERE id = $1",
    )
    .bind(id)
    .fetch_optional(&mut cx.tx)
    .await?;
    let Some(row) = row else { return Ok(Changed::Missing) };
    let there: i64 = row.get(1);
    // The same call once more, whose answer was lost.
    if at + files.len() as i64 == there && at < there {
        return Ok(Changed::Done);
    }
    if let Some(over) = over(row.get(0)) {
        return Ok(over);
    }
    if row.get::<i64, _>(2) == 0 || row.get::<i64, _>(11) > 0 {
        let sealed_before = seal && files.is_empty() && row.get::<i64, _>(11) == 0;
        return Ok(if sealed_before { Changed::Done } else { Changed::Sealed });
    }
    if at != there {
        return Ok(Changed::Elsewhere(there));
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
            state: if paused { BatchState::Held } else { BatchState::Queued },
            not_before: 0,
        };
        if let Some((file, by)) = conflict(cx, &site, &to, files).await? {
            return Ok(Changed::Taken { file, by });
        }
        submit::append(cx, &base, there, (&site, &to), files.to_vec()).await?;
    }
    if seal {
        let text = "UPDATE request SET open = 0, changed = $1 WHERE id = $2";
        sqlx::query(text).bind(cx.now).bind(id).execute(&mut cx.tx).await?;
        settle::count(cx, Deltas::from([(id, settle::Delta::default())])).await?;
    }
    cx.audit(audit);
    Ok(Changed::Done)
}

/// The first of these files whose destination is being written.
async fn conflict(
    cx: &mut Context,
    site: &str,
    to: &str,
    files: &[NewFile],
) -> Result<Option<(usize, Option<i64>)>, sqlx::Error> {
    let rows = files.iter().enumerate().map(|(at, file)| -> [Value; 2] {
        [(at as i64).into(), Value::Bytes(Some(submit::destination(site, to, &file.path)))]
    });
    let found = rows::with(
        &mut cx.tx,
        "n, h",
        rows.collect(),
        "SELECT v.n, f.request FROM v JOIN file f ON f.destination = v.h WHERE f.state < 2",
    )
    .await?;
    let first = found.iter().map(|row| (row.get::<i64, _>(0), row.get::<i64, _>(1))).min();
    Ok(first.map(|(at, by)| (at as usize, Some(by))))
}

/// How a host or site is drained.
#[derive(Debug, Clone)]
pub(crate) struct Drain {
    pub(crate) reason: String,
    /// What runs there is taken back.
    pub(crate) now: bool,
    /// Its hosts are gone for good: nothing that they were told to do goes on.
    pub(crate) gone: bool,
}

/// Lets nothing new begin at a host or site, or lets it again.
pub(crate) async fn drain(
    cx: &mut Context,
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
                    dispatch::withdraw(cx, column, Value::Text(host.clone()), &why).await?;
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
    cx.wake();
    Ok(())
}

/// Says that a link is down, or up again.
pub(crate) async fn link(
    cx: &mut Context,
    name: &str,
    down: bool,
    why: &str,
    audit: Audit,
) -> Result<(), sqlx::Error> {
    let rows: Vec<[Value; 4]> =
        vec![[name.into(), i64::from(down).into(), cx.now.into(), why.into()]];
    rows::execute(
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
    cx.wake();
    Ok(())
}
