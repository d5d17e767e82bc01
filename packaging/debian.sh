# shellcheck shell=bash
# What the scripts that make and check packages share; to be sourced.

# Prints the mirror from which this machine gets Debian 12; where it has no package lists, Debian's own.
debian_mirror() {
  local mirror
  # shellcheck disable=SC2016 # apt's own variable
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | sort -u | head -n 1)
  echo "${mirror:-http://deb.debian.org/debian/}"
}

# private_apt FOLDER SOURCE COMMAND...: apt-get with the one source ("deb-src SUITE main", say) of the same mirror, and lists
# in FOLDER: the machine's own configuration stays as it is. Downloads go to the current folder.
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
