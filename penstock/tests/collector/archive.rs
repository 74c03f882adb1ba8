//! Raw samples in Parquet files.

use std::fs::{self, File};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;

use crate::persistence::end;
use crate::site::{CONFIG, Collector, Exporter, FRAME_BYTES, Mark, packet, taken, test_dir};

#[test]
fn parquet_files_are_complete() {
    let dir = test_dir();
    let config =
        format!("{CONFIG}\n[collector.parquet]\ndirectory = \"samples\"\nrotate = \"1s\"\n");
    let collector = Collector::start(dir.path(), &config);
    let socket = collector.socket("sflow");
    let mut exporter = Exporter::new(1, 1000);
    for (header, count) in
        [(packet(1, 2, Mark::Label(3, 14), 3001), 60), (packet(2, 1, Mark::None, 3002), 40)]
    {
        for datagram in exporter.samples(&header, count) {
            socket.send(&datagram).unwrap();
        }
    }
    taken(&collector, 100);
    // A file ends while the collector runs.
    collector.until("/api/v1/telemetry/status", |status| {
        (status["parquet"]["records"].as_u64()? >= 100).then_some(())
    });
    let status = collector.get("/api/v1/telemetry/status");
    assert_eq!(
        (&status["parquet"]["dropped"], &status["parquet"]["trouble"]),
        (&0.into(), &().into())
    );
    assert!(status["parquet"]["bytes"].as_u64() > Some(0));
    for datagram in exporter.samples(&packet(1, 2, Mark::None, 3001), 7) {
        socket.send(&datagram).unwrap();
    }
    taken(&collector, 107);
    end(collector);
    let (mut labelled, mut rows) = (0, 0);
    for entry in fs::read_dir(dir.path().join("samples")).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(path.extension().and_then(|end| end.to_str()), Some("parquet"), "{path:?}");
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        for row in reader.get_row_iter(None).unwrap() {
            let row = row.unwrap();
            rows += 1;
            labelled += u32::from(row.get_string(19).unwrap() == "trusted");
            assert_eq!(row.get_string(1).unwrap(), "192.0.2.1");
            assert_eq!(
                (row.get_uint(2).unwrap(), row.get_ulong(4).unwrap()),
                (1000, FRAME_BYTES.into())
            );
        }
    }
    assert_eq!((rows, labelled), (107, 60));
}
