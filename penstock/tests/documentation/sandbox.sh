# Turns the namespaces of this process into a machine of a reader of the documentation, and reads commands from
# standard input. Variables: REPOSITORY, BINARY, STEPS (a directory shared with the test), SCRATCH (an empty one).
#
# The root and the checkout are overlays: what commands write is gone with the process. The network is empty but
# for what `host` makes.
set -eu

mount --make-rprivate /
mount -t tmpfs -o mode=0755 none "$SCRATCH"
cd "$SCRATCH"
mkdir upper work root checkout checkout-work
mount -t overlay -o "lowerdir=/,upperdir=$PWD/upper,workdir=$PWD/work" overlay root
cd root
mount -t proc proc proc
mount --rbind /dev dev
mount -t sysfs sysfs sys 2>/dev/null || mount --rbind /sys sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup 2>/dev/null || true
mount -t bpf bpf sys/fs/bpf 2>/dev/null || true
mount -t tmpfs none run
mount -t tmpfs -o mode=1777 none tmp
mkdir -p "./$REPOSITORY" run/steps home/reader
mount -t overlay -o "lowerdir=$REPOSITORY,upperdir=$SCRATCH/checkout,workdir=$SCRATCH/checkout-work" overlay "./$REPOSITORY"
mount --bind "$STEPS" run/steps
mkdir -p "./$REPOSITORY/target/release"
touch usr/local/bin/penstock "./$REPOSITORY/target/release/penstock"
mount --bind "$BINARY" usr/local/bin/penstock
mount --bind "$BINARY" "./$REPOSITORY/target/release/penstock"
mkdir old
pivot_root . old
cd /
umount -l /old
rmdir /old
rm -rf /var/lib/penstock /etc/penstock

ip link set lo up
printf '127.0.0.1 localhost\n::1 localhost\n' > /etc/hosts

# host NUMBER NAME...: another machine: a network namespace at 192.0.2.NUMBER (RFC 5737) and 2001:db8::NUMBER
# (RFC 3849), reached by any of the names.
host() {
    if [ ! -e /sys/class/net/lan ]; then
        ip link add lan type bridge
        ip addr add 192.0.2.1/24 dev lan
        ip -6 addr add 2001:db8::1/64 dev lan nodad
        ip link set lan up
        printf '192.0.2.1 reader\n2001:db8::1 reader\n' >> /etc/hosts
    fi
    number=$1
    shift
    mkdir -p "/hosts/$1"
    unshare --net sleep infinity < /dev/null &
    machine=$!
    until [ "$(readlink "/proc/$machine/ns/net")" != "$(readlink /proc/$$/ns/net)" ]; do :; done
    echo $machine > "/hosts/$1/pid"
    ip link add "h$number" type veth peer name eth0 netns $machine
    ip link set "h$number" master lan up
    on "$1" ip addr add "192.0.2.$number/24" dev eth0
    on "$1" ip -6 addr add "2001:db8::$number/64" dev eth0 nodad
    on "$1" ip link set eth0 up
    on "$1" ip link set lo up
    printf '192.0.2.%s %s\n2001:db8::%s %s\n' "$number" "$*" "$number" "$*" >> /etc/hosts
}

# interface NAME...: interfaces of this machine that lead nowhere.
interface() {
    for name in "$@"; do
        ip link add "$name" type veth peer name "$name-peer"
        ip link set "$name" up
        ip link set "$name-peer" up
    done
}

# on NAME COMMAND...: runs a command on that machine, with a state directory of its own.
cat > /usr/local/bin/on <<'END'
#!/bin/sh
name=$1
shift
PENSTOCK_STATE=/hosts/$name/state exec nsenter --target "$(cat "/hosts/$name/pid")" --net "$@"
END
chmod +x /usr/local/bin/on

# wait_for COMMAND...: polls until the command succeeds.
wait_for() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 1000 ] || { echo "never succeeded: $*" >&2; return 1; }
        sleep 0.02
    done
}

# agent NAME [FLAG...]: an agent on that machine, which serves /hosts/NAME/data unless flags name exports.
agent() {
    name=$1
    shift
    mkdir -p "/hosts/$name/data"
    [ $# -gt 0 ] || set -- --root "/hosts/$name/data"
    # That of an agent before it would end the wait at once.
    rm -f "/hosts/$name/serve.json"
    on "$name" penstock serve --json "$@" < /dev/null > "/hosts/$name/serve.json" 2> "/hosts/$name/serve.log" &
    echo $! > "/hosts/$name/agent"
    wait_for grep -q fingerprint "/hosts/$name/serve.json"
}

# stop_agent NAME: ends it.
stop_agent() {
    kill "$(cat "/hosts/$1/agent")"
    wait "$(cat "/hosts/$1/agent")"
}

fingerprint() { sed -n 's/.*"fingerprint":"\([^"]*\)".*/\1/p' "/hosts/$1/serve.json"; }

# login NAME ADDRESS: the reader has logged in at that agent under this spelling of its address.
login() {
    penstock login "$2" --token-file "/hosts/$1/state/token" --fingerprint "$(fingerprint "$1")" > /dev/null
}

# ssh_server NAME USER: USER of that machine lets the reader in by ssh.
ssh_server() {
    mkdir -p /run/sshd "$HOME/.ssh" "/home/$2/.ssh"
    # The user is root by another name: a sandbox of an unprivileged user has no other.
    printf '%s:x:0:0::/home/%s:/bin/sh\n' "$2" "$2" | cat - /etc/passwd > /tmp/passwd
    cat /tmp/passwd > /etc/passwd
    [ -e "$HOME/.ssh/id_ed25519" ] || ssh-keygen -q -t ed25519 -N '' -f "$HOME/.ssh/id_ed25519"
    [ -e "/hosts/$1/key" ] || ssh-keygen -q -t ed25519 -N '' -f "/hosts/$1/key"
    cat "$HOME/.ssh/id_ed25519.pub" > "/home/$2/.ssh/authorized_keys"
    cat > "/hosts/$1/sshd_config" <<END
HostKey /hosts/$1/key
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
AuthorizedKeysFile /home/$2/.ssh/authorized_keys
END
    on "$1" /usr/sbin/sshd -D -e -f "/hosts/$1/sshd_config" < /dev/null 2> "/hosts/$1/sshd.log" &
    # ssh takes the home of the password file, not of the environment.
    printf 'Host *\n  IdentityFile %s\n  StrictHostKeyChecking accept-new\n  UserKnownHostsFile %s\n' \
        "$HOME/.ssh/id_ed25519" "$HOME/.ssh/known_hosts" > /etc/ssh/ssh_config
    wait_for ssh "$2@$1" true
}

# slow_copy HOST HTTP: a copy to the agent at HOST, whose API is at HTTP, that takes a minute and more. A name of its own
# lets it run beside an earlier one.
slow_copy() {
    head -c 60000000 /dev/urandom > /tmp/slow.dat
    local name="slow.dat.$RANDOM"
    penstock cp /tmp/slow.dat "penstock://$1/$name" --rate 8M -q < /dev/null 2> /tmp/slow.log &
    wait_for sh -c "penstock transfers --http $2 | grep -q '^[0-9].*$name'"
}

# Numbers that `penstock transfers` prints: of the agent's last transfer that runs, and of the first copy.
transfer() {
    wait_for sh -c "penstock transfers | grep -q '^[0-9].*running'"
    penstock transfers | awk '/^[0-9].*running/ { id = $1 } END { print id }'
}
own_copy() { penstock transfers | awk '/^cp/ { print $1; exit }'; }

# waiting_request: a request that waits as dtn1 takes no new work; its number is in /tmp/request.
waiting_request() {
    penstock drain dtn1 > /dev/null
    penstock submit cern:/store/run7 "caltech:/store/new$RANDOM" --json | sed 's/.*"id":\([0-9]*\).*/\1/' > /tmp/request
}

# dataset DIR: three files to be copied.
dataset() {
    mkdir -p "$1/raw"
    head -c 3000001 /dev/urandom > "$1/events.dat"
    head -c 4096 /dev/urandom > "$1/raw/run.log"
    : > "$1/raw/empty"
}

# controller: one on this machine, with the class production and the sites cern (host dtn1) and caltech (dtn2), whose
# agents export /store to it; a dataset run7 is in /store of cern.
controller() {
    host 11 dtn1
    host 12 dtn2
    mkdir -p /hosts/controller
    cat > /hosts/controller/network.toml <<'END'
name = "two-sites"
[[site]]
name = "cern"
[[site]]
name = "caltech"
[[host]]
name = "dtn1"
site = "cern"
interface = [{ name = "eth0", rate = "100G" }]
[[host]]
name = "dtn2"
site = "caltech"
interface = [{ name = "eth0", rate = "100G" }]
[[switch]]
name = "geneva"
[[switch]]
name = "chicago"
[[link]]
name = "at-cern"
ends = ["dtn1:eth0", "geneva"]
[[link]]
name = "atlantic"
ends = ["geneva", "chicago"]
rate = "100G"
[[link]]
name = "at-caltech"
ends = ["chicago", "dtn2:eth0"]
END
    cat > /hosts/controller/penstock.toml <<'END'
roles = ["controller"]
[agent]
http = ["127.0.0.1:8621", "192.0.2.1:8621"]
[controller]
topology = "network.toml"
[[controller.class]]
name = "production"
[[controller.token]]
name = "dtn1"
file = "dtn1.token"
scopes = ["agent:dtn1"]
[[controller.token]]
name = "dtn2"
file = "dtn2.token"
scopes = ["agent:dtn2"]
END
    for name in dtn1 dtn2; do
        (umask 077 && echo "the-token-of-$name-0123456789abcdef" > /hosts/controller/$name.token)
    done
    penstock serve --json --config /hosts/controller/penstock.toml < /dev/null \
        > /hosts/controller/serve.json 2> /hosts/controller/serve.log &
    wait_for grep -q fingerprint /hosts/controller/serve.json
    for name in dtn1 dtn2; do
        mkdir -p /hosts/$name/store
        cp -p /hosts/controller/$name.token /hosts/$name/
        cat > /hosts/$name/penstock.toml <<END
[agent.controller]
url = "https://192.0.2.1:8621"
token = "$name.token"
fingerprint = "$(fingerprint controller)"
host = "$name"
[[export]]
name = "/store"
path = "store"
mode = "read-write"
who = ["controller"]
END
        agent $name --config /hosts/$name/penstock.toml --roles agent
    done
    dataset /hosts/dtn1/store/run7
    export PENSTOCK_CONTROLLER=127.0.0.1:8621
    wait_for sh -c 'test "$(penstock drain | grep -c " up ")" = 2'
}

cd "$REPOSITORY"
set +e +u
set -m
echo "@@ ready"
