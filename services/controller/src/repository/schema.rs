//! Tables and their migrations.
//!
//! A request has files. Files are queued and fail in batches (at most the files of one order); queues count the queued
//! batches by class and pair of sites; batches that run together form a run, with one order at each end. A run's
//! batches never change, so neither does an order. A file's row is written twice: on submission and when it is settled.
//! Its batch shows if it is part of an order; a finished batch is deleted, its files being settled or in another.
//!
//! No statement reads more rows than it processes, however many wait or have ended. SQLite uses a partial index only if
//! the statement repeats its condition verbatim (`state < 2 AND state = 0`).

use sqlx::{AnyConnection, AssertSqlSafe, Connection, Row};

use super::db::{DatabaseKind, OpenFault};

/// Migrations; each brings a database to the version of its index, counted from 1. Released ones never change; append
/// new ones.
const MIGRATIONS: [&str; 10] = [
    "
CREATE TABLE sequence (name TEXT PRIMARY KEY, next BIGINT NOT NULL);
INSERT INTO sequence (name, next) VALUES ('id', 1), ('event', 1), ('round', 1), ('lock', 0);

CREATE TABLE request (
    id BIGINT PRIMARY KEY, client TEXT NOT NULL, client_key TEXT, body TEXT NOT NULL,
    class TEXT NOT NULL, source TEXT NOT NULL, destination TEXT NOT NULL,
    from_path TEXT NOT NULL, to_path TEXT NOT NULL, policy TEXT NOT NULL, lane TEXT NOT NULL, queue BIGINT NOT NULL,
    priority BIGINT NOT NULL, deadline BIGINT, size_estimate BIGINT,
    state BIGINT NOT NULL, paused BIGINT NOT NULL, cancel BIGINT NOT NULL, open BIGINT NOT NULL, broken BIGINT NOT NULL,
    files BIGINT NOT NULL, active BIGINT NOT NULL, done BIGINT NOT NULL, failed BIGINT NOT NULL,
    cancelled BIGINT NOT NULL, bytes BIGINT NOT NULL, bytes_done BIGINT NOT NULL, sized BIGINT NOT NULL,
    submitted BIGINT NOT NULL, changed BIGINT NOT NULL, ended BIGINT, trouble TEXT);
CREATE UNIQUE INDEX request_key ON request (client, client_key) WHERE client_key IS NOT NULL;
CREATE INDEX request_state ON request (state, id);
CREATE INDEX request_cancel ON request (id) WHERE cancel = 1 AND ended IS NULL;
CREATE INDEX request_ended ON request (ended) WHERE ended IS NOT NULL;

CREATE TABLE file (
    request BIGINT NOT NULL, seq BIGINT NOT NULL, path TEXT NOT NULL, size BIGINT, digest TEXT, state BIGINT NOT NULL,
    attempt BIGINT NOT NULL DEFAULT 0, fault TEXT, destination {bytes}, changed BIGINT NOT NULL,
    PRIMARY KEY (request, seq)){without_rowid};
CREATE UNIQUE INDEX file_destination ON file (destination) WHERE state < 2;

CREATE TABLE queue (
    id BIGINT PRIMARY KEY, class TEXT NOT NULL, source TEXT NOT NULL, destination TEXT NOT NULL,
    batches BIGINT NOT NULL, files BIGINT NOT NULL, bytes BIGINT NOT NULL, UNIQUE (class, source, destination));

CREATE TABLE batch (
    id BIGINT PRIMARY KEY, root BIGINT NOT NULL, request BIGINT NOT NULL, queue BIGINT NOT NULL, kind BIGINT NOT NULL,
    first BIGINT NOT NULL, last BIGINT NOT NULL, seqs TEXT, files BIGINT NOT NULL, bytes BIGINT NOT NULL, priority BIGINT NOT NULL,
    deadline BIGINT, lane TEXT NOT NULL, attempt BIGINT NOT NULL, state BIGINT NOT NULL, not_before BIGINT NOT NULL,
    run BIGINT, place BIGINT);
CREATE INDEX batch_queued ON batch (queue, priority DESC, id) WHERE state = 1;
CREATE INDEX batch_waiting ON batch (not_before) WHERE state = 0;
CREATE INDEX batch_request ON batch (request);
CREATE INDEX batch_run ON batch (run) WHERE run IS NOT NULL;

CREATE TABLE run (
    id BIGINT PRIMARY KEY, kind BIGINT NOT NULL, queue BIGINT NOT NULL, request BIGINT NOT NULL, class TEXT NOT NULL,
    from_host TEXT NOT NULL, to_host TEXT NOT NULL, from_path TEXT NOT NULL, to_path TEXT NOT NULL,
    policy TEXT NOT NULL, ticket TEXT NOT NULL, addresses TEXT NOT NULL, fingerprint TEXT NOT NULL,
    priority BIGINT NOT NULL, deadline BIGINT, files BIGINT NOT NULL, bytes BIGINT NOT NULL,
    state BIGINT NOT NULL, told BIGINT NOT NULL, from_gone BIGINT NOT NULL, to_gone BIGINT NOT NULL, why TEXT,
    rate_bps BIGINT, streams BIGINT, path TEXT NOT NULL, route TEXT NOT NULL, reason TEXT NOT NULL,
    settings_at BIGINT NOT NULL,
    agent_run BIGINT, outcomes BIGINT NOT NULL, entries BIGINT NOT NULL,
    phase BIGINT NOT NULL, moved BIGINT NOT NULL, settled_bytes BIGINT NOT NULL, settled_files BIGINT NOT NULL,
    measured_bps BIGINT NOT NULL, applied_bps BIGINT, live_streams BIGINT NOT NULL, retransmits BIGINT NOT NULL,
    bound_by TEXT NOT NULL, label TEXT NOT NULL, waiting TEXT, slow_since BIGINT, off_path BIGINT NOT NULL,
    started BIGINT NOT NULL, seen BIGINT NOT NULL, ended BIGINT);
CREATE INDEX run_live ON run (id) WHERE state < 2;
CREATE INDEX run_from ON run (from_host) WHERE state < 2;
CREATE INDEX run_to ON run (to_host) WHERE state < 2;
CREATE INDEX run_request ON run (request);
CREATE INDEX run_ended ON run (ended) WHERE ended IS NOT NULL;

CREATE TABLE host (
    name TEXT PRIMARY KEY, start TEXT NOT NULL, version TEXT NOT NULL, addresses TEXT NOT NULL,
    fingerprint TEXT NOT NULL, capacity TEXT NOT NULL, interfaces TEXT NOT NULL, seen BIGINT NOT NULL);
CREATE TABLE drain (name TEXT PRIMARY KEY, since BIGINT NOT NULL, who TEXT NOT NULL, why TEXT NOT NULL);
CREATE TABLE link (name TEXT PRIMARY KEY, down BIGINT NOT NULL, since BIGINT NOT NULL, why TEXT NOT NULL);

CREATE TABLE event (
    id BIGINT PRIMARY KEY, at BIGINT NOT NULL, request BIGINT, class TEXT, kind TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX event_request ON event (request, id) WHERE request IS NOT NULL;
CREATE INDEX event_alone ON event (at) WHERE request IS NULL;
CREATE TABLE audit (
    id BIGINT PRIMARY KEY, at BIGINT NOT NULL, who TEXT NOT NULL, peer TEXT NOT NULL, what TEXT NOT NULL,
    object TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE round (
    id BIGINT PRIMARY KEY, at BIGINT NOT NULL, cause TEXT NOT NULL, micros BIGINT NOT NULL, runs BIGINT NOT NULL,
    started BIGINT NOT NULL, changed BIGINT NOT NULL, classes TEXT NOT NULL, notes TEXT NOT NULL);
CREATE TABLE lease (name TEXT PRIMARY KEY, owner TEXT NOT NULL, until BIGINT NOT NULL);
CREATE TABLE reservation (
    id BIGINT PRIMARY KEY, client TEXT NOT NULL, class TEXT, source TEXT NOT NULL, destination TEXT NOT NULL,
    rate_bps BIGINT NOT NULL, begins BIGINT NOT NULL, ends BIGINT NOT NULL, route TEXT NOT NULL, made BIGINT NOT NULL);
CREATE INDEX reservation_ends ON reservation (ends);
",
    "
CREATE TABLE circuit (
    reservation BIGINT PRIMARY KEY, state BIGINT NOT NULL, addresses TEXT NOT NULL, since BIGINT NOT NULL,
    again BIGINT NOT NULL, why TEXT NOT NULL, checked BIGINT, carried BIGINT NOT NULL, measured_bps BIGINT NOT NULL,
    shows BIGINT);
CREATE INDEX circuit_live ON circuit (reservation) WHERE state < 3;
CREATE TABLE seen (
    link TEXT PRIMARY KEY, at BIGINT NOT NULL, up BIGINT, forward_bps BIGINT, back_bps BIGINT, interval_ms BIGINT);
",
    "
ALTER TABLE run ADD COLUMN moved_at BIGINT NOT NULL DEFAULT 0;
",
    "
ALTER TABLE run ADD COLUMN off_since BIGINT;
ALTER TABLE host ADD COLUMN gone_at BIGINT NOT NULL DEFAULT 0;
",
    "
ALTER TABLE run RENAME COLUMN told TO receiver_notified;
ALTER TABLE run RENAME COLUMN from_gone TO source_stop_acks;
ALTER TABLE run RENAME COLUMN to_gone TO destination_stop_acks;
ALTER TABLE run RENAME COLUMN why TO end_reason;
ALTER TABLE circuit RENAME COLUMN again TO retry_at;
ALTER TABLE seen RENAME TO link_telemetry;
",
    "
CREATE TABLE fts_job (
    id BIGINT PRIMARY KEY, uuid TEXT NOT NULL, client TEXT NOT NULL, class TEXT NOT NULL, kind BIGINT NOT NULL,
    state BIGINT NOT NULL, priority BIGINT NOT NULL, verify TEXT NOT NULL, overwrite BIGINT NOT NULL,
    retry BIGINT NOT NULL, retry_delay_s BIGINT NOT NULL, timeout_s BIGINT NOT NULL, metadata TEXT NOT NULL,
    reason TEXT, submitted BIGINT NOT NULL, expires BIGINT, ended BIGINT);
CREATE UNIQUE INDEX fts_job_uuid ON fts_job (uuid);
CREATE INDEX fts_job_ended ON fts_job (ended) WHERE ended IS NOT NULL;
CREATE INDEX fts_job_expires ON fts_job (expires) WHERE ended IS NULL;
CREATE TABLE fts_file (
    id BIGINT PRIMARY KEY, job BIGINT NOT NULL, state BIGINT NOT NULL, priority BIGINT NOT NULL, pair TEXT NOT NULL,
    not_before BIGINT NOT NULL, source TEXT NOT NULL, destination TEXT NOT NULL, source_token TEXT,
    destination_token TEXT, checksum TEXT, size BIGINT, activity TEXT, class TEXT NOT NULL, metadata TEXT NOT NULL,
    scitag BIGINT, by_request BIGINT NOT NULL, request BIGINT, attempt BIGINT NOT NULL, moved BIGINT NOT NULL, reason TEXT, started BIGINT, ended BIGINT);
CREATE INDEX fts_file_job ON fts_file (job, id);
CREATE INDEX fts_file_live ON fts_file (by_request, state, pair, priority DESC, id) WHERE state < 3;
CREATE TABLE fts_ban (storage TEXT PRIMARY KEY, client TEXT NOT NULL, since BIGINT NOT NULL);
",
    "
CREATE INDEX request_live ON request (client) WHERE ended IS NULL;
",
    "
ALTER TABLE run ADD COLUMN path_forecast TEXT;
",
    "
CREATE INDEX fts_job_client ON fts_job (client);
ALTER TABLE fts_ban ADD COLUMN status TEXT NOT NULL DEFAULT 'WAIT';
INSERT INTO fts_ban (storage, client, since) SELECT LOWER(storage), client, since FROM fts_ban
    WHERE storage <> LOWER(storage) ON CONFLICT DO NOTHING;
DELETE FROM fts_ban WHERE storage <> LOWER(storage);
INSERT INTO fts_ban (storage, client, since) SELECT 'https' || SUBSTR(storage, 5), client, since FROM fts_ban
    WHERE storage LIKE 'davs:%' ON CONFLICT DO NOTHING;
INSERT INTO fts_ban (storage, client, since) SELECT 'http' || SUBSTR(storage, 4), client, since FROM fts_ban
    WHERE storage LIKE 'dav:%' ON CONFLICT DO NOTHING;
DELETE FROM fts_ban WHERE storage LIKE 'dav%';
",
    "
ALTER TABLE run ADD COLUMN transport TEXT;
ALTER TABLE run ADD COLUMN transport_reason TEXT;
ALTER TABLE request ADD COLUMN transport TEXT;
ALTER TABLE request ADD COLUMN transport_reason TEXT;
",
];

/// Brings the tables to the newest version.
pub(crate) async fn migrate(
    connection: &mut AnyConnection,
    kind: DatabaseKind,
) -> Result<(), OpenFault> {
    run_scripts(connection, kind, &MIGRATIONS).await
}

/// Runs those of these migrations that the database has not.
async fn run_scripts(
    connection: &mut AnyConnection,
    kind: DatabaseKind,
    scripts: &[&str],
) -> Result<(), OpenFault> {
    let failed = OpenFault::Migrate;
    let mut tx = connection.begin().await.map_err(failed)?;
    if kind == DatabaseKind::Postgres {
        // Of several controllers that start together one creates the tables.
        let alone = sqlx::raw_sql("SELECT 1 FROM (SELECT pg_advisory_xact_lock(8621)) AS held");
        alone.execute(&mut *tx).await.map_err(failed)?;
    }
    let begin = "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)";
    sqlx::raw_sql(begin).execute(&mut *tx).await.map_err(failed)?;
    let version =
        sqlx::query("SELECT CAST(COALESCE(MAX(version), 0) AS BIGINT) FROM schema_version");
    let version: i64 = version.fetch_one(&mut *tx).await.map_err(failed)?.get(0);
    if version > scripts.len() as i64 {
        return Err(OpenFault::Newer { version, known: scripts.len() });
    }
    let known = sqlx::query("SELECT last FROM batch LIMIT 1");
    if version > 0
        && let Err(error) = known.fetch_optional(&mut *tx).await
    {
        // A damaged file says nothing about its version.
        let is_fault = super::db::sqlite_fault(&error).is_some();
        return Err(if is_fault { failed(error) } else { OpenFault::Older });
    }
    let (bytes, without_rowid) = match kind {
        DatabaseKind::Sqlite => ("BLOB", " WITHOUT ROWID"),
        DatabaseKind::Postgres => ("BYTEA", ""),
    };
    for (at, script) in scripts.iter().enumerate().skip(usize::try_from(version).unwrap_or(0)) {
        let script = script.replace("{bytes}", bytes).replace("{without_rowid}", without_rowid);
        sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut *tx).await.map_err(failed)?;
        sqlx::query("INSERT INTO schema_version (version) VALUES ($1)")
            .bind(at as i64 + 1)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
    }
    tx.commit().await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use penstock_testkit::postgres::PostgresServer;
    use penstock_testkit::{Requirement, skip};
    use tokio::runtime::Runtime;

    use super::*;

    /// Migrations of a version whose bans had the scheme of the client.
    const BANS_WITH_SCHEME: usize = 8;

    /// Stores bans in tables of that version, and returns what they are after the migration.
    async fn migrated_bans(url: &str) -> Vec<(String, String, String)> {
        sqlx::any::install_default_drivers();
        let kind = crate::repository::db::kind(url).unwrap();
        let mut connection = AnyConnection::connect(url).await.unwrap();
        run_scripts(&mut connection, kind, &MIGRATIONS[..BANS_WITH_SCHEME]).await.unwrap();
        let bans =
            ["davs://a", "dav://b", "https://c", "davs://c", "http://d", "DAVS://e", "HTTPS://f"];
        for (storage, client) in bans.into_iter().zip(["1", "2", "3", "4", "5", "6", "7"]) {
            let text = "INSERT INTO fts_ban (storage, client, since) VALUES ($1, $2, 0)";
            sqlx::query(text).bind(storage).bind(client).execute(&mut connection).await.unwrap();
        }
        migrate(&mut connection, kind).await.unwrap();
        let text = "SELECT storage, client, status FROM fts_ban ORDER BY storage";
        let bans = sqlx::query(text).fetch_all(&mut connection).await.unwrap();
        bans.iter().map(|ban| (ban.get(0), ban.get(1), ban.get(2))).collect()
    }

    #[test]
    fn bans_of_older_version_are_migrated() {
        let directory = tempfile::tempdir().unwrap();
        let mut urls = vec![format!("sqlite://{}/old.db?mode=rwc", directory.path().display())];
        let server = PostgresServer::shared();
        match &server {
            Ok(server) => urls.push(server.new_database()),
            Err(error) => skip(Requirement::Program, &error.to_string()),
        }
        let expected = [
            ("http://b", "2"),
            ("http://d", "5"),
            ("https://a", "1"),
            ("https://c", "3"),
            ("https://e", "6"),
            ("https://f", "7"),
        ];
        let expected = expected
            .map(|(storage, client)| (storage.to_owned(), client.to_owned(), "WAIT".to_owned()));
        for url in urls {
            let bans = Runtime::new().unwrap().block_on(migrated_bans(&url));
            assert_eq!(bans, expected, "{url}");
        }
    }
}
