//! The history as CSV (RFC 4180) or Parquet; `python/training` reads the CSV.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use penstock_agent::history::{HistoryRow, ProtectionName};

use crate::exit::{Code, CommandFailure, OrExit};

/// Type of a column, and its value for a transfer.
enum HistoryColumn {
    Integers(fn(&HistoryRow) -> Option<u64>),
    Numbers(fn(&HistoryRow) -> Option<f64>),
    Words(fn(&HistoryRow) -> Option<&str>),
    Flags(fn(&HistoryRow) -> bool),
}
use HistoryColumn::{Flags, Integers, Numbers, Words};

/// Columns with the names of the fields of `tune history --json`.
const COLUMNS: [(&str, HistoryColumn); 32] = [
    ("id", Integers(|row| u64::try_from(row.id).ok())),
    ("started_unix_seconds", Numbers(|row| Some(row.started_unix_seconds))),
    ("source", Words(|row| Some(&row.source))),
    ("destination", Words(|row| Some(&row.destination))),
    ("direction", Words(|row| Some(&row.direction))),
    ("protocol", Words(|row| Some(&row.protocol))),
    ("protection", Words(|row| row.protection.map(ProtectionName::as_str))),
    ("engine", Words(|row| Some(&row.engine))),
    ("announced_bytes", Integers(|row| Some(row.announced_bytes))),
    ("resumed_bytes", Integers(|row| Some(row.resumed_bytes))),
    ("files", Integers(|row| Some(row.files))),
    ("block_bytes", Integers(|row| row.block_bytes.map(u64::from))),
    ("streams", Integers(|row| Some(row.streams.into()))),
    ("streams_settled", Integers(|row| row.streams_settled.map(u64::from))),
    ("readers", Integers(|row| Some(row.readers.into()))),
    ("writers", Integers(|row| Some(row.writers.into()))),
    ("rate_limit_bps", Integers(|row| row.rate_limit_bps)),
    ("rtt_us", Integers(|row| row.rtt_us.map(u64::from))),
    ("other_transfers", Integers(|row| Some(row.other_transfers.into()))),
    ("other_streams", Integers(|row| Some(row.other_streams.into()))),
    ("load_1min", Numbers(|row| row.load_1min)),
    ("processors", Integers(|row| Some(row.processors.into()))),
    ("cpu_pressure_percent", Numbers(|row| row.cpu_pressure_percent)),
    ("io_pressure_percent", Numbers(|row| row.io_pressure_percent)),
    ("dirty_bytes", Integers(|row| row.dirty_bytes)),
    ("seconds", Numbers(|row| Some(row.seconds))),
    ("moved_bytes", Integers(|row| Some(row.moved_bytes))),
    ("failed", Integers(|row| Some(row.failed))),
    ("bound_by", Words(|row| Some(&row.bound_by))),
    ("verdict", Words(|row| Some(row.verdict.as_str()))),
    ("retransmits", Integers(|row| Some(row.retransmits))),
    ("synthetic", Flags(|row| row.synthetic)),
];

/// Writes the transfers to a file of the type that its name says, readable by its owner alone.
///
/// # Errors
/// When the name has another end, or the file cannot be written.
pub(super) fn write(path: &Path, rows: &[HistoryRow]) -> Result<(), CommandFailure> {
    let bytes = match path.extension().and_then(|end| end.to_str()) {
        Some("csv") => csv(rows).into_bytes(),
        Some("parquet") => parquet(rows).context("cannot make a table of transfers")?,
        _ => {
            let error =
                anyhow::anyhow!("{}: give a name that ends with .csv or .parquet", path.display());
            return Err(error).or_exit(Code::Usage);
        }
    };
    put(path, &bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

/// Replaces a file whole, with mode 0600: a failure leaves the former one. Pipes and devices are written to.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A link keeps leading to the file.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return OpenOptions::new().write(true).open(&path)?.write_all(bytes);
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".penstock-export-").tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(&path)?;
    Ok(())
}

fn csv(rows: &[HistoryRow]) -> String {
    let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
    let mut text = names.join(",") + "\n";
    for row in rows {
        for (number, (_, column)) in COLUMNS.iter().enumerate() {
            if number > 0 {
                text.push(',');
            }
            // Unknown values are empty.
            let _ = match column {
                Integers(of) => of(row).map_or(Ok(()), |value| write!(text, "{value}")),
                Numbers(of) => of(row).map_or(Ok(()), |value| write!(text, "{value}")),
                Words(of) => of(row).map_or(Ok(()), |word| text.write_str(&quoted(word))),
                Flags(of) => write!(text, "{}", of(row)),
            };
        }
        text.push('\n');
    }
    text
}

/// A cell, in quotation marks where a reader would take it for more than one.
fn quoted(word: &str) -> String {
    if word.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", word.replace('"', "\"\""));
    }
    word.to_owned()
}

/// Present values, and a definition level for each row.
fn levels<T>(values: impl Iterator<Item = Option<T>>) -> (Vec<T>, Vec<i16>) {
    let values: Vec<Option<T>> = values.collect();
    let levels = values.iter().map(|value| i16::from(value.is_some())).collect();
    (values.into_iter().flatten().collect(), levels)
}

fn parquet(rows: &[HistoryRow]) -> anyhow::Result<Vec<u8>> {
    let fields: String = COLUMNS
        .iter()
        .map(|(name, column)| match column {
            Integers(_) => format!("optional int64 {name};"),
            Numbers(_) => format!("optional double {name};"),
            Words(_) => format!("optional binary {name} (utf8);"),
            Flags(_) => format!("required boolean {name};"),
        })
        .collect();
    let schema = parse_message_type(&format!("message transfers {{ {fields} }}"))?;
    let properties = WriterProperties::builder()
        .set_created_by(format!("penstock {}", env!("CARGO_PKG_VERSION")))
        .build();
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    for (_, column) in &COLUMNS {
        let Some(mut out) = group.next_column()? else { break };
        match (column, out.untyped()) {
            (Integers(of), ColumnWriter::Int64ColumnWriter(out)) => {
                let (values, levels) = levels(rows.iter().map(|row| of(row).map(u64::cast_signed)));
                out.write_batch(&values, Some(&levels), None)?;
            }
            (Numbers(of), ColumnWriter::DoubleColumnWriter(out)) => {
                let (values, levels) = levels(rows.iter().map(of));
                out.write_batch(&values, Some(&levels), None)?;
            }
            (Words(of), ColumnWriter::ByteArrayColumnWriter(out)) => {
                let (values, levels) = levels(rows.iter().map(|row| of(row).map(ByteArray::from)));
                out.write_batch(&values, Some(&levels), None)?;
            }
            (Flags(of), ColumnWriter::BoolColumnWriter(out)) => {
                let values: Vec<bool> = rows.iter().map(of).collect();
                out.write_batch(&values, None, None)?;
            }
            _ => bail!("a column is not of the kind that the schema says"),
        }
        out.close()?;
    }
    group.close()?;
    Ok(writer.into_inner()?)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    use penstock_agent::history::TransferVerdict;

    use super::*;

    fn row(id: i64) -> HistoryRow {
        HistoryRow {
            id,
            started_unix_seconds: 1_800_000_000.25,
            source: "dtn1, \"east\"".to_owned(),
            destination: "192.0.2.7".to_owned(),
            direction: "send".to_owned(),
            protocol: "penstock".to_owned(),
            protection: Some(ProtectionName::Integrity),
            engine: "io_uring".to_owned(),
            announced_bytes: 9,
            resumed_bytes: 0,
            files: 3,
            block_bytes: None,
            streams: 4,
            readers: 2,
            writers: 0,
            rate_limit_bps: None,
            rtt_us: Some(70),
            other_transfers: 1,
            other_streams: 4,
            load_1min: Some(0.5),
            processors: 8,
            cpu_pressure_percent: None,
            io_pressure_percent: Some(1.5),
            dirty_bytes: Some(4096),
            seconds: 0.125,
            moved_bytes: 9,
            failed: 0,
            bound_by: "network".to_owned(),
            verdict: TransferVerdict::Done,
            retransmits: 0,
            synthetic: false,
            streams_settled: Some(4),
        }
    }

    #[test]
    fn csv_quotes_and_leaves_unknown_empty() {
        let text = csv(&[row(7)]);
        let expected = "7,1800000000.25,\"dtn1, \"\"east\"\"\",192.0.2.7,send,penstock,integrity,io_uring,9,0,3,,4,4,2,0,,70,1,4,\
            0.5,8,,1.5,4096,0.125,9,0,network,done,0,false";
        assert_eq!(text.lines().nth(1), Some(expected));
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn columns_are_fields_of_json() {
        let serde_json::Value::Object(object) = serde_json::to_value(row(1)).unwrap() else {
            panic!("an object")
        };
        let mut fields: Vec<&str> = object.keys().map(String::as_str).collect();
        let mut columns: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
        fields.sort_unstable();
        columns.sort_unstable();
        assert_eq!(columns, fields);
    }

    #[test]
    fn export_replaces_file_privately() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.csv");
        std::fs::write(&path, "former").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let reader = std::fs::File::open(&path).unwrap();
        write(&path, &[row(1)]).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("id,"));
        // Whoever reads the former file still has all of it.
        assert_eq!(std::io::read_to_string(reader).unwrap(), "former");
    }

    #[test]
    fn parquet_is_read_as_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.parquet");
        write(&path, &[row(1), row(2)]).unwrap();
        let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 2);
        let fields: Vec<_> = rows[1].get_column_iter().map(|(_, field)| field.clone()).collect();
        assert_eq!(fields[0], Field::Long(2));
        assert_eq!(fields[2], Field::Str("dtn1, \"east\"".to_owned()));
        assert_eq!((&fields[11], &fields[31]), (&Field::Null, &Field::Bool(false)));
        assert_eq!(fields[25], Field::Double(0.125));
    }
}
