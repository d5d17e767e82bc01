#pragma once
// Reads what an S3 server answers: XML without attributes that matter. The answers are not trusted. Pure.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "isthmus/base/object_store.h"

namespace isthmus {

/// The text of the first element of this name, with entities decoded; nullopt without such an element.
[[nodiscard]] std::optional<std::string> xml_text(std::string_view xml, std::string_view element);

struct S3Page {
  std::vector<ObjectEntry> objects;  ///< keys decoded, with the bucket's prefix
  std::string next;                  ///< token of the next page; empty: this is the last one
};
/// A page of ListObjectsV2 with encoding-type=url. nullopt for another document; objects without a valid key
/// and size are left out.
[[nodiscard]] std::optional<S3Page> s3_page(std::string_view xml);

/// The reason in the answer to a refused request, printable; may be empty.
[[nodiscard]] std::string s3_reason(std::string_view xml);

}  // namespace isthmus
