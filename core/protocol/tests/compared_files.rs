//! Files that are compared by digest with those at the destination.

use penstock_protocol::control::{Announcement, ToReceiver};
use penstock_protocol::digest::{self, Algorithm, Digest};
use penstock_protocol::manifest::{Entry, EntryKind, RelativePath, Time};
use penstock_protocol::receiver::{DestinationCheck, FrameTarget, Receiver};
use penstock_protocol::wire::Bytes;

fn entry(bytes: u64) -> Entry {
    Entry {
        path: RelativePath::new(b"file".to_vec()).unwrap(),
        kind: EntryKind::File,
        bytes,
        modified: Time { seconds: 1, nanos: 0 },
        changed: Time { seconds: 1, nanos: 0 },
        inode: 1,
        mode: 0o644,
        uid: 0,
        gid: 0,
        sparse: false,
        link: Bytes(Vec::new()),
        xattrs: Vec::new(),
    }
}

/// The data of a file that differs may arrive before the message with its digest.
#[test]
fn data_before_digest_replaces_compared_file() {
    let mut receiver = Receiver::new(Algorithm::Crc32c);
    let announcement = Announcement { first: 0, entries: vec![entry(4)] };
    receiver.on_message(ToReceiver::Announce(announcement)).unwrap();
    let (file, _) = receiver.poll_check().unwrap();
    let there = Digest(vec![1, 2, 3, 4]);
    assert!(receiver.decide(file, DestinationCheck::Compare(there)).is_empty());
    // The sender finds that it differs, and sends it.
    assert!(matches!(receiver.accept(file, 0, 4), Ok(FrameTarget::Write(_))));
    let crc = digest::crc32c(b"data");
    let part = digest::part(Algorithm::Crc32c, 0, 4, b"data", crc);
    receiver.written(file, 0, 4, part).unwrap();
    assert!(receiver.poll_finish().is_none(), "its digest is not known yet");
    assert!(!receiver.has_discards(), "it was compared with the digest of the earlier file");
    let whole = Digest(crc.to_be_bytes().to_vec());
    let ends = vec![(file, Bytes(whole.0.clone()))];
    receiver.on_message(ToReceiver::FileEnds(ends)).unwrap();
    let finish = receiver.poll_finish().expect("it is whole");
    assert_eq!((finish.digest, finish.same), (whole, false));
}
