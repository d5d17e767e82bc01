#pragma once
// Where processes of a run that cannot connect to each other exchange data (network.mailbox).

#include <string>

#include "isthmus/base/object_store.h"

namespace isthmus::outer_sync {

struct MailboxPlace {
  ObjectStoreOptions store;
  std::string run;  ///< first part of all names
};

}  // namespace isthmus::outer_sync
