#include "isthmus/outer_sync/tls/invitations.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "isthmus/base/file.h"
#include "isthmus/base/text_file.h"
#include "tls/openssl.h"

namespace isthmus::outer_sync::tls {

namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

constexpr std::size_t most = 1000;
constexpr std::size_t longest_invitation = 16 << 10;
constexpr std::size_t hash_digits = 64;
constexpr auto kept_after_its_end = std::chrono::hours(24 * 7);  // for the log's reason of a refusal
constexpr const char* unused = "-";

/// Compares in a time that depends neither on how much is equal nor on where the texts differ.
bool equal(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::int64_t count_of(Invitations::Time time) {
  return std::chrono::duration_cast<seconds>(time.time_since_epoch()).count();
}

}  // namespace

std::vector<Invitations::Invitation> Invitations::read() const {
  std::vector<Invitation> found;
  std::error_code none;
  for (fs::directory_iterator at(folder_, none), end; !none && at != end; at.increment(none)) {
    Invitation one{.hash = at->path().filename().string()};
    if (one.hash.size() != hash_digits) continue;  // a file that is being written
    try {
      std::istringstream in(read_text(at->path(), longest_invitation));
      std::int64_t ends = 0;
      if (!(in >> one.name >> ends >> one.days >> one.key)) continue;
      one.ends = Time(seconds(ends));
      std::string role;
      std::getline(in, role);
      while (role.starts_with(' ')) role.erase(0, 1);
      const auto known = role.empty() ? usual_role(one.name) : role_from(role);
      if (!known) continue;  // from a later build
      one.role = *known;
      one.certificate.assign(std::istreambuf_iterator<char>(in), {});
    } catch (const Error&) {
      continue;  // removed meanwhile, or not an invitation
    }
    found.push_back(std::move(one));
  }
  return found;
}

void Invitations::write(const Invitation& invitation) const {
  replace_file(folder_ / invitation.hash,
               invitation.name + " " + std::to_string(count_of(invitation.ends)) + " " +
                   std::to_string(invitation.days) + " " + invitation.key + " " + to_string(invitation.role) +
                   "\n" + invitation.certificate,
               File::Mode::secret);
}

Secret Invitations::add(const std::string& name, Role role, Time now, seconds lifetime, int days) const {
  make_private_folder(folder_);
  std::size_t left = 0;
  for (const auto& one : read()) {
    if (one.ends + kept_after_its_end < now) {
      remove_file(folder_ / one.hash);
    } else {
      ++left;
    }
  }
  if (left >= most)
    throw Error(ErrorKind::config,
                folder_.string() + " has " + std::to_string(left) +
                    " invitations; expected fewer than 1000: remove the files of unneeded ones");
  Secret secret;
  need(RAND_bytes(secret.bytes.data(), static_cast<int>(secret.bytes.size())), "cannot make a secret");
  write({.hash = secret.digest().hex(),
         .name = name,
         .key = unused,
         .ends = now + lifetime,
         .days = days,
         .role = role});
  return secret;
}

std::optional<Invitations::Time> Invitations::last_end() const {
  std::optional<Time> last;
  for (const auto& one : read()) last = std::max(last.value_or(one.ends), one.ends);
  return last;
}

Invitations::Verdict Invitations::redeem(const Secret& secret, const Digest& key, Time now,
                                         const Certify& certify) const {
  const auto hash = secret.digest().hex();
  std::optional<Invitation> meant;
  for (auto& one : read()) {
    if (equal(one.hash, hash)) meant = std::move(one);
  }
  if (!meant) return {.why = "there is no such invitation"};
  const auto whose = "the invitation of " + meant->name;
  if (now >= meant->ends) return {.name = meant->name, .why = whose + " has expired"};
  if (meant->key != unused && !equal(meant->key, key.hex()))
    return {.name = meant->name, .why = whose + " was used before"};
  if (meant->certificate.empty()) {
    meant->key = key.hex();
    meant->certificate = certify(meant->name, meant->role, meant->days);
    write(*meant);
  }
  return {.name = meant->name, .certificate = meant->certificate};
}

std::size_t Invitations::withdraw(const std::string& name) const {
  std::size_t count = 0;
  for (const auto& one : read()) {
    if (one.name != name) continue;
    remove_file(folder_ / one.hash);
    ++count;
  }
  return count;
}

}  // namespace isthmus::outer_sync::tls
