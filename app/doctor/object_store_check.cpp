#include "doctor/object_store_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "isthmus/base/error.h"
#include "isthmus/base/hash.h"
#include "isthmus/base/object_store.h"
#include "isthmus/base/time.h"

namespace isthmus::app {

void check_object_store_of(const DoctorPlace& place, double checkpoint, MachineReport& report) {
  constexpr const char* row = "object store";
  const auto& experiment = place.experiment;
  const auto store = open_object_store(experiment.object_store.options());
  constexpr std::size_t test_bytes = std::size_t{1} << 20;
  Bytes bytes(test_bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i >> 8);
  const auto key = fmt::format("{}/doctor-{}", experiment.run.name, place.name);
  const auto begin = std::chrono::steady_clock::now();
  store->put(key, bytes);
  const double seconds = seconds_since(begin);
  const auto back = store->get(key, 0, test_bytes);
  // The doctor of a place with a longer name may check at the same time.
  const auto keys = store->list(key);
  const bool listed = std::ranges::find(keys, key, &ObjectEntry::key) != keys.end();
  store->remove(key);
  if (back != bytes || !listed)
    data_error(fmt::format("{} does not return what was stored there", store->name(key)));
  const double rate = test_bytes * 8 / seconds;
  const auto interval = experiment.run.checkpoint_interval.seconds;
  const auto says = fmt::format("{}: {:.3g} Mbit/s with 1 MB; a checkpoint has {:.3g} MB", store->name(""),
                                rate / 1e6, checkpoint / 1e6);
  if (interval > 0 && checkpoint * 8 > rate * interval)
    return report.add({row, Level::warn, says, "a longer run.checkpoint_interval: copies would fall behind"});
  report.add({row, Level::ok, says});
}

}  // namespace isthmus::app
