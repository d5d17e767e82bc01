#pragma once
// Where processes of a run that cannot connect to each other exchange data (network.mailbox).

#include <string>
#include <string_view>

#include "isthmus/base/object_store.h"

namespace isthmus::outer_sync {

struct MailboxPlace {
  ObjectStoreOptions store;
  std::string run;  ///< first part of all names
};

/// Whether this host in an address, NAME.mailbox, leads through the mailbox.
[[nodiscard]] inline bool is_mailbox_host(std::string_view host) { return host.ends_with(".mailbox"); }

}  // namespace isthmus::outer_sync
