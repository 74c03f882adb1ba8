#!/bin/sh
# Process 1 of the virtual machine of `cargo xtask kernels`: the machine's own files, read only, under a layer in
# memory; then the tests; then off.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules); do
    insmod "/lib/$module" || echo "kernels: no module $module"
done
mkdir -p /below /layer /root
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 machine /below
mount -t tmpfs -o size=1g layer /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/below,upperdir=/layer/upper,workdir=/layer/work root /root
mount -t proc proc /root/proc
mount -t sysfs sys /root/sys
mount -t devtmpfs dev /root/dev
mount -t tmpfs run /root/run
mkdir -p /root/dev/shm
mount -t tmpfs shm /root/dev/shm
mount -t cgroup2 cgroups /root/sys/fs/cgroup
mount -t bpf bpf /root/sys/fs/bpf
# Only kernels with the module configfs have this folder.
[ ! -d /root/sys/kernel/config ] || mount -t configfs configfs /root/sys/kernel/config
ip link set lo up
# Memory that a test registers with an RDMA device is locked.
ulimit -l unlimited
echo "kernels: Linux $(uname -r)"
command=/command
case "$(cat /proc/cmdline)" in *kernels.peer*) command=/peer-command ;; esac
chroot /root /bin/sh -c "$(cat $command)"
echo "kernels: end"
poweroff -f
