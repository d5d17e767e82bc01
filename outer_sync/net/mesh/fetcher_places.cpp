#include "net/mesh/fetcher_places.h"

#include "isthmus/base/error.h"
#include "net/link/connection.h"

namespace isthmus::outer_sync::transport {

void check_place(const FetcherNames& fetchers, const Connection& connection, std::size_t max,
                 std::size_t max_same_name) {
  constexpr std::size_t for_trainers = 4;
  const bool observes = connection.peer_role() == tls::Role::observer;
  if (fetchers.size() >= (observes ? max - for_trainers : max))
    throw Error(ErrorKind::network,
                "no place: " + std::to_string(fetchers.size()) + " others copy the state here");
  const auto name = connection.peer_name();
  if (!name.empty() && fetchers.count(name) >= max_same_name)
    throw Error(ErrorKind::network, "no place: " + name + " copies the state here already");
}

}  // namespace isthmus::outer_sync::transport
