-- Tables of collectors that keep their minutes in ClickHouse (18.16 or newer). A collector creates them if it
-- may; otherwise: sed 's/{database}/penstock/g' schema.sql | clickhouse-client --multiquery
--
-- A row is a sum of one collector over one minute: bytes, the square of the half-width of their 95 % interval (squares of
-- independent errors add), and for counters and covered time the seconds measured. An unknown value is 0, ''
-- or, for VLANs, -1 (of two tags the outer one and 4096 times the inner one plus 1); a label is a scitag's number, -1 unlabelled, -2 untrusted, -3 other (groups over the limit).
-- A packet is sampled at each hop and several collectors may receive an exporter: README.md explains how to add.

CREATE DATABASE IF NOT EXISTS {database};

CREATE TABLE IF NOT EXISTS {database}.minute
(
    start DateTime('UTC'),
    collector String,
    batch Int64,
    kind Enum8('group' = 0, 'host' = 1, 'system' = 2, 'counter' = 3, 'covered' = 4),
    exporter String,
    host UInt8,
    direction Enum8('?' = 0, 'in' = 1, 'out' = 2),
    label Int32,
    owner String,
    activity String,
    input UInt32,
    output UInt32,
    vlan Int32,
    ip_version UInt8,
    source_site String,
    destination_site String,
    address String,
    prefix String,
    sent UInt8,
    source_as UInt32,
    destination_as UInt32,
    interface UInt32,
    bytes Float64,
    error_squared Float64,
    seconds Float64
)
ENGINE = MergeTree() PARTITION BY toYYYYMMDD(start) ORDER BY (kind, start, exporter);

CREATE TABLE IF NOT EXISTS {database}.hour
(
    start DateTime('UTC'),
    collector String,
    kind Enum8('group' = 0, 'host' = 1, 'system' = 2, 'counter' = 3, 'covered' = 4),
    exporter String,
    host UInt8,
    direction Enum8('?' = 0, 'in' = 1, 'out' = 2),
    label Int32,
    owner String,
    activity String,
    input UInt32,
    output UInt32,
    vlan Int32,
    ip_version UInt8,
    source_site String,
    destination_site String,
    address String,
    prefix String,
    sent UInt8,
    source_as UInt32,
    destination_as UInt32,
    interface UInt32,
    bytes Float64,
    error_squared Float64,
    seconds Float64,
    minute_rows UInt64
)
ENGINE = SummingMergeTree((bytes, error_squared, seconds, minute_rows)) PARTITION BY toYYYYMM(start)
ORDER BY (kind, start, exporter, host, direction, label, owner, activity, input, output, vlan, ip_version, source_site,
    destination_site, address, prefix, sent, source_as, destination_as, interface, collector);

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.minute_to_hour TO {database}.hour AS
SELECT toStartOfHour(start) AS start, collector, kind, exporter, host, direction, label, owner, activity, input, output,
    vlan, ip_version, source_site, destination_site, address, prefix, sent, source_as, destination_as, interface, bytes,
    error_squared, seconds, toUInt64(1) AS minute_rows
FROM {database}.minute;
