//! Settings of network devices are set and read back, in a network namespace of the test's thread. Needs root.

use std::io;
use std::process::Command;
use std::thread;

use penstock_sys::net::device::{
    DeviceSetting, NetDevice, devices, qdiscs, remove_root_qdisc, set_device, set_root_qdisc,
};
use penstock_sys::net::ethtool::{DriverSetting, Ethtool};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Runs `test` on a thread in a new network namespace with a veth pair of two queues and a TAP device.
fn in_a_namespace(test: fn()) {
    if !penstock_sys::machine::is_superuser() {
        penstock_testkit::skip(
            penstock_testkit::Requirement::Root,
            "needs root for a network namespace",
        );
        return;
    }
    let run = move || {
        // SAFETY: only this thread's network namespace changes, and nothing else of the process is shared anew.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
        for line in [
            "link add ve0 numtxqueues 2 numrxqueues 2 type veth peer name ve1",
            "link set ve0 up",
            "link set ve1 up",
            "tuntap add dev tap0 mode tap",
        ] {
            let done = Command::new("ip").args(line.split(' ')).status().unwrap();
            assert!(done.success(), "ip {line}");
        }
        test();
    };
    thread::spawn(run).join().unwrap();
}

fn device(name: &str) -> NetDevice {
    devices().unwrap().into_iter().find(|device| device.name == name).unwrap()
}

#[test]
fn device_settings_are_set() {
    in_a_namespace(|| {
        let index = device("ve0").index;
        for (setting, value) in [
            (DeviceSetting::Mtu, 9000),
            (DeviceSetting::TxQueuePackets, 4321),
            (DeviceSetting::GsoMaxBytes, 185_000),
            (DeviceSetting::GsoIpv4MaxBytes, 150_000),
            (DeviceSetting::GroMaxBytes, 185_001),
            (DeviceSetting::GroIpv4MaxBytes, 150_001),
        ] {
            set_device(index, setting, value).unwrap();
            assert_eq!(setting.of(&device("ve0")), Some(value), "{setting:?}");
        }
        assert_eq!(device("ve0").kind.as_deref(), Some("veth"));
        // The error has the kernel's text (NETLINK_EXT_ACK).
        let error = set_device(index, DeviceSetting::Mtu, 1 << 20).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("mtu greater than device maximum"), "{error}");
    });
}

#[test]
fn root_qdisc_is_set_and_removed() {
    in_a_namespace(|| {
        let root = || {
            let index = device("ve0").index;
            qdiscs().unwrap().into_iter().find(|q| q.device == index && q.parent.is_none())
        };
        let before = root();
        assert!(before.as_ref().is_none_or(|qdisc| qdisc.handle == 0), "{before:?}");
        set_root_qdisc(device("ve0").index, "mq").unwrap();
        let now = root().unwrap();
        assert!(now.kind == "mq" && now.handle != 0, "{now:?}");
        remove_root_qdisc(device("ve0").index).unwrap();
        assert_eq!(root(), before);
        let error = set_root_qdisc(device("ve0").index, "nosuch").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    });
}

#[test]
fn driver_settings_and_offloads_are_set() {
    in_a_namespace(|| {
        let mut ethtool = Ethtool::open().unwrap();
        let channels = |ethtool: &mut Ethtool| ethtool.settings("ve0")[&DriverSetting::RxChannels];
        assert_eq!(channels(&mut ethtool).max, Some(2));
        for count in [1, 2, 1] {
            ethtool.set("ve0", DriverSetting::RxChannels, count).unwrap();
            assert_eq!(channels(&mut ethtool).value, count);
        }
        assert!(ethtool.set("ve0", DriverSetting::RxChannels, 3).is_err());
        // A TAP device delays frames until this many are pending.
        ethtool.set("tap0", DriverSetting::RxFrames, 16).unwrap();
        assert_eq!(ethtool.settings("tap0")[&DriverSetting::RxFrames].value, 16);
        assert!(ethtool.set("ve0", DriverSetting::RxRing, 512).is_err());

        for on in [false, true] {
            ethtool.set_feature("ve0", "tx-tcp-segmentation", on).unwrap();
            let features = ethtool.features("ve0").unwrap();
            assert_eq!(features["tx-tcp-segmentation"].on, on);
            assert!(!features["tx-tcp-segmentation"].fixed);
        }
        assert!(ethtool.set_feature("ve0", "no-such-feature", true).is_err());
        // A device of another namespace is not found.
        let error = ethtool.features("ve7").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    });
}
