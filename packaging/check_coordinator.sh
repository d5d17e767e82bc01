#!/usr/bin/env bash
# packaging/check_coordinator.sh TARBALL: checks the static isthmus-coordinator in an empty file system, in a network
# namespace with loopback only: certificates, a run's coordinator, its metrics page, a reducer, and `ctl`. The
# coordinator is reached by number, by localhost, and by names from /etc/hosts and DNS. Needs root only if users may not
# create namespaces.
set -euo pipefail
tarball=$(realpath "${1:?usage: packaging/check_coordinator.sh TARBALL}")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ "${2-}" != inside ]; then
  namespace=(unshare --net --mount)
  [ "$(id -u)" -eq 0 ] || namespace+=(--user --map-root-user)
  exec "${namespace[@]}" "$here/check_coordinator.sh" "$tarball" inside
fi

base=$(mktemp -d)
root=$base/root processes=()
clean_up() {
  kill "${processes[@]}" 2>/dev/null || true
  wait
  umount -l "$root/proc" 2>/dev/null || true
  rm -rf --one-file-system "$base"
}
trap clean_up EXIT
fail() {
  echo "error: $1" >&2
  tail -n 20 "$base"/*.log >&2
  exit 1
}

echo "== contents"
tar -xzf "$tarball" -C "$base"
for file in isthmus-coordinator LICENSE README.md third-party/openssl.txt third-party/glibc.txt third-party/sentencepiece.txt; do
  [ -s "$base/isthmus-coordinator/$file" ] || fail "the tarball has no $file"
done
mkdir "$root"
cp "$base/isthmus-coordinator/isthmus-coordinator" "$root/"

# Brings loopback up, and answers as a name server for one name.
cat >"$base/name_server.py" <<'PYTHON'
import fcntl, socket, struct

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    flags = struct.unpack("16sH14x", fcntl.ioctl(s, 0x8913, struct.pack("16sH14x", b"lo", 0)))[1]
    fcntl.ioctl(s, 0x8914, struct.pack("16sH14x", b"lo", flags | 1))  # SIOCSIFFLAGS, IFF_UP
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.53", 53))
print("ready", flush=True)
while True:
    query, who = server.recvfrom(512)
    end = query.index(b"\0", 12) + 5
    known = query[12:end - 4] == b"\x0bcoordinator\x04test\0"
    is_a = known and query[end - 4:end - 2] == b"\0\1"
    answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton("127.0.0.1") if is_a else b""
    head = query[:2] + (b"\x81\x80" if known else b"\x81\x83") + b"\0\1" + struct.pack(">H", is_a) + bytes(4)
    server.sendto(head + query[12:end] + answer, who)
PYTHON
python3 "$base/name_server.py" >"$base/name_server.log" 2>&1 &
processes+=($!)

wait_for() { # FILE TEXT
  for _ in {1..100}; do
    ! grep -q "$2" "$1" 2>/dev/null || return 0
    sleep 0.1
  done
  fail "'$2' did not appear in ${1##*/} within 10 s"
}
wait_for "$base/name_server.log" ready

chroot=$(command -v chroot || echo /usr/sbin/chroot)
program() { env -i "$chroot" "$root" /isthmus-coordinator "$@"; }
start() { # LOG ARGUMENT...
  env -i "$chroot" "$root" /isthmus-coordinator "${@:2}" >"$base/$1.log" 2>&1 &
  processes+=($!)
}

echo "== without /etc"
program --version
program config >"$base/config.md"
program certs init check
for name in coordinator operator third; do program certs issue check $name >/dev/null; done
cat >"$root/check.yaml" <<'YAML'
run: {name: check, steps: 10}
replicas: 1
model: {layers: 1, dim: 32, heads: 1}
data: {path: none, tokenizer: bytes, seq_len: 32}
metrics: {listen: 9400}
network: {certs: certs/check, coordinator: "localhost:7000"}
YAML
start coordinator coordinator check.yaml
wait_for "$base/coordinator.log" "listens at port 7000"

exec 3<>/dev/tcp/127.0.0.1/9400
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
timeout 10 cat <&3 >"$base/metrics.log" || true
exec 3>&-
grep -q '^isthmus_build_info{.*process="coordinator"' "$base/metrics.log" || fail "the metrics page does not have the coordinator's isthmus_build_info"

reached_at() { # HOST
  program ctl status check.yaml --coordinator "$1:7000" >"$base/status.log" 2>&1 || fail "the coordinator is not reached at $1"
  grep -q '^run check: joining' "$base/status.log" || fail "ctl status at $1 did not print 'run check: joining'"
  echo "reached at $1"
}
not_reached_at() { # HOST
  ! program ctl status check.yaml --coordinator "$1:7000" >"$base/status.log" 2>&1 || fail "$1 was reached, though no such name exists"
}
reached_at 127.0.0.1
reached_at localhost
not_reached_at coordinator.test

echo "== with /etc/hosts and a name server"
mkdir "$root/etc"
# A desktop's file, with services that are shared libraries.
echo "hosts: mymachines mdns4_minimal [NOTFOUND=return] resolve [!UNAVAIL=return] files dns" >"$root/etc/nsswitch.conf"
echo "127.0.0.1 by-file.test" >"$root/etc/hosts"
reached_at by-file.test
reached_at localhost # which is not in that file
echo "nameserver 127.0.0.53" >"$root/etc/resolv.conf"
reached_at coordinator.test
not_reached_at nowhere.test

# A worker finds its own program file through /proc.
mkdir "$root/proc"
mount --rbind /proc "$root/proc"
start third worker --reduce-only check.yaml --coordinator coordinator.test:7000 --name third --listen none
wait_for "$base/coordinator.log" "third joined"
echo "passed: ${tarball##*/}"
