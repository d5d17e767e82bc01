#!/usr/bin/env bash
# packaging/third_party.sh FOLDER BUILD "TARGET ..." [FILE ...]: writes the licence texts of all third-party code to
# FOLDER: of the headers, static libraries and embedded files in the targets of the build tree BUILD, and of the FILEs,
# which are the libraries shipped with them. It writes one text per Debian source package or Python package.
set -euo pipefail
[ $# -ge 3 ] || { echo 'usage: packaging/third_party.sh FOLDER BUILD "TARGET ..." [FILE ...]' >&2 && exit 2; }
folder=$1 build=$2 files=("${@:4}")
read -r -a targets <<<"$3"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$folder"

inputs=$(ninja -C "$build" -t inputs "${targets[@]}")
compiled=$(grep -E '\.(o|gch)$' <<<"$inputs" | xargs ninja -C "$build" -t deps)
! grep -m 1 'deps not found' <<<"$compiled" >&2 || { echo "error: $build has not built this; build $3 first" >&2 && exit 1; }
# A target contains none of the shared libraries it links to; shipped ones are among the FILEs.
mapfile -t used < <({
  grep '^/' <<<"$inputs" | grep -vE '\.so(\.|$)' || true
  sed -n 's/^    //p' <<<"$compiled"
} | sort -u | (cd "$build" && xargs -d '\n' realpath --no-symlinks) | sort -u)

unknown=() debian=()
declare -A seen=()
for file in "${used[@]}" "${files[@]}"; do
  case $file in
    */site-packages/*) # a file of a Python package
      package=${file##*/site-packages/} package=${package%%/*}
      [ -z "${seen[$package]-}" ] || continue
      seen[$package]=yes
      texts=("${file%%/site-packages/*}/site-packages/$package"-*.dist-info/licenses/*)
      if [ -f "${texts[0]}" ]; then cat "${texts[@]}" >"$folder/$package.txt"; else unknown+=("$file"); fi
      ;;
    "$root"/* | /usr/local/cuda/*) ;; # our own files, and CUDA's headers: their licence requires no text
    *) debian+=("$file") ;;
  esac
done
mapfile -t debian < <(realpath "${debian[@]}" | sort -u)
found=$(dpkg-query -S "${debian[@]}" 2>&1) || mapfile -t -O ${#unknown[@]} unknown < <(sed -n 's/^dpkg-query: .* pattern //p' <<<"$found")
if [ ${#unknown[@]} -gt 0 ]; then
  printf 'error: these files belong to no package, so their licence is unknown:\n' >&2
  printf '  %s\n' "${unknown[@]}" >&2
  exit 1
fi
while read -r package; do
  # shellcheck disable=SC2016 # dpkg's own variable
  source=$(dpkg-query -W -f '${source:Package}\n' "$package" | head -n 1)
  cp -L "/usr/share/doc/$package/copyright" "$folder/$source.txt"
done < <(cut -d: -f1 <<<"$found" | sort -u)
