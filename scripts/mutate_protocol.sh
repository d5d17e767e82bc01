#!/usr/bin/env bash
# scripts/mutate_protocol.sh [SEEDS]: takes each safety rule of the sync protocol out in turn and asks the simulator
# whether it notices. One that it does not notice is a rule that nothing tests, and fails this script.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seeds=${1:-4000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
library=build/release/outer_sync/libisthmus_outer_sync.a
[ -f "$library" ] || { echo "build the release preset first: scripts/setup.sh --tests release" >&2 && exit 2; }

sources=(outer_sync/protocol/{member,coordinator,view_change,messages}.cpp tests/simulation/{world,simulate}.cpp)
libraries=("$library" build/release/quant/libisthmus_quant.a build/release/base/libisthmus_base.a)
includes=(-I"$work" -Iouter_sync/include -Ibase/include -Iquant/include -Itests/simulation)

# build NAME: compiles what has been changed in $work/NAME, and takes the rest from what was compiled before.
build() {
  local name=$1 file objects=()
  for file in "${sources[@]}"; do
    local object=$work/plain/${file//\//_}.o source=$file
    if [ -f "$work/$name/$file" ]; then object=$work/$name/${file//\//_}.o source=$work/$name/$file; fi
    [ -f "$object" ] || g++ -std=c++20 -O1 "${includes[@]}" -c "$source" -o "$object"
    objects+=("$object")
  done
  g++ "${objects[@]}" "${libraries[@]}" -lhwy -lzstd -lyaml-cpp -lfmt -lcrypto -o "$work/$name/simulate"
}

missed=0
# mutate NAME FILE PERL: the rule's name, where it is kept, and what takes it out.
mutate() {
  local name=$1 file=$2 change=$3
  mkdir -p "$work/$name/$(dirname "$file")"
  perl -0pe "$change" "$file" >"$work/$name/$file"
  if cmp -s "$file" "$work/$name/$file"; then
    echo "$name: the code that keeps this rule has changed; mend this script" && missed=$((missed + 1))
    return
  fi
  build "$name"
  if "$work/$name/simulate" --seeds "$seeds" >"$work/$name/out" 2>&1; then
    echo "$name: NOT noticed in $seeds worlds" && missed=$((missed + 1))
  else
    echo "$name: noticed: $(grep -m1 -E '^  at ' "$work/$name/out" | cut -c3- || tail -1 "$work/$name/out")"
  fi
}

mkdir -p "$work/plain"
build plain
"$work/plain/simulate" --seeds "$seeds" >/dev/null || { echo "the rules as they are do not hold" && exit 1; }

member=outer_sync/protocol/member.cpp coordinator=outer_sync/protocol/coordinator.cpp
change=outer_sync/protocol/view_change.cpp
mutate "seal" $member 's/if \(!in_view\(\) \|\| message\.view != view_\.number\) return std::nullopt;/if (message.view != view_.number) return std::nullopt;/; s/if \(!in_view\(\) \|\| view != view_\.number\) return;/if (view != view_.number) return;/'
mutate "chain check at the member" $member 's/if \(!is_of_the_run\(message\)\) return Entry::displaced;//'
mutate "chain check at the coordinator" $change 's/if \(!contains\(member\) && std::ranges::find\(chains_\[p\], own\) == chains_\[p\]\.end\(\)\)/if (false)/'
mutate "held results are thrown away" $member 's/if \(view_\.number != message\.reference\) discard_unapplied\(\);//'
mutate "decided results are pushed" $member 's/push_fixed\(message\);\n  contribute_again/contribute_again/'
mutate "retained contributions" $member 's/push_fixed\(message\);\n  contribute_again\(\);/push_fixed(message);/'
mutate "what was left out comes back" $member 's/out\.included\.push_back\(.*?\);/out.included.push_back(true);/s'
mutate "least contributions" $member 's/if \(gathering\.closed \|\| gathering\.present < closing_\.least\) return;/if (gathering.closed) return;/'
mutate "quorum" $member 's/gathering\.present < closing_\.quorum\) return;/gathering.present + 1 < closing_.quorum) return;/'
mutate "lease" $member 's/const bool leased = .*?;/const bool leased = true;/s; s/gathering\.present < closing_\.least\) return;/false) return;/ if 0'
mutate "leases of those left out" $coordinator 's/(bool Coordinator::leases_are_out\(\) const \{)/$1 return true;/'
mutate "freshness" $coordinator 's/(bool Coordinator::has_heir\(\) const \{)/$1 return true;/'
mutate "numbers are not given twice" $coordinator 's/number_ = options_\.last->number;/number_ = 0;/'
mutate "view of reference" $change 's/highest = std::max\(highest, member\.sealed\.activated\);/highest = std::max(highest, std::min<ViewNumber>(member.sealed.activated, 1));/'

[ $missed -eq 0 ] && echo "every rule is tested"
