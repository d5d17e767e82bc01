#!/usr/bin/env bash
# packaging/check_wheel.sh WHEEL: installs the wheel on a bare Debian made by debootstrap (12 for a cp311 wheel, 13 for
# an abi3 one), with the steps of the container image, and uses it as an unprivileged user: first the verbs that need no
# torch, then the quickstart with isthmus[train]. Needs root, the network (torch: 3 GB) and 12 GB of disk. FRESH=DIR
# keeps the bare systems in DIR for later checks.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=packaging/debian.sh
source "$here/debian.sh"
wheel=$(realpath "${1:?usage: packaging/check_wheel.sh WHEEL}")
case $wheel in
  *-cp311-cp311-*) suite=bookworm ;;
  *-cp312-abi3-*) suite=trixie ;;
  *) echo "$wheel: unexpected name; expected a cp311-cp311 or cp312-abi3 wheel of scripts/package.sh" >&2 && exit 2 ;;
esac
[ "$(id -u)" -eq 0 ] || { echo "debootstrap and chroot need root; run this as root" >&2 && exit 2; }
base=${FRESH:-$(mktemp -d)}
mkdir -p "$base"
clean=$base/$suite root=$base/$suite-used

remove_used() {
  for mount in dev proc; do umount -l "$root/$mount" 2>/dev/null || true; done
  rm -rf --one-file-system "$root"
}
clean_up() {
  remove_used
  [ -n "${FRESH-}" ] || rm -rf --one-file-system "$base"
}
trap clean_up EXIT

if [ ! -f "$clean.made" ]; then
  command -v debootstrap >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends debootstrap; }
  rm -rf "$clean"
  debootstrap --variant=minbase "$suite" "$clean" "$(debian_mirror)" >"$clean.log" 2>&1 || { tail -n 5 "$clean.log" >&2; exit 1; }
  # This machine's settings for reaching the mirror and the package index.
  cp -a /etc/apt/apt.conf.d/99* "$clean/etc/apt/apt.conf.d/" 2>/dev/null || true
  [ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$clean/etc/"
  touch "$clean.made"
fi
remove_used # a check that was killed leaves it behind
cp -a "$clean" "$root"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
trust() { mkdir -p "$root/etc/ssl/certs" && cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"; }
trust
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mkdir "$root/handed-out"
cp "$wheel" "$here/container_steps.sh" "$root/handed-out/"

keep=()
while IFS= read -r variable; do keep+=("$variable"); done < <(env | grep -iE '^(https?_proxy|no_proxy|pip_[a-z_]+|ssl_cert_file)=' || true)
inside() {
  chroot "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "${keep[@]}" "$@"
}
# as_user LINE: runs a line of shell as the unprivileged user, in its home.
as_user() { inside su -s /bin/bash isthmus -c "set -euo pipefail; cd; $1"; }

inside sh /handed-out/container_steps.sh "/handed-out/${wheel##*/}"
trust # Debian's ca-certificates has replaced them
inside bash -c '! command -v cc g++ gcc' >/dev/null # otherwise it is not bare
packages=$(inside dpkg-query -W)
! grep -E '^[^ ]*-dev\b' <<<"$packages" || exit 1

echo "== without torch"
# shellcheck disable=SC2016 # expanded by the shell inside
as_user 'isthmus --version; isthmus-coordinator --version >version; isthmus certs init check; isthmus config >config.md
  isthmus plan --params 200M --step-time 500ms >plan; python3 --version
  /opt/isthmus/bin/python -m isthmus help >help
  /opt/isthmus/bin/python -c "import isthmus; print(isthmus.__version__, isthmus.ConfigError)"
  licences=$(echo /opt/isthmus/lib/python3*/site-packages/isthmus-*.dist-info/licenses/third-party)
  for package in openssl asio sentencepiece torch nanobind; do test -s $licences/$package.txt; done
  configs=(/opt/isthmus/lib/python3*/site-packages/isthmus/share/isthmus/configs)
  doctor() { $1 doctor --insecure --set data.path=${configs[0]}/../../doc/isthmus ${configs[0]}/quickstart.yaml; }
  doctor isthmus-coordinator >doctor || { cat doctor; exit 1; }
  ! doctor isthmus >doctor; grep -q "training needs torch" doctor; grep -q "pip install .torch==" doctor
  ! isthmus eval none 2>error; grep -q "pip install .torch==" error
  isthmus coordinator ${configs[0]}/quickstart.yaml --listen 127.0.0.1:7000 >coordinator 2>&1 &
  for i in {1..100}; do ! grep -q "listens at port 7000" coordinator || break; sleep 0.1; done
  top() { isthmus top ${configs[0]}/quickstart.yaml --coordinator 127.0.0.1:7000 --once; }
  top >top || { cat coordinator top; exit 1; }
  grep -q quickstart top; kill %1; wait || true'

echo "== with isthmus[train], in an environment made by the user"
as_user 'python3 -m venv v; v/bin/pip install -q --no-cache-dir "/handed-out/'"${wheel##*/}"'[train]"; v/bin/isthmus --version
  v/bin/isthmus launch v/lib/python3*/site-packages/isthmus/share/isthmus/configs/quickstart.yaml --set device=cpu
  test -s runs/quickstart/summary.json; v/bin/isthmus sample runs/quickstart --tokens 50'
echo "passed: ${wheel##*/} on $suite"
