# Runs a node in its own network, mount and process namespaces, as the first process there: its end ends them all.
mount --make-rshared /
mount --bind "@NODE@/host" "@HOST_FILES@"
# Locks, sockets and network namespaces of pods end with the node.
mount -t tmpfs tmpfs /run
# Each node pins its own eBPF programs.
mount -t bpf bpf /sys/fs/bpf
# A control group for the pods of this node, in each hierarchy.
for hierarchy in /sys/fs/cgroup/*/; do
    [ -e "${hierarchy}cgroup.procs" ] || continue
    group="${hierarchy}@CLUSTER@-@NAME@"
    mkdir -p "$group"
    for setting in cpuset.cpus cpuset.mems; do
        [ ! -e "$group/$setting" ] || cat "$hierarchy$setting" >"$group/$setting"
    done
done
containerd --config "@NODE@/containerd.toml" >"@NODE@/containerd.log" 2>&1 &
until ctr --address "@NODE@/containerd.sock" version >/dev/null 2>&1; do sleep 0.1; done
for image in $IMAGES; do
    ctr --address "@NODE@/containerd.sock" --namespace k8s.io images import --snapshotter overlayfs "$image"
done
"$KUBE_PROXY" --config "@NODE@/proxy.yaml" >"@NODE@/proxy.log" 2>&1 &
# Network policies alone. It ends where the node is not known yet.
until "$KUBE_ROUTER" --run-firewall=true --run-router=false --run-service-proxy=false --enable-cni=false --health-port=0 \
    --kubeconfig "@ADMIN@" --hostname-override "@NAME@" --service-cluster-ip-range "@SERVICES@"; do
    sleep 1
done >"@NODE@/router.log" 2>&1 &
# Its process does not replace this shell: the first process of a namespace also reaps orphans.
"$KUBELET" --config "@NODE@/kubelet.yaml" --kubeconfig "@NODE@/kubelet.conf" --root-dir "@NODE@/kubelet" \
    --cert-dir "@NODE@/certificates" --hostname-override "@NAME@" --node-ip "@ADDRESS@" \
    --node-labels "penstock.io/dtn=true"
