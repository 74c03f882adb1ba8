//! Files are complete, hold all records, and stay within the limit.

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use penstock_flows::observe::InterfaceDirection;
use penstock_flows::packet::MappedAddress;
use penstock_scitags::Scitag;

use super::record::IpFields;
use super::*;

fn config(dir: &Path) -> Config {
    Config {
        directory: dir.to_owned(),
        rotate: Duration::from_secs(3600),
        file_bytes: 1 << 20,
        bytes_max: 1 << 30,
    }
}

fn record(number: u64) -> SampleRecord {
    let ip = IpFields {
        version: 6,
        source: MappedAddress::from("2001:db8::1".parse::<std::net::IpAddr>().unwrap()),
        destination: MappedAddress::from("192.0.2.7".parse::<std::net::IpAddr>().unwrap()),
        ports: Some((40_000, 5201)),
        protocol: 6,
        traffic_class: 2,
        hop_limit: 64,
        tcp_flags: 0x18,
        flow_label: 0xF_FFFF,
    };
    SampleRecord {
        time_us: number as i64,
        exporter: 7,
        sampling_rate: u32::MAX,
        packets: 1,
        frame_bytes: number,
        direction: InterfaceDirection::Egress,
        input: None,
        output: Some(u32::MAX),
        vlan: number.is_multiple_of(2).then_some(3001),
        inner_vlan: number.is_multiple_of(4).then_some(7),
        ip: (!number.is_multiple_of(3)).then_some(ip),
        verdict: if number.is_multiple_of(5) { "trusted" } else { "unlabelled" },
        tag: number.is_multiple_of(5).then(|| Scitag::new(3, 14).unwrap()),
        source_as: Some(4_200_000_000),
        destination_as: None,
        drop_reason: None,
    }
}

/// Writes as the threads of a collector do, and returns the counters.
fn write(config: Config, numbers: std::ops::Range<u64>) -> Arc<ArchiveHealth> {
    let (archive, recorder, writer) = open(config).unwrap();
    let names = |id: u32| format!("exporter-{id}");
    let thread = std::thread::spawn(move || writer.run(&names));
    let mut another = recorder.another();
    drop(recorder);
    for number in numbers {
        another.put(record(number));
    }
    drop(another);
    thread.join().unwrap();
    assert_eq!(archive.health.dropped.load(Ordering::Relaxed), 0);
    archive.health
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn parquet_records_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let health = write(config(dir.path()), 0..100_000);
    assert_eq!(health.records.load(Ordering::Relaxed), 100_000);
    let files = files(dir.path());
    assert_eq!(files.len(), 1);
    let reader = SerializedFileReader::new(fs::File::open(&files[0]).unwrap()).unwrap();
    assert_eq!(reader.metadata().file_metadata().num_rows(), 100_000);
    for (number, row) in (0_u64..).zip(reader.get_row_iter(None).unwrap()) {
        let row = row.unwrap();
        let wanted = record(number);
        assert_eq!(row.get_timestamp_micros(0).unwrap(), wanted.time_us);
        assert_eq!(row.get_string(1).unwrap(), "exporter-7");
        assert_eq!((row.get_uint(2).unwrap(), row.get_ulong(4).unwrap()), (u32::MAX, number));
        assert_eq!(row.get_string(5).unwrap(), "out");
        assert!(row.get_uint(6).is_err());
        assert_eq!(row.get_uint(7).unwrap(), u32::MAX);
        assert_eq!(row.get_ushort(8).ok(), wanted.vlan);
        assert_eq!(row.get_string(10).ok().map(String::as_str), wanted.ip.map(|_| "2001:db8::1"));
        assert_eq!(row.get_string(11).ok().map(String::as_str), wanted.ip.map(|_| "192.0.2.7"));
        assert_eq!(row.get_ushort(13).ok(), wanted.ip.map(|_| 5201));
        assert_eq!(row.get_uint(18).ok(), wanted.ip.map(|_| 0xF_FFFF));
        assert_eq!(row.get_string(19).unwrap(), wanted.verdict);
        assert_eq!(row.get_ushort(20).ok(), wanted.tag.map(|_| 3));
        assert_eq!(row.get_uint(22).unwrap(), 4_200_000_000);
        assert_eq!(row.get_ushort(25).ok(), wanted.inner_vlan);
    }
}

#[test]
fn files_rotate_and_oldest_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let small = Config { file_bytes: 1, bytes_max: 1 << 30, ..config(dir.path()) };
    // Each row group then ends a file.
    write(small.clone(), 0..ROW_GROUP_RECORDS as u64 + 10);
    let before = files(dir.path());
    assert_eq!(before.len(), 2, "{before:?}");
    // An incomplete file, and one of another program.
    fs::write(dir.path().join("penstock-1577836800000000.parquet.part"), "half").unwrap();
    fs::write(dir.path().join("other.parquet"), "not ours").unwrap();
    let limit = fs::metadata(&before[1]).unwrap().len() + 1;
    write(Config { bytes_max: limit, ..small }, 0..10);
    let after: Vec<_> =
        files(dir.path()).into_iter().filter(|path| !before.contains(path)).collect();
    assert_eq!(after.len(), 2, "{after:?}");
    assert!(after[0].ends_with("other.parquet") && !before[0].exists());
}

#[test]
fn open_file_of_predecessor_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (_archive, _recorder, mut writer) = open(config(dir.path())).unwrap();
    writer.begin();
    writer.group.push(record(1));
    let [part] = <[PathBuf; 1]>::try_from(files(dir.path())).unwrap();
    drop(open(config(dir.path())).unwrap());
    assert!(part.exists());
    let names = |id: u32| format!("exporter-{id}");
    writer.flush(&names);
    writer.close();
    let [file] = <[PathBuf; 1]>::try_from(files(dir.path())).unwrap();
    assert_eq!(file.extension().unwrap(), "parquet");
    assert_eq!(writer.health.records.load(Ordering::Relaxed), 1);
}

#[test]
fn unwritable_directory_costs_only_records() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("gone");
    let (archive, mut recorder, writer) = open(config(&place)).unwrap();
    fs::remove_dir(&place).unwrap();
    (0..10).for_each(|number| recorder.put(record(number)));
    drop(recorder);
    writer.run(&|id| id.to_string());
    assert_eq!(archive.health.dropped.load(Ordering::Relaxed), 10);
    let trouble = archive.health.trouble().unwrap();
    assert!(
        trouble.contains("No such file") && trouble.contains("dropped and counted"),
        "{trouble}"
    );
    let error = open(config(Path::new("/proc/none"))).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("[collector.parquet]"), "{error}");
}

#[test]
fn full_channel_drops_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (archive, mut recorder, _writer) = open(config(dir.path())).unwrap();
    (0..(BATCHES_MAX as u64 + 2) * BATCH_RECORDS as u64)
        .for_each(|number| recorder.put(record(number)));
    assert_eq!(archive.health.dropped.load(Ordering::Relaxed), 2 * BATCH_RECORDS as u64);
}
