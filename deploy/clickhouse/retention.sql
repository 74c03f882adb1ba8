-- Retention of rows. Needs ClickHouse 19.6 or newer; with older versions, drop partitions by age manually.
-- To change the times, edit this file and run it again.

ALTER TABLE {database}.minute MODIFY TTL start + INTERVAL 7 DAY;

ALTER TABLE {database}.hour MODIFY TTL start + INTERVAL 366 DAY;
