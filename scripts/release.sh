#!/usr/bin/env bash
# scripts/release.sh, run on Debian 12, makes a release in dist/: the wheels and the static coordinator, each tested on
# a bare system, and SHA256SUMS, which is written last: without it dist/ is not a release. Needs a clean checkout, a
# section for this version in CHANGELOG.md, root (for debootstrap), the network and 12 GB of disk.
set -euo pipefail
[ $# -eq 0 ] || { echo "usage: scripts/release.sh (no arguments)" >&2 && exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."

refuse() {
  echo "error: $1" >&2
  exit 1
}
version=$(sed -nE 's/^project\(isthmus VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
[ -n "$version" ] || refuse "CMakeLists.txt has no 'project(isthmus VERSION ...'"
changes=$(git status --porcelain)
[ -z "$changes" ] || refuse "the checkout has changes that are not committed; commit or remove them:"$'\n'"$changes"
grep -qE "^## \[${version//./\\.}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
  refuse "CHANGELOG.md has no section for version $version; expected a line '## [$version] - YYYY-MM-DD'"
unreleased=$(sed -n '/^## \[Unreleased\]/,/^## \[[0-9]/p' CHANGELOG.md | grep -m 1 '^- ' || true)
[ -z "$unreleased" ] || refuse "CHANGELOG.md has entries under [Unreleased]; move them to a section with version and date, and set the version in CMakeLists.txt"
[ "$(id -u)" -eq 0 ] || refuse "the wheels are checked in a system made by debootstrap, which needs root; run this as root"

coordinator=isthmus-coordinator-linux-x86_64.tar.gz
wheels=("isthmus-$version-cp311-cp311-manylinux_2_36_x86_64.whl" "isthmus-$version-cp312-abi3-manylinux_2_36_x86_64.whl")
rm -f dist/SHA256SUMS
packaging/static_coordinator.sh
scripts/package.sh
packaging/check_coordinator.sh "dist/$coordinator"
for wheel in "${wheels[@]}"; do packaging/check_wheel.sh "dist/$wheel"; done

# The built program reports its commit, so a change of the checkout during the build shows here.
built=$(build/static/isthmus-coordinator --version | sed -n 's/^commit *//p')
[ "$built" = "$(git describe --always --dirty --abbrev=12)" ] || refuse "the checkout has changed since the build, which is of commit $built; start again"
(cd dist && sha256sum "$coordinator" "${wheels[@]}" >.SHA256SUMS.tmp && mv .SHA256SUMS.tmp SHA256SUMS)
cat dist/SHA256SUMS
