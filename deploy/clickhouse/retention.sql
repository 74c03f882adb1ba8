-- How long rows are kept. Needs ClickHouse 19.6 or newer; before it, drop partitions by age yourself.
-- Other times: change them here, and run this again.

ALTER TABLE {database}.minute MODIFY TTL start + INTERVAL 7 DAY;

ALTER TABLE {database}.hour MODIFY TTL start + INTERVAL 366 DAY;
