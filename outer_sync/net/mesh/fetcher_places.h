#pragma once
// Places for fetchers at one member, limited in number. Used on the io thread only.

#include <memory>
#include <set>
#include <string>
#include <utility>

namespace isthmus::outer_sync::transport {

class Connection;

/// Names in the fetchers' certificates; empty names without TLS. Shared, since the coroutines that serve
/// fetchers may outlive the mesh.
using FetcherNames = std::multiset<std::string>;

/// Counts a fetcher by its name while it is served.
class FetcherPlace {
 public:
  FetcherPlace(std::shared_ptr<FetcherNames> fetchers, const std::string& name)
      : fetchers_(std::move(fetchers)), place_(fetchers_->insert(name)) {}
  ~FetcherPlace() { fetchers_->erase(place_); }
  FetcherPlace(const FetcherPlace&) = delete;
  FetcherPlace& operator=(const FetcherPlace&) = delete;

 private:
  std::shared_ptr<FetcherNames> fetchers_;
  FetcherNames::iterator place_;
};

/// Throws Error(network) if there is no place for this fetcher, with at most `max` in all and
/// `max_same_name` of one certificate. Observers leave some places for trainers.
void check_place(const FetcherNames& fetchers, const Connection& connection, std::size_t max,
                 std::size_t max_same_name);

}  // namespace isthmus::outer_sync::transport
