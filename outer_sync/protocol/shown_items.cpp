#include "isthmus/outer_sync/protocol/shown_items.h"

#include <algorithm>

#include "isthmus/quant/codec.h"

namespace isthmus::outer_sync::protocol {

config::SharedItems shown_items(config::SharedItems items) {
  for (auto& [key, value] : items) {
    if (key != "outer.codec" && key != "outer.warmup_codec") continue;
    const auto* codec = std::ranges::find(quant::codecs, value, &quant::Codec::stored_name);
    if (codec != quant::codecs.end()) value = std::string(codec->name);
  }
  return items;
}

}  // namespace isthmus::outer_sync::protocol
