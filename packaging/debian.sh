# shellcheck shell=bash
# Functions shared by the scripts that make and check packages; source this file.

# Prints the mirror from which this machine gets Debian 12, or Debian's own if the machine has no package lists.
debian_mirror() {
  local mirror
  # shellcheck disable=SC2016 # apt's own variable
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | sort -u | head -n 1)
  echo "${mirror:-http://deb.debian.org/debian/}"
}

# private_apt FOLDER SOURCE COMMAND...: runs apt-get with one source of the same mirror, for example "deb-src SUITE
# main", and keeps its lists in FOLDER, so the machine's own configuration does not change. Downloads go to the current
# folder.
private_apt() {
  local folder=$1 kind suite component
  read -r kind suite component <<<"$2"
  shift 2
  mkdir -p "$folder/lists/partial" "$folder/archives/partial"
  echo "$kind [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(debian_mirror) $suite $component" >"$folder/sources.list"
  local options=(-qq -o "Dir::State=$folder" -o "Dir::State::status=/var/lib/dpkg/status" -o "Dir::Cache=$folder"
    -o "Dir::Etc::sourcelist=$folder/sources.list" -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update && apt-get "${options[@]}" "$@"
}
