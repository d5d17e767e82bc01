#!/bin/sh
# container_steps.sh WHEEL [EXTRA]: the steps that make an image, run as root on a bare Debian by packaging/Dockerfile
# and by packaging/check_wheel.sh: installs Python, installs the wheel in /opt/isthmus, and adds an unprivileged user.
set -eu
[ $# -le 2 ] || { echo "$# arguments; expected one wheel, and optionally [train]: are there several wheels in dist/?" >&2; exit 2; }
wheel=$1 extra=${2-}
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -y -q --no-install-recommends python3-venv ca-certificates openssh-client
rm -rf /var/lib/apt/lists/*
id isthmus >/dev/null 2>&1 || useradd --create-home isthmus
python3 -m venv /opt/isthmus
/opt/isthmus/bin/pip install --no-cache-dir "$wheel$extra"
ln -sf /opt/isthmus/bin/isthmus /opt/isthmus/bin/isthmus-coordinator /usr/local/bin/
