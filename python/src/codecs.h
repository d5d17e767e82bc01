#pragma once

#include <nanobind/nanobind.h>

namespace isthmus::python {

/// Adds the submodule `codecs`.
void add_codecs(nanobind::module_& parent);

}  // namespace isthmus::python
