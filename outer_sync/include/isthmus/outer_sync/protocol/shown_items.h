#pragma once
// Config items of another process, for messages.

#include "isthmus/base/config.h"

namespace isthmus::outer_sync::protocol {

/// The items with the codecs' current names. Members compare the stored names, which never change.
[[nodiscard]] config::SharedItems shown_items(config::SharedItems items);

}  // namespace isthmus::outer_sync::protocol
