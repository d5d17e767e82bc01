#pragma once
// How an invited machine gets its certificate: the messages, and the desk that answers them. No sockets, no
// clocks.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "isthmus/base/archive.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "isthmus/outer_sync/tls/invitations.h"

namespace isthmus::outer_sync::tls {

/// A newcomer's first and only message, over TLS in which only the coordinator has presented a certificate.
struct EnrolmentRequest {
  static constexpr std::uint32_t current = 1;
  std::uint32_t version = current;
  Secret secret;
  std::string request;  ///< PKCS#10 in PEM; the private key stays on the newcomer's machine
  template <class Archive>
  void serialize(Archive& ar) {
    ar(version, secret, request);
  }
};

/// All fields empty: refused, without a reason.
struct EnrolmentAnswer {
  std::string certificate, root, revoked;  ///< in PEM; `revoked` is empty if no certificate was
  std::string config;                      ///< config of the run (YAML), without per-site keys
  std::string seen_as;                     ///< remote address of the newcomer's connection
  [[nodiscard]] bool accepted() const { return !certificate.empty(); }
  template <class Archive>
  void serialize(Archive& ar) {
    ar(certificate, root, revoked, config, seen_as);
  }
};

/// Counts the events of each source (an address or a name). A source with `most` events within `window` is
/// blocked until the window has passed.
class RateLimit {
 public:
  using Time = Invitations::Time;
  static constexpr int most = 5;
  static constexpr auto window = std::chrono::minutes(1);

  [[nodiscard]] bool blocks(const std::string& source, Time now) const;
  void count(const std::string& source, Time now);

 private:
  static constexpr std::size_t max_sources = 4096;
  struct Count {
    Time begin;
    int events = 0;
  };
  std::map<std::string, Count> counts_;
};

/// Answers newcomers for an authority whose key is on this machine. `open` and `answer` may be called from
/// two threads, each from its own.
class EnrolmentDesk {
 public:
  using Time = Invitations::Time;

  /// `config`: the part of the run's config that newcomers get.
  EnrolmentDesk(Authority authority, std::string config)
      : authority_(std::move(authority)), config_(std::move(config)) {}

  /// Whether there is an open invitation. If not, the coordinator drops connections without a certificate.
  /// Reads the invitations if their folder has changed.
  [[nodiscard]] bool open(Time now);

  struct Reply {
    EnrolmentAnswer answer;
    std::string line;  ///< for the log of this side
  };
  /// Answers any request. `from`: its remote address, without a port. Throws Error(data) if a file that must
  /// be on disk before the answer cannot be written.
  [[nodiscard]] Reply answer(std::span<const std::byte> request, const std::string& from, Time now);

 private:
  [[nodiscard]] Reply accept(const EnrolmentRequest& request, const std::string& from, Time now);

  Authority authority_;
  std::string config_;
  RateLimit refusals_;  ///< refusals by address
  RateLimit answers_;   ///< answers by name: even a valid invitation may not flood
  // For `open`:
  std::optional<std::filesystem::file_time_type> changed_;
  std::optional<Time> last_end_;
};

}  // namespace isthmus::outer_sync::tls
