//! A Parquet file: row groups of records, compressed with Snappy, readable once it is finished.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use penstock_flows::observe::InterfaceDirection;
use penstock_flows::packet::MappedAddress;

use super::record::{IpFields, SampleRecord, text};

/// Returns the name of an exporter by its number.
pub(super) type ExporterNames<'a> = &'a dyn Fn(u32) -> String;

/// Type of a column, and the function that reads its value.
enum ColumnReader {
    Int(fn(&SampleRecord) -> Option<i32>),
    Long(fn(&SampleRecord) -> Option<i64>),
    Word(fn(&SampleRecord) -> Option<&'static str>),
    Address(fn(&SampleRecord) -> Option<MappedAddress>),
    Exporter,
}
use ColumnReader::{Int, Long, Word};

fn of_ip<T>(record: &SampleRecord, of: impl FnOnce(&IpFields) -> T) -> Option<T> {
    record.ip.as_ref().map(of)
}

/// Columns in order: Parquet declaration and type. Unsigned numbers keep their bits.
const COLUMNS: [(&str, ColumnReader); 26] = [
    ("required int64 time (TIMESTAMP(MICROS,true))", Long(|r| Some(r.time_us))),
    ("required binary exporter (UTF8)", ColumnReader::Exporter),
    ("required int32 sampling_rate (INTEGER(32,false))", Int(|r| Some(r.sampling_rate as i32))),
    ("required int64 packets (INTEGER(64,false))", Long(|r| Some(r.packets as i64))),
    ("required int64 frame_bytes (INTEGER(64,false))", Long(|r| Some(r.frame_bytes as i64))),
    (
        "optional binary direction (UTF8)",
        Word(|r| match r.direction {
            InterfaceDirection::Ingress => Some("in"),
            InterfaceDirection::Egress => Some("out"),
            InterfaceDirection::Unknown => None,
        }),
    ),
    ("optional int32 input (INTEGER(32,false))", Int(|r| r.input.map(|index| index as i32))),
    ("optional int32 output (INTEGER(32,false))", Int(|r| r.output.map(|index| index as i32))),
    ("optional int32 vlan (INTEGER(16,false))", Int(|r| r.vlan.map(i32::from))),
    ("optional int32 ip_version (INTEGER(8,false))", Int(|r| of_ip(r, |ip| ip.version.into()))),
    ("optional binary source (UTF8)", ColumnReader::Address(|r| of_ip(r, |ip| ip.source))),
    (
        "optional binary destination (UTF8)",
        ColumnReader::Address(|r| of_ip(r, |ip| ip.destination)),
    ),
    ("optional int32 source_port (INTEGER(16,false))", Int(|r| Some(r.ip?.ports?.0.into()))),
    ("optional int32 destination_port (INTEGER(16,false))", Int(|r| Some(r.ip?.ports?.1.into()))),
    ("optional int32 protocol (INTEGER(8,false))", Int(|r| of_ip(r, |ip| ip.protocol.into()))),
    (
        "optional int32 traffic_class (INTEGER(8,false))",
        Int(|r| of_ip(r, |ip| ip.traffic_class.into())),
    ),
    ("optional int32 hop_limit (INTEGER(8,false))", Int(|r| of_ip(r, |ip| ip.hop_limit.into()))),
    ("optional int32 tcp_flags (INTEGER(8,false))", Int(|r| of_ip(r, |ip| ip.tcp_flags.into()))),
    ("optional int32 flow_label (INTEGER(32,false))", Int(|r| of_ip(r, |ip| ip.flow_label as i32))),
    ("required binary verdict (UTF8)", Word(|r| Some(r.verdict))),
    ("optional int32 owner (INTEGER(16,false))", Int(|r| r.tag.map(|tag| tag.owner().into()))),
    (
        "optional int32 activity (INTEGER(16,false))",
        Int(|r| r.tag.map(|tag| tag.activity().into())),
    ),
    ("optional int32 source_as (INTEGER(32,false))", Int(|r| r.source_as.map(|asn| asn as i32))),
    (
        "optional int32 destination_as (INTEGER(32,false))",
        Int(|r| r.destination_as.map(|asn| asn as i32)),
    ),
    (
        "optional int32 drop_reason (INTEGER(32,false))",
        Int(|r| r.drop_reason.map(|reason| reason as i32)),
    ),
    ("optional int32 inner_vlan (INTEGER(16,false))", Int(|r| r.inner_vlan.map(i32::from))),
];

/// A file that is being written.
pub(super) struct ParquetFile {
    writer: SerializedFileWriter<File>,
}

impl ParquetFile {
    /// Begins an empty file.
    pub(super) fn begin(file: File) -> io::Result<Self> {
        let columns: String =
            COLUMNS.iter().map(|(declared, _)| format!("{declared};\n")).collect();
        let schema = parse_message_type(&format!("message sample {{ {columns} }}"));
        let schema = Arc::new(schema.map_err(failed)?);
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let writer = SerializedFileWriter::new(file, schema, Arc::new(properties));
        Ok(Self { writer: writer.map_err(failed)? })
    }

    /// Bytes written so far.
    pub(super) fn bytes(&self) -> u64 {
        self.writer.bytes_written() as u64
    }

    /// Appends a row group.
    pub(super) fn append(
        &mut self,
        records: &[SampleRecord],
        names: ExporterNames<'_>,
    ) -> io::Result<()> {
        let mut group = self.writer.next_row_group().map_err(failed)?;
        let mut texts = HashMap::new();
        for (declared, column) in &COLUMNS {
            let optional = declared.starts_with("optional");
            match column {
                Int(of) => put::<Int32Type>(&mut group, optional, records.iter().map(of)),
                Long(of) => put::<Int64Type>(&mut group, optional, records.iter().map(of)),
                Word(of) => {
                    let words = records.iter().map(|record| of(record).map(ByteArray::from));
                    put::<ByteArrayType>(&mut group, optional, words)
                }
                ColumnReader::Address(of) => {
                    // A few addresses occur again and again.
                    let mut known = |address: MappedAddress| {
                        texts.entry(address).or_insert_with(|| known_text(address)).clone()
                    };
                    let addresses = records.iter().map(|record| of(record).map(&mut known));
                    put::<ByteArrayType>(&mut group, optional, addresses)
                }
                ColumnReader::Exporter => {
                    let mut known = HashMap::<u32, ByteArray>::new();
                    let mut name = |id: u32| -> ByteArray {
                        known.entry(id).or_insert_with(|| names(id).into_bytes().into()).clone()
                    };
                    let keys = records.iter().map(|record| Some(name(record.exporter)));
                    put::<ByteArrayType>(&mut group, optional, keys)
                }
            }
            .map_err(failed)?;
        }
        group.close().map_err(failed)?;
        Ok(())
    }

    /// Writes the footer and syncs the file.
    pub(super) fn finish(self) -> io::Result<()> {
        self.writer.into_inner().map_err(failed)?.sync_all()
    }
}

fn known_text(address: MappedAddress) -> ByteArray {
    text(address).into_bytes().into()
}

fn put<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    optional: bool,
    values: impl Iterator<Item = Option<T::T>>,
) -> Result<(), ParquetError> {
    let (mut there, mut levels) = (Vec::new(), Vec::new());
    for value in values {
        levels.push(i16::from(value.is_some()));
        there.extend(value);
    }
    let mut column = group
        .next_column()?
        .ok_or_else(|| ParquetError::General("fewer columns than were declared".to_owned()))?;
    let levels = optional.then_some(levels.as_slice());
    column.typed::<T>().write_batch(&there, levels, None)?;
    column.close()
}

/// Extracts an I/O error, so that a full disk is reported as such.
fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(cause) => match cause.downcast::<io::Error>() {
            Ok(cause) => *cause,
            Err(cause) => io::Error::other(cause),
        },
        other => io::Error::other(other),
    }
}
