#!/bin/sh
# Installs missing packages on Debian for the named purposes: build, test, demo, bpf, deny, kernels, collectors,
# ns3, image, package, kubernetes.
#
#   tools/setup.sh build test
#
# Needs the Rust of rust-toolchain.toml. Runs apt-get only when a program is missing, as root or through
# sudo. On other systems install the programs that it names.
set -eu

missing=""
wished=""
crates=""
services=""

# need PROGRAM PACKAGE...: the packages provide the program.
need() {
    program=$1
    shift
    if ! command -v "$program" >/dev/null 2>&1 && [ ! -x "/usr/sbin/$program" ]; then
        missing="$missing $*"
    fi
}

# wish PROGRAM PACKAGE...: optional; installs the packages that this Debian has. Tests report what they skip without it.
wish() {
    program=$1
    shift
    if ! command -v "$program" >/dev/null 2>&1; then
        wished="$wished $*"
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
            need curl curl
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
            # Its package installs a service that is not needed: masked, it never starts.
            services="$services clickhouse-server"
            wish clickhouse-server clickhouse-server
            # Virtual environments of tests; a module has no program to look for.
            python3 -c "import ensurepip" 2>/dev/null || wished="$wished python3-venv"
            # The client of FTS3, which pip builds in a virtual environment.
            wish swig swig libssl-dev python3-venv python3-dev
            # Clients of the gateway.
            wish davix-put davix
            wish gfal-copy gfal2-util-scripts python3-gfal2-util gfal2-plugin-file gfal2-plugin-http gfal2-plugin-xrootd
            wish rclone rclone
            wish cadaver cadaver
            # A file system through FUSE.
            wish bindfs bindfs
            wish litmus litmus
            wish scitokens-verify scitokens-cpp
            wish openssl openssl
            # Packages, and what checks them.
            wish rpmbuild rpm
            wish lintian lintian
            # Its packages install services that are not needed: masked, they never start.
            services="$services prometheus prometheus-node-exporter"
            wish prometheus prometheus
            # Counts instructions of the hot paths.
            wish valgrind valgrind
            # Its package installs services that are not needed: masked, they never start.
            services="$services xrootd@clustered xrootd@standalone"
            wish xrdcp xrootd-client xrootd-client-http-plugins python3-xrootd python3-venv
            wish xrootd xrootd-server xrootd-server-plugins
            ;;
        bpf)
            need clang clang
            need llvm-strip llvm
            ;;
        deny)
            # The checker of licences and sources, built from crates.io in a few minutes.
            command -v cargo-deny >/dev/null 2>&1 || crates="$crates cargo-deny@0.20.2"
            ;;
        kernels)
            need qemu-system-x86_64 qemu-system-x86
            need busybox busybox-static
            need modprobe kmod
            need cpio cpio
            need xz xz-utils
            need rdma iproute2
            # Libraries have no program to look for.
            ls /usr/lib/*/libibverbs.so.1 >/dev/null 2>&1 || missing="$missing libibverbs1"
            [ -d /etc/libibverbs.d ] || missing="$missing ibverbs-providers"
            ;;
        image)
            need buildah buildah
            need git git
            ;;
        package)
            need dpkg-deb dpkg
            need rpmbuild rpm
            need gzip gzip
            need tar tar
            # The wheel's tools are installed in a virtual environment; a module has no program to look for.
            python3 -c "import ensurepip" 2>/dev/null || missing="$missing python3-venv"
            ;;
        kubernetes)
            # A cluster with the Helm chart. Its services are run by the test alone: masked, they never start.
            services="$services etcd containerd postgresql"
            need etcd etcd-server
            need containerd containerd
            need runc runc
            [ -x /usr/lib/cni/ptp ] || missing="$missing containernetworking-plugins"
            ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
            need iptables iptables
            need ipset ipset
            need ip iproute2
            need nsenter util-linux
            need openssl openssl
            need curl curl
            need buildah buildah
            need cc gcc libc6-dev
            need git git
            ;;
        collectors)
            # Their packages install services that are not needed: masked, they never start.
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
            echo "setup: '$purpose' is no purpose: use build, test, demo, bpf, deny, kernels, collectors, ns3, image, package or kubernetes" >&2
            exit 2
            ;;
    esac
done

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: cargo is not on the PATH: install Rust (https://rustup.rs) and open a new shell" >&2
    exit 1
fi

for crate in $crates; do
    echo "setup: building $crate"
    # Without optimization cargo-deny builds in 100 s of one processor, and checks in 3 s.
    cargo install --quiet --locked --debug "$crate"
done

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
        # A service that exists already stays unchanged.
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
# Word splitting is intended: a list of packages. Services of test peers must not start.
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -y -qq --no-install-recommends $missing
