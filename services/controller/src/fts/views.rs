//! Jobs and files as clients of FTS3 read them.

use penstock_control::fts::checksum::FtsChecksum;
use serde_json::{Map, Value, json};

use super::submit::storage_of;
use crate::repository::fts::{FtsFileRow, FtsJobRow};

/// Formats Unix milliseconds as `YYYY-MM-DDTHH:MM:SS` in UTC (Hinnant, chrono-compatible low-level date algorithms).
pub(super) fn time(at: i64) -> String {
    let seconds = at.div_euclid(1000);
    let (days, second) = (seconds.div_euclid(86_400) + 719_468, seconds.rem_euclid(86_400));
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day + 2) / 153;
    let date = day - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}")
}

/// A job without its files.
pub(super) fn job(row: &FtsJobRow) -> Value {
    // Rucio reads it as an object.
    let metadata = if row.metadata.0.is_null() { json!({}) } else { row.metadata.0.clone() };
    json!({
        "job_id": row.uuid,
        "job_state": row.state.as_str(),
        "job_type": row.kind.as_str(),
        "user_dn": row.client,
        "cred_id": super::submit::client_id(&row.client),
        "vo_name": row.class,
        "reason": row.reason,
        "submit_time": time(row.submitted),
        "job_finished": row.ended.map(time),
        "priority": row.priority,
        "verify_checksum": row.verify,
        "overwrite_flag": row.overwrite,
        "retry": row.retry,
        "retry_delay": row.retry_delay_s,
        "job_metadata": metadata,
        "http_status": "200 Ok",
        "bring_online": -1,
        "copy_pin_lifetime": -1,
        "archive_timeout": -1,
        "space_token": null,
        "source_space_token": null,
        "internal_job_params": null,
        "source_se": null,
        "dest_se": null,
    })
}

/// A file of a job; its index is its place in the job.
pub(super) fn file(job: &FtsJobRow, row: &FtsFileRow, index: usize) -> Value {
    let checksum = row.checksum.as_deref().and_then(FtsChecksum::parse);
    let checksum = checksum
        .map(|sum| format!("{}:{}", sum.algorithm.to_uppercase(), sum.value.unwrap_or_default()));
    let seconds = row.started.zip(row.ended).map(|(begun, ended)| (ended - begun) as f64 / 1000.0);
    let throughput = seconds
        .filter(|seconds| *seconds > 0.0)
        .map(|seconds| row.moved as f64 / seconds / f64::from(1 << 20));
    json!({
        "file_id": row.id,
        "file_index": index,
        "job_id": job.uuid,
        "vo_name": job.class,
        "file_state": row.state.as_str(),
        "source_surl": row.source,
        "dest_surl": row.destination,
        "source_se": storage_of(&row.source),
        "dest_se": storage_of(&row.destination),
        "reason": row.reason,
        "start_time": row.started.map(time),
        "finish_time": row.ended.map(time),
        "staging_start": null,
        "staging_finished": null,
        "filesize": row.size,
        "user_filesize": row.size,
        "transferred": row.moved,
        "tx_duration": seconds,
        "throughput": throughput,
        "checksum": checksum,
        "file_metadata": row.metadata.0,
        "activity": row.activity,
        "priority": job.priority,
        "retry": (row.attempt - 1).max(0),
        "scitag": row.scitag,
        "selection_strategy": null,
        "log_file": null,
    })
}

/// Keeps these keys of an object; all without any.
pub(super) fn only(value: Value, keys: &[&str]) -> Value {
    match value {
        Value::Object(object) if !keys.is_empty() => {
            let kept: Map<String, Value> =
                object.into_iter().filter(|(key, _)| keys.contains(&key.as_str())).collect();
            Value::Object(kept)
        }
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_form_of_fts() {
        for (at, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_400_000, "2000-02-29T00:00:00"),
            (1_700_000_000_999, "2023-11-14T22:13:20"),
            (4_102_444_799_000, "2099-12-31T23:59:59"),
        ] {
            assert_eq!(time(at), text);
        }
    }
}
