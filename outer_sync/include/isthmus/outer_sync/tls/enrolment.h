#pragma once
// How a machine that was invited gets its certificate: what is said, and who answers. No sockets, no clocks.

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

/// The first and only thing that a newcomer says, over TLS in which the coordinator alone has shown a
/// certificate.
struct EnrolmentRequest {
  static constexpr std::uint32_t current = 1;
  std::uint32_t version = current;
  Secret secret;
  std::string request;  ///< PKCS#10 in PEM; its key stays where it is
  template <class Archive>
  void serialize(Archive& ar) {
    ar(version, secret, request);
  }
};

/// All of it empty: refused, and nobody is told why.
struct EnrolmentAnswer {
  std::string certificate, root, revoked;  ///< in PEM; nobody was revoked if that is empty
  std::string config;                      ///< the run's, without what each site says for itself (YAML)
  std::string seen_as;                     ///< address that the newcomer's connection comes from
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

/// Answers newcomers in the name of an authority whose key is on this machine. `open` and `answer` may be
/// called on two threads, each on one.
class EnrolmentDesk {
 public:
  using Time = Invitations::Time;

  /// `config`: what newcomers get of the run's.
  EnrolmentDesk(Authority authority, std::string config)
      : authority_(std::move(authority)), config_(std::move(config)) {}

  /// Whether anybody is invited. While nobody is, the coordinator drops connections without a certificate.
  /// Reads the invitations when their folder has changed.
  [[nodiscard]] bool open(Time now);

  struct Reply {
    EnrolmentAnswer answer;
    std::string line;  ///< for this side's log
  };
  /// Whatever the request is. `from`: the address that it comes from, without a port. Throws Error(data) when
  /// what has to be on disk before the answer cannot be written.
  [[nodiscard]] Reply answer(std::span<const std::byte> request, const std::string& from, Time now);

 private:
  [[nodiscard]] Reply accept(const EnrolmentRequest& request, const std::string& from, Time now);

  Authority authority_;
  std::string config_;
  RateLimit refusals_;  ///< by address
  RateLimit answers_;   ///< by name: one certificate for an invitation, and no flood of answers with it
  // Of `open`:
  std::optional<std::filesystem::file_time_type> changed_;
  std::optional<Time> last_end_;
};

}  // namespace isthmus::outer_sync::tls
