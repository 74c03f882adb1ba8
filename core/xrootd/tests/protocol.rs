//! Requests as XrdCl 5.5.3 sends them, and any bytes in their place.

use penstock_xrootd::error::XrdErrorCode;
use penstock_xrootd::request::{
    READV_SEGMENT_BYTES_MAX, READV_SEGMENTS_MAX, REQUEST_BODY_BYTES_MAX, REQUEST_HEAD_BYTES,
    ReadSegment, XrdFileHandle,
};
use penstock_xrootd::response::{self, DataStatus, ListedKind, ListingBody, TlsDemand, XrdStat};
use penstock_xrootd::{RequestHead, XrdError, XrdRequest};
use proptest::prelude::*;

fn head(code: u16, arguments: [u8; 16], body: usize) -> RequestHead {
    let mut bytes = [0; REQUEST_HEAD_BYTES];
    bytes[..2].copy_from_slice(&[7, 9]);
    bytes[2..4].copy_from_slice(&code.to_be_bytes());
    bytes[4..20].copy_from_slice(&arguments);
    bytes[20..].copy_from_slice(&u32::try_from(body).unwrap().to_be_bytes());
    RequestHead::parse(&bytes)
}

fn parse(code: u16, arguments: [u8; 16], body: &[u8]) -> Result<XrdRequest<'_>, XrdErrorCode> {
    XrdRequest::parse(&head(code, arguments, body.len()), body).map_err(|error| error.code)
}

fn read_arguments(handle: u32, offset: i64, bytes: i32) -> [u8; 16] {
    let mut arguments = [0; 16];
    arguments[..4].copy_from_slice(&handle.to_be_bytes());
    arguments[4..12].copy_from_slice(&offset.to_be_bytes());
    arguments[12..].copy_from_slice(&bytes.to_be_bytes());
    arguments
}

fn segment(handle: u32, bytes: i32, offset: i64) -> Vec<u8> {
    [&handle.to_be_bytes()[..], &bytes.to_be_bytes(), &offset.to_be_bytes()].concat()
}

#[test]
fn open_takes_reading_options_only() {
    let open = |options: u16| {
        let mut arguments = [0; 16];
        arguments[2..4].copy_from_slice(&options.to_be_bytes());
        parse(3010, arguments, b"/store/f").map(|request| match request {
            XrdRequest::Open { with_stat, .. } => with_stat,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(open(0x0450), Ok(true));
    assert_eq!(open(0x0010), Ok(false));
    for options in [0x0462, 0x0002, 0x0008, 0x0020, 0x0200, 0x8010] {
        assert_eq!(open(options), Err(XrdErrorCode::FsReadOnly), "{options:#x}");
    }
}

#[test]
fn writing_requests_are_refused() {
    for code in [3002, 3008, 3009, 3012, 3014, 3015, 3016, 3019, 3026, 3028, 3031] {
        assert_eq!(parse(code, [0; 16], b"/f"), Err(XrdErrorCode::FsReadOnly), "{code}");
        let refused = head(code, [0; 16], 8 << 20).body_len().unwrap_err();
        assert_eq!(refused.code, XrdErrorCode::FsReadOnly, "{code}");
    }
    for code in [0, 2999, 3005, 3020, 3021, 3022, 3024, 3029, 3030, 3032, u16::MAX] {
        assert_eq!(parse(code, [0; 16], b"/f"), Err(XrdErrorCode::Unsupported), "{code}");
    }
}

#[test]
fn negative_numbers_are_refused() {
    let read = |offset, bytes| parse(3013, read_arguments(1, offset, bytes), b"");
    let (handle, bytes) = (XrdFileHandle(1), i32::MAX.unsigned_abs());
    assert_eq!(read(0, i32::MAX), Ok(XrdRequest::Read { handle, offset: 0, bytes }));
    for (offset, bytes) in [(-1, 1), (i64::MIN, 1), (0, -1), (0, i32::MIN)] {
        assert_eq!(read(offset, bytes), Err(XrdErrorCode::ArgInvalid));
        let vector = segment(1, bytes, offset);
        assert_eq!(parse(3025, [0; 16], &vector), Err(XrdErrorCode::ArgInvalid));
    }
}

#[test]
fn vector_read_is_bounded() {
    let one = segment(3, 10, 20);
    let expected = ReadSegment { handle: XrdFileHandle(3), offset: 20, bytes: 10 };
    assert_eq!(parse(3025, [0; 16], &one), Ok(XrdRequest::ReadVector(vec![expected])));
    let most = one.repeat(READV_SEGMENTS_MAX);
    assert!(most.len() <= REQUEST_BODY_BYTES_MAX && parse(3025, [0; 16], &most).is_ok());
    let many = one.repeat(READV_SEGMENTS_MAX + 1);
    assert_eq!(parse(3025, [0; 16], &many), Err(XrdErrorCode::ArgTooLong));
    let long = segment(3, i32::try_from(READV_SEGMENT_BYTES_MAX).unwrap() + 1, 0);
    assert_eq!(parse(3025, [0; 16], &long), Err(XrdErrorCode::ArgTooLong));
    assert_eq!(parse(3025, [0; 16], &one[..15]), Err(XrdErrorCode::ArgInvalid));
    assert_eq!(parse(3025, [0; 16], b""), Err(XrdErrorCode::ArgInvalid));
}

#[test]
fn huge_body_is_refused() {
    assert_eq!(head(3017, [0; 16], REQUEST_BODY_BYTES_MAX).body_len(), Ok(REQUEST_BODY_BYTES_MAX));
    for bytes in [REQUEST_BODY_BYTES_MAX + 1, i32::MAX as usize, u32::MAX as usize] {
        let error = head(3017, [0; 16], bytes).body_len().unwrap_err();
        assert_eq!(error.code, XrdErrorCode::ArgTooLong);
    }
}

#[test]
fn ztn_token_is_read() {
    let mut arguments = [0; 16];
    arguments[12..].copy_from_slice(b"ztn\0");
    let auth = |body: &[u8]| match parse(3000, arguments, body) {
        Ok(XrdRequest::Auth { token }) => Some(token.to_owned()),
        Err(XrdErrorCode::AuthFailed) => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(auth(b"ztn\0\0T\0\0\0\x04abc\0\0\0").as_deref(), Some("abc"));
    for damaged in [
        &b""[..],
        b"ztn\0\0T\0\0\0",
        b"ztn\0\0T\0\0\0\x00",
        b"ztn\0\0T\0\0\0\x01\0",
        b"ztn\0\0T\0\0\0\x09abc\0",
        b"ztn\0\0T\0\0\0\x03abc\0",
        b"ztn\0\x01T\0\0\0\x04abc\0",
        b"ztn\0\0S\0\0\0\x04abc\0",
        b"gsi\0\0T\0\0\0\x04abc\0",
        b"ztn\0\0T\0\0\0\x04a\nc\0",
        b"ztn\0\0T\0\0\0\x04a\0c\0",
        b"ztn\0\0T\0\0\0\x04a\xffc\0",
    ] {
        assert_eq!(auth(damaged), None, "{}", damaged.escape_ascii());
    }
    assert_eq!(parse(3000, [0; 16], b"ztn\0\0T\0\0\0\x04abc\0"), Err(XrdErrorCode::AuthFailed));
}

#[test]
fn tls_follows_version_and_flags() {
    let tls = |version: u32, flags: u8| {
        let mut arguments = [0; 16];
        arguments[..4].copy_from_slice(&version.to_be_bytes());
        arguments[4] = flags;
        match parse(3006, arguments, b"").unwrap() {
            XrdRequest::Protocol { able_tls, want_tls } => (able_tls, want_tls),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(tls(0x511, 0x03), (true, false));
    assert_eq!(tls(0x511, 0x05), (true, true));
    assert_eq!(tls(0x400, 0x07), (false, false));
}

#[test]
fn locate_distinguishes_any_server() {
    let locate = |body| match parse(3027, [0; 16], body).unwrap() {
        XrdRequest::Locate { path, any_server } => (path.normalized(), any_server),
        other => panic!("{other:?}"),
    };
    assert_eq!(locate(b"/a"), (b"/a".to_vec(), false));
    assert_eq!(locate(b"*/a"), (b"/a".to_vec(), true));
    assert_eq!(locate(b"*"), (b"/".to_vec(), true));
    assert_eq!(parse(3027, [0; 16], b""), Err(XrdErrorCode::ArgMissing));
}

#[test]
fn responses_have_their_form() {
    assert_eq!(response::handshake(), b"\0\0\0\0\0\0\0\x08\0\0\x05\x10\0\0\0\x01");
    let start = response::protocol([1, 2], TlsDemand::Start);
    assert_eq!(start, b"\x01\x02\0\0\0\0\0\x08\0\0\x05\x10\xcd\0\0\x01");
    let login = response::login([1, 2], &[5; 16], true);
    assert!(login.ends_with(b"\x05\x05&P=ztn,0:4096:\0"));
    let error = XrdError::new(XrdErrorCode::NotFound, "/a: missing");
    assert_eq!(
        response::error([1, 2], &error),
        b"\x01\x02\x0f\xa3\0\0\0\x10\0\0\x0b\xc3/a: missing\0"
    );
    let stat = XrdStat {
        id: 5,
        size: 6,
        kind: ListedKind::File,
        mtime_s: 7,
        ctime_s: 8,
        mode: 0o755,
        owner: (1, 2),
    };
    assert_eq!(stat.text(), "5 6 17 7 8 7 0555 1 2");
    assert_eq!(XrdStat::VIRTUAL_DIRECTORY.text(), "0 0 19 0 0 0 0555 0 0");
    let open = response::open([1, 2], XrdFileHandle(9), Some(&stat));
    assert!(open[8..].starts_with(&[0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0]) && open.ends_with(b"2\0"));
}

#[test]
fn listing_ends_with_nul() {
    let stat = XrdStat::VIRTUAL_DIRECTORY;
    let mut plain = ListingBody::new(false);
    assert!(plain.push(b"a", &stat) && !plain.push(b"b\nc", &stat) && !plain.push(b"", &stat));
    assert_eq!(&plain.take([0, 0], DataStatus::Partial)[8..], b"a\n");
    assert!(plain.push(b"d", &stat));
    assert_eq!(&plain.take([0, 0], DataStatus::Final)[8..], b"d\0");
    let empty = ListingBody::new(true).take([0, 0], DataStatus::Final);
    assert_eq!(&empty[8..], b".\n0 0 0 0\0");
}

proptest! {
    #![proptest_config(penstock_testkit::properties())]

    #[test]
    fn any_request_is_read_or_refused(
        code in prop_oneof![2990u16..3040, any::<u16>()],
        arguments in any::<[u8; 16]>(),
        body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        match XrdRequest::parse(&head(code, arguments, body.len()), &body) {
            Ok(XrdRequest::ReadVector(segments)) => {
                prop_assert!(segments.len() <= READV_SEGMENTS_MAX);
                prop_assert_eq!(segments.len() * 16, body.len());
            }
            Ok(_) => {}
            Err(error) => prop_assert!(!error.text.is_empty() && !error.text.contains('\0')),
        }
    }

    #[test]
    fn paths_stay_below_the_root(body in "[/.a%?&=\\x00]{0,40}") {
        let Ok(path) = penstock_xrootd::XrdPath::parse(body.as_bytes()) else { return Ok(()) };
        let path = path.normalized();
        prop_assert!(path.starts_with(b"/") && !path.contains(&0) && !path.contains(&b'?'));
        let mut names = path[1..].split(|byte| *byte == b'/');
        prop_assert!(path == b"/" || names.all(|name| !matches!(name, b"" | b"." | b"..")));
    }

    #[test]
    fn error_texts_are_bounded(text in "[a\\x00\u{e9}]{0,3000}") {
        let bytes = response::error([0, 0], &XrdError::new(XrdErrorCode::FsError, text));
        prop_assert!(bytes.len() <= 8 + 4 + 1024 + 1);
        let body = &bytes[12..bytes.len() - 1];
        prop_assert!(std::str::from_utf8(body).is_ok() && !body.contains(&0));
    }
}

#[test]
fn encrypted_redirect_names_a_url() {
    let plain = response::redirect([7, 9], ("::1", 1094), "authz=x", false);
    assert_eq!(plain[..12], [7, 9, 0x0f, 0xa4, 0, 0, 0, 17, 0, 0, 4, 0x46]);
    assert_eq!(&plain[12..], b"[::1]?authz=x");
    let encrypted = response::redirect([7, 9], ("dtn.example", 1094), "authz=x", true);
    assert_eq!(encrypted[8..12], (-1_i32).to_be_bytes());
    assert_eq!(&encrypted[12..], b"roots://dtn.example:1094/?authz=x");
}
