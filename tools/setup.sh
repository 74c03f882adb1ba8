#!/bin/sh
# Installs what is missing on Debian for the purposes named: build, test, demo, bpf, kernels, collectors, ns3.
#
#   tools/setup.sh build test
#
# Needs Rust; rust-toolchain.toml says which. Runs apt-get only when a program is missing, as root or
# through sudo. On other systems install the programs that it names.
set -eu

missing=""
wished=""
services=""

# need PROGRAM PACKAGE...: the packages bring the program.
need() {
    program=$1
    shift
    if ! command -v "$program" >/dev/null 2>&1 && [ ! -x "/usr/sbin/$program" ]; then
        missing="$missing $*"
    fi
}

# wish PROGRAM: the package of that name brings it, where this Debian has one; tests say what they skip without it.
wish() {
    if ! command -v "$1" >/dev/null 2>&1; then
        wished="$wished $1"
    fi
}

for purpose in "$@"; do
    case $purpose in
        build)
            need cc gcc libc6-dev
            need objcopy binutils
            ;;
        test)
            need ssh openssh-client
            need sshd openssh-server
            need ps procps
            need mkfs.ext4 e2fsprogs
            need mkfs.btrfs btrfs-progs
            need ip iproute2
            need iperf3 iperf3
            need tshark tshark
            need tcpdump tcpdump
            need ethtool ethtool
            need python3 python3-minimal
            if ! ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then
                missing="$missing postgresql"
                services="$services postgresql"
            fi
            need chromium chromium
            # Its package brings a service, which nobody asked for here: masked, it starts neither now nor later.
            services="$services clickhouse-server"
            wish clickhouse-server
            ;;
        bpf)
            need clang clang
            need llvm-strip llvm
            ;;
        kernels)
            need qemu-system-x86_64 qemu-system-x86
            need busybox busybox-static
            need modprobe kmod
            need cpio cpio
            ;;
        collectors)
            # Their packages bring services, which nobody asked for here: masked, they start neither now nor later.
            services="$services nfdump nfacctd pmacctd sfacctd uacctd"
            need sfcapd nfdump-sflow
            need nfdump nfdump
            need sfacctd pmacct
            ;;
        ns3)
            need g++ g++
            # A library has no program to look for.
            [ -e /usr/include/ns3/core-module.h ] || missing="$missing libns3-dev"
            ;;
        demo)
            need fio fio
            ;;
        *)
            echo "setup: '$purpose' is no purpose: use build, test, demo, bpf, kernels, collectors or ns3" >&2
            exit 2
            ;;
    esac
done

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: cargo is not on the PATH: install Rust (https://rustup.rs) and open a new shell" >&2
    exit 1
fi

[ -n "$missing$wished" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    [ -n "$missing" ] || exit 0
    echo "setup: these are missing, and this is not Debian:$missing: install them" >&2
    exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "setup: run as root: apt-get install$missing" >&2
        exit 1
    fi
    as_root=sudo
fi
echo "setup: installing$missing$wished"
if command -v systemctl >/dev/null 2>&1; then
    for service in $services; do
        # One that is there and in use stays as it is.
        systemctl cat "$service.service" >/dev/null 2>&1 || $as_root systemctl mask -q "$service.service"
    done
fi
$as_root apt-get update -qq
for package in $wished; do
    if apt-cache show "$package" >/dev/null 2>&1; then
        missing="$missing $package"
    fi
done
[ -n "$missing" ] || exit 0
# Word splitting is meant: a list of packages. Services of test peers are not to be started.
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -y -qq --no-install-recommends $missing
