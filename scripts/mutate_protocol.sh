#!/usr/bin/env bash
# scripts/mutate_protocol.sh [WORLDS [NAME]]: removes each rule of the sync protocol in turn and runs the simulator, in at
# most WORLDS worlds (20,000), to see whether it notices; if it does not, runs the coordinator's unit tests. The script
# fails if neither notices. NAME: only rules with NAME in their name. The table shows which invariant of docs/protocol.md
# was violated, and in which world first; `simulate --seed` replays that world.
# --short: one randomly drawn rule about a lost state, with the unit tests only, which notice all of these.
# shellcheck disable=SC2016 # Perl expands these, not the shell
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
short=
if [ "${1-}" = --short ]; then
  short=_short
  set -- 0 "a lost state"
fi
worlds=${1:-20000} only=${2:-} cores=$(nproc)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
libraries=(build/release/quant/libisthmus_quant.a build/release/base/libisthmus_base.a)
[ -f "${libraries[0]}" ] || { echo "build the release preset first: scripts/setup.sh --tests release" >&2 && exit 2; }
options=(-std=c++20 -Iouter_sync/include -Iouter_sync -Ibase/include -Iquant/include -Itests/simulation -Itests/outer_sync/protocol)
compiler=(g++)
! command -v ccache >/dev/null || compiler=(ccache g++)

core=(outer_sync/protocol/*.cpp outer_sync/protocol/coordinator/{,*/}*.cpp outer_sync/core/{address,calendar,layout}.cpp)
simulator=("${core[@]}" tests/simulation/*.cpp)
units=(tests/outer_sync/protocol/{member,exchanges}_test.cpp tests/outer_sync/coordinator/{coordinator,ending,giving_up,going_back,join,newcomers,records,restart,resume,sealing,survivors,view_plan}_test.cpp)
tests=("${core[@]}" tests/outer_sync/protocol/cluster.cpp "${units[@]}")

# build FOLDER PROGRAM SOURCE...: compiles the changed sources in FOLDER, and reuses the other objects.
build() {
  local folder=$1 program=$2 file objects=()
  shift 2
  for file in "$@"; do
    local object=$work/plain/${file//\//_}.o source=$file
    if [ -f "$folder/$file" ]; then object=$folder/${file//\//_}.o source=$folder/$file; fi
    [ -f "$object" ] || "${compiler[@]}" "${options[@]}" -O1 -c "$source" -o "$object"
    objects+=("$object")
  done
  link "$folder/$program" "${objects[@]}"
}

link() { # PROGRAM OBJECT...
  g++ "${@:2}" "${libraries[@]}" -lhwy -lzstd -lyaml-cpp -lfmt -lcrypto -lisal -lgmock -lgtest -lgtest_main -o "$1"
}

# judge_short FOLDER NAME: uses the objects of the build. Compiles the whole class, and links it before the original one,
# because the compiler inlines some of its functions.
judge_short() {
  local folder=$1 name=$2 file line suites binary=tests/outer_sync/test_outer_sync caught="NOT NOTICED"
  for file in $coordinator; do
    if [ -f "$folder/$file" ]; then echo "#include \"$folder/$file\""; else echo "#include \"$PWD/$file\""; fi
  done >"$folder/changed.cpp"
  line=$(ninja -C build/release -t commands $binary | tail -1)
  line=${line/ -o $binary / $folder/changed.o -Wl,-z,muldefs -o $folder/tests }
  suites=$(sed -nE 's/^TEST(_F)?\(([A-Za-z]+),.*/\2.*/p' "${units[@]}" | sort -u | paste -sd:)
  if ! { g++ "${options[@]}" -O0 -c "$folder/changed.cpp" -o "$folder/changed.o" && (cd build/release && eval "$line") &&
    [ -x "$folder/tests" ]; } >"$folder/out" 2>&1; then
    caught="DOES NOT COMPILE"
  elif ! timeout 120 "$folder/tests" --gtest_filter="$suites" >"$folder/out" 2>&1; then
    caught="a unit test"
  fi
  printf '%-52s %-18s %8s\n' "$name" "$caught" "" >"$folder/line"
}

# judge FOLDER NAME: one line of the table.
judge() {
  local folder=$1 name=$2 problem caught world seed
  if ! build "$folder" simulate "${simulator[@]}" >"$folder/out" 2>&1; then
    printf '%-52s %-18s %8s\n' "$name" "DOES NOT COMPILE" "" >"$folder/line"
    return
  fi
  "$folder/simulate" --seeds "$worlds" --failures 1 >"$folder/out" 2>&1 || true
  problem=$(sed -nE 's/^  (at .*)$/\1/p' "$folder/out" | head -1)
  caught=$(sed -nE 's/.*\((I[0-9, I]*)\).*/\1/p' <<<"$problem") world=$(sed -nE 's/^([0-9]+) worlds.*/\1/p' "$folder/out")
  seed=$(sed -nE 's/^  to see it: .* --seed ([0-9]+)$/\1/p' "$folder/out" | head -1)
  if [ -n "$problem" ]; then
    printf '%-52s %-18s %8s\n' "$name" "$caught" "$seed" >"$folder/line"
  elif [ -z "$world" ]; then
    printf '%-52s %-18s %8s\n' "$name" "an assertion" "" >"$folder/line"
  elif ! build "$folder" tests "${tests[@]}" >"$folder/out" 2>&1; then
    printf '%-52s %-18s %8s\n' "$name" "TESTS DO NOT COMPILE" "" >"$folder/line"
  elif ! timeout 120 "$folder/tests" >"$folder/out" 2>&1; then
    printf '%-52s %-18s %8s\n' "$name" "a unit test" "" >"$folder/line"
  else
    printf '%-52s %-18s %8s\n' "$name" "NOT NOTICED" "$world" >"$folder/line"
  fi
}

rules=0
# mutate NAME FILES PERL: the rule's name, the files that contain it, and the Perl code that removes it.
mutate() {
  local name=$1 files=$2 change=$3
  [[ $name == *"$only"* ]] || return 0
  local folder file
  rules=$((rules + 1))
  [ -z "$short" ] || [ $rules -eq "$drawn" ] || return 0
  folder=$work/$(printf '%03d' $rules)
  for file in $files; do
    mkdir -p "$(dirname "$folder/$file")"
    perl -0pe "$change" "$file" >"$folder/$file"
    ! cmp -s "$file" "$folder/$file" || rm "$folder/$file"
  done
  if [ -z "$(find "$folder/outer_sync" -type f)" ]; then
    printf '%-52s %-18s %8s\n' "$name" "MEND THIS SCRIPT" "" >"$folder/line"
    return
  fi
  while [ "$(jobs -rp | wc -l)" -ge "$cores" ]; do wait -n; done
  judge$short "$folder" "$name" &
}

drawn=1
if [ -z "$short" ]; then
  mkdir -p "$work/plain"
  build "$work/plain" simulate "${simulator[@]}"
  build "$work/plain" tests "${tests[@]}"
  "$work/plain/tests" >/dev/null || { echo "the coordinator's unit tests fail without any change" >&2 && exit 2; }
else
  drawn=$((RANDOM % $(grep -c "^mutate \"[^\"]*$only" scripts/mutate_protocol.sh) + 1))
fi

member=$(echo outer_sync/protocol/member*.cpp) coordinator=$(echo outer_sync/protocol/coordinator/{,*/}*.cpp)
exchanges=outer_sync/protocol/exchanges.cpp change=outer_sync/protocol/view_change.cpp messages=outer_sync/protocol/messages.cpp relays=outer_sync/protocol/coordinator/paths/relays.cpp

# Views.
mutate "a sealed member accepts nothing" "$member" 's/if \(!in_view\(\) \|\| (message\.view != view_\.number\) return std::nullopt;)/if ($1/; s/if \(!in_view\(\) \|\| (view != view_\.number\) return;  \/\/ sealed)/if ($1/'
mutate "only the highest sealed view begins" "$member" 's/message\.view\.number != sealed_ \|\| //'
mutate "the member detects another history" "$member" 's/if \(!reduces && !is_of_the_run\(message\)\) return Entry::evicted;//'
mutate "the coordinator detects another history" $change 's/if \(!contains\(member\) &&\s+std::ranges::find\(chains_\[p\], own\) == chains_\[p\]\.end\(\)\)/if (false)/'
mutate "the reference is the highest view that has begun" $change 's/highest = std::max\(highest, member\.sealed\.activated\);/highest = std::max(highest, std::min<ViewNumber>(member.sealed.activated, 1));/'
mutate "an evicted member brings no results" $change 's/if \(!settled\) continue;//'
mutate "all members of a view have sealed it" "$coordinator" 's/if \(roster_\.unanswered\(\) == 0 && leases_are_out\)/if (leases_are_out)/'
mutate "peers learn that a view has begun" "$member" 's/if \(peer != self_\) actions_\.push_back\(SendBegun\{peer, view_\.number\}\);//'
mutate "a restarted replica has another id" $messages 's/\.update\(member\.incarnation\)//'

# Exchanges in pairs.
mutate "a new view forgets exchanges" $exchanges 's/received_\.clear\(\);//'
mutate "no exchange of an older view is taken" $exchanges 's/if \(view_\.number == 0 \|\| message\.view != view_\.number\) return std::nullopt;//'
mutate "an exchange waits until it has begun here" $exchanges 's/if \(!current_\[place\.first\]\.begun \|\| current_\[place\.first\]\.step != place\.second\) return;//'
mutate "an exchange is complete with all its chunks" $exchanges 's/kept->second\.missing > 0 \|\| //'
mutate "a partner crowds out only itself" $exchanges 's/if \(at->second\.from == from\) later/later/'
mutate "what is not sent of an old exchange is dropped" $exchanges 's/actions_\.push_back\(DropUnsent\{fragment, step \+ 1\}\);//'
mutate "an exchange is repeated only while it lasts" $exchanges 's/std::erase_if\(unacknowledged_,.*?\}\);//s'
mutate "a stranger takes no part in an exchange" $exchanges 's/if \(partner_of\(view_, self_, layout_\.fragment_of\(chunk\), step\) != from\)/if (false)/'
mutate "all draw the same partners" $exchanges 's/random_bits\(any_seed, fragment, step\)/random_bits(any_seed, fragment, step + self)/'

# Decided and undecided results.
mutate "results of a view left behind are dropped" "$member" 's/if \(!of_reference\) discard_unapplied\(\);//'
mutate "dropped rounds are withdrawn" "$member" 's/if \(at->second\.missing == 0\) retracted_\.emplace_back\(fragment, round\);//'
mutate "decided results are forwarded" "$member" 's/push_fixed\(message\);\n  contribute_again/contribute_again/'
mutate "contributions are sent again" "$member" 's/push_fixed\(message\);\n  contribute_again\(\);/push_fixed(message);/'
mutate "decided results are not made again" "$member" 's/if \(is_decided\(chunk, round\)\) return;//; s/if \(is_decided\(chunk, round\)\) return std::nullopt;//'
mutate "results of a checkpoint are kept for others" "$member" 's/(void Member::keep_restored\(const DecidedRound& round\) \{)/$1 if (round.round > 0) return;/'
mutate "results of a checkpoint stay when a view begins" "$member" 's/ \|\| at->second\.restored\)/)/'
mutate "a checkpoint's round that is made again evicts" "$member" 's/if \(!of_reference && !restored_are_decided\(message\)\) return Entry::evicted;//'
mutate "nothing is forgotten between seal and view" "$member" 's/if \(!in_view\(\)\) return;\n  const auto last/const auto last/'
mutate "results are kept for returning members" "$member" 's/round \+ always_kept <= last/round <= last/'
mutate "chunks that came too early are requested again" "$member" 's/dropped_early_\.at\(from\) = true;//'
mutate "rejected contributions do not return" "$member" 's/out\.rejected\.push_back\(.*?\);/out.rejected.push_back(false);/s'
mutate "the members that outer.reject leaves out are checked" "$member" 's/if \(stays\[i\]\) result\.contributors\.push_back\(present\[i\]\);/result.contributors.push_back(present[i]);/'
mutate "contributions left out return" "$member" 's/out\.included\.push_back\(.*?\);/out.included.push_back(true);/s'
mutate "kept results do not add up over views" "$member" 's/for \(FragmentId p = 0; p < layout_\.fragment_count\(\); \+\+p\) forget\(p\);\s*sealed_ = view/sealed_ = view/'
mutate "results are forgotten in the end" "$member" 's/round \+ max_kept <= last/round + 4 * max_kept <= last/'
mutate "rounds beyond the window are dropped" "$member" 's/if \(round > last \+ window\)/if (round > last + 2 * window)/'
mutate "the number of remembered chain hashes is limited" "$member" 's/history\.size\(\) >= history_length/history.size() > history_length/'
mutate "the newest round must be available, too" $change 's/for \(auto r = own\.round \+ 1; r <= newest\(p\)/for (auto r = own.round + 1; r < newest(p)/'

mutate "samples decided in every fragment are not free" $change 's/message\.taken\.add\(reference\.decided\(\)\);//'
mutate "samples decided in only one fragment are free" $change 's/return without\(done_everywhere\(rounds\)/return without(done_anywhere(rounds)/'

# Closing without all contributions.
mutate "least contributions" "$member" 's/gathering\.present < std::max\(closing_\.quorum, closing_\.least\)/gathering.present < closing_.quorum/; s/const auto needed = .*?;/const std::size_t needed = 0;/s'
mutate "quorum" "$member" 's/gathering\.present < std::max\(closing_\.quorum, closing_\.least\)/gathering.present + 1 < std::max(closing_.quorum, closing_.least)/; s/const auto needed = .*?;/const std::size_t needed = 0;/s'
mutate "a result without a quorum is refused" "$member" 's/gathering\.present < std::max\(closing_\.quorum, closing_\.least\)/gathering.present + 1 < std::max(closing_.quorum, closing_.least)/'
mutate "a closed chunk stays closed" "$member" 's/if \(gathering\.closed \|\| place\.bytes\) return;/if (place.bytes) return;/'
mutate "lease" "$member" 's/const bool leased = .*?;/const bool leased = true;/s'
mutate "leases of members left out" "$coordinator" 's/(bool Roster::leases_are_out\(\) const \{)/$1 return true;/'
mutate "leases of the previous coordinator" "$coordinator" 's/gathering_until_ = started \+ .*?;/gathering_until_ = started;/'
mutate "a lease lasts no longer than the coordinator waits" "$coordinator" 's/reply\.lease = static_cast<std::uint64_t>\(/reply.lease = 2 * static_cast<std::uint64_t>(/'

# The coordinator.
mutate "the coordinator waits for a survivor" "$coordinator" 's/(bool Coordinator::has_survivor\(\) const \{)/$1 return true;/'
mutate "view numbers are not used twice" "$coordinator" 's/number_ = options_\.last->number;/number_ = 0;/; s/number_ = std::max\(\{number_, hello\.sealed, hello\.activated\}\);//'
mutate "a view is stored before it is announced" "$coordinator" 's/out_\.add\(Store\{\.view = \*options_\.last, \.line = std::move\(line\)\}\);//'
mutate "a lost disk is followed by higher numbers" "$coordinator" 's/if \(options_\.recover\) number_ = .*?;//s; s/number_ = std::max\(\{number_, hello\.sealed, hello\.activated\}\);//'
mutate "a restarted replica takes over its name" "$coordinator" 's/hello\.member\.incarnation < same->hello/hello.member.incarnation != same->hello/'
mutate "the first view has all trainers or none" "$coordinator" 's/  if \(!std::get<phase::Gathering>\(phase_\)\.sealed \|\| trainers\(\) != first_view_\.planned\) return;\n//'
mutate "a new run begins without state of the old one" "$coordinator" 's/roster_\.count\(is_fresh\) != trainers\(\)/false/'
mutate "a reducer begins at the run's newest rounds" "$member" 's/if \(!of_reference && reduces\) begin_anew\(message\);//'
mutate "any trainer forwards results that it has applied" $change 's/if \(contains\(member\) \|\| !trains\(member\.info\)\) return contains\(member\);/return contains(member);/'
mutate "a reducer does not determine the reference" $change 's/if \(trains\(member\.info\)\) highest = /highest = /'
mutate "a member with the state stays" $change 's/&member != foremost && //'
mutate "a newcomer with all rounds is in the reference" $change 's/if \(!is_left\(\) && reference\.has_all\(member\)\) reference\.take_in\(member\);//'
mutate "others know the history that a newcomer lacks" $change 's/bool longer = !chain\.empty\(\);/bool longer = false;/'
mutate "a reducer is not a survivor" "$coordinator" 's/return trains\(info\) && member != nullptr && member->hello/return member != nullptr && member->hello/'
mutate "a run without remaining members can begin anew" "$coordinator" 's/if \(state_is_gone\(\)\) return begin_anew\(\);//; s/if \(state_is_gone\(\)\) begin_anew\(\);//'
mutate "a member that lags is evicted" "$coordinator" 's/if \(is<phase::Running>\(\)\) check_lag\(name, newest\);//'
mutate "a member that lacks peers is left out" "$coordinator" 's/if \(!worst\) return;/return;/'
mutate "a third member relays" $relays 's/if \(best && least <= cost\) continue;/continue;/'
mutate "rounds wait for a newcomer that misses views" "$coordinator" 's/missed->second < tries/true/'
mutate "the last to leave does not end a cut-off run" "$coordinator" 's/ && !lost_trainer_may_return\(\)//'
mutate "newcomers are admitted when donors appear" "$coordinator" 's/(void Coordinator::admit_waiting\(\) \{)/$1 return;/'
mutate "a lost state: newcomers are not survivors" "$coordinator" 's/if \(const auto missing = missing_survivors\(\*options_\.last, roster_, losses_\.left, options_\.least\);\s+!missing\.empty\(\)\)/if (const std::string missing; false)/'
mutate "a lost state: the run returns to checkpoints" "$coordinator" 's/if \(state_is_lost\(\)\) go_back_to_checkpoints\(\);//g'
mutate "a lost state: absent members are given up" "$coordinator" 's/(bool Outlook::others_are_given_up\(\) const \{)/$1 return false;/'
mutate "a lost state: not beyond the common checkpoint" "$coordinator" 's/if \(!all_are_back && .*? return false;//s'
mutate "a lost state: others may continue elsewhere" "$coordinator" 's/2 \* gone >= last\.in_view && //'
mutate "a lost state: an absent member takes no one back" "$coordinator" 's/return one\.step >= complete; \}\);/return true; });/; s/newest\.step > 0 && newest\.step >= complete/newest.step > 0/g'
mutate "a lost state: also after the coordinator was lost" "$coordinator" 's/checkpoints_\.begin_with\(options_\.last->checkpoint\);//'
mutate "a lost state: the common checkpoint is stored" "$coordinator" 's/options_\.last->checkpoint = common;//'
mutate "a resumed run begins at one checkpoint" "$coordinator" 's/if \(!others\.empty\(\)\) return lose\(others, .*?\);//s'
mutate "a lost state: a member that left no longer has it" "$coordinator" 's/if \(trains_here && said_goodbye\) losses_\.left\.insert\(.*?\);//'
mutate "a lost state: no wait for a member that dies" "$coordinator" 's/if \(!first_view_\.goes_back_to \|\| trainers\(\) == 0\)/if (true)/'
mutate "a lost state: also under a later coordinator" "$coordinator" 's/token = token_after\(token\);\s+if/token = token_after(run.options.token);\n    if/'
mutate "a lost state: never to the beginning" "$coordinator" 's/member\.hello\.fresh && member\.hello\.resume;/member.hello.fresh;/'
mutate "a lost state: waiting newcomers start again" "$coordinator" 's/member\.admitted \|\| !member\.hello\.fresh \|\| begun\(member\) > 0/false/'
mutate "a lost state: fewer replicas go back after a wait" "$coordinator" 's/\(goes_back_at && now_ >= \*goes_back_at\) \|\| //'
mutate "a lost state: a cut-off coordinator waits" "$coordinator" 's/if \(!all_may_return\(\)\)\s+return end/if (true) return end/'
mutate "a lost state: the first to return waits for others" "$coordinator" 's/gathering_until_ = now_ \+ options_\.detect_timeout;/;/'
mutate "a lost state: a late member starts again" "$coordinator" 's/if \(is_left_behind\(hello, run\)\)\s+return \{.*?\};//s'
wait
printf '%-52s %-18s %8s\n' "rule" "noticed by" "world"
cat "$work"/*/line
! grep -qE 'NOT NOTICED|MEND THIS|DO(ES)? NOT' "$work"/*/line || exit 1
[ -n "$short" ] || echo "all $rules rules are tested"
