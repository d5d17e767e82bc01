#include "coordinator/dashboard/dashboard.h"

#include <fmt/format.h>

#include <utility>

#include "coordinator/dashboard/dashboard_page.h"
#include "coordinator/dashboard/run_figures.h"
#include "isthmus/base/error.h"
#include "isthmus/base/text.h"
#include "isthmus/base/text_file.h"
#include "isthmus/base/time.h"
#include "isthmus/outer_sync/net/link/run_secret.h"
#include "run/metrics/page_port.h"
#include "run/process/machine.h"

namespace isthmus::app {

using Json = nlohmann::ordered_json;
using outer_sync::protocol::Coordinator;

namespace {

constexpr std::size_t token_digits = 64;

/// With U+FFFD for bytes of members that are not UTF-8.
std::string valid_json(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string dashboard_token(const std::filesystem::path& file) {
  outer_sync::make_run_secret(file);
  constexpr std::size_t max_size = 4096;
  const auto text = read_text(file, max_size);
  const auto token = trimmed(text);
  if (token.size() != token_digits || token.find_first_not_of("0123456789abcdef") != token.npos)
    data_error(file.string() +
               " holds no token; expected 64 hexadecimal digits, as the coordinator writes them: remove "
               "the file, and the next coordinator makes a new one");
  return std::string(token);
}

std::string dashboard_json(double age_seconds, const Json& lines, const std::string& run) {
  return fmt::format(R"({{"age_seconds":{:.1f},"lines":{},"run":{}}})", age_seconds, valid_json(lines), run);
}

Dashboard::Dashboard(const Experiment& experiment, const RecentLines& lines)
    : experiment_(experiment), lines_(lines) {
  constexpr std::size_t nonce_digits = 32;
  const auto address = experiment.dashboard.address();
  const auto token =
      address.is_loopback() ? std::string() : dashboard_token(experiment.folder() / "dashboard.token");
  const auto nonce = outer_sync::new_run_secret().substr(0, nonce_digits);
  auto served = serve_pages(address, "dashboard.listen",
                            dashboard_pages(address, token, nonce, [this] { return json(); }));
  url_ = dashboard_url(served.address, token, machine_name());
  server_ = std::move(served.server);
}

std::string Dashboard::json() const {
  const auto shown = [this] {
    const std::lock_guard lock(mutex_);
    return shown_;
  }();
  return dashboard_json(seconds_since(shown->at), lines_.json(), shown->run);
}

void Dashboard::show(const Coordinator& coordinator, Json status,
                     const std::map<std::uint64_t, double>& evaluations) {
  const auto step = status.at("step").get<std::uint64_t>();
  const auto steps = static_cast<std::uint64_t>(experiment_.run.steps);
  // A member that has just come back reports step 0 until it has made one: that undoes nothing.
  if (const auto loss = training_loss(coordinator); loss && step > 0) training_.add(step, *loss);
  const auto paths = coordinator.paths().all();
  Json run;
  run["status"] = std::move(status);
  run["evaluations"] = curve_json(evaluations, Curve::max_points);
  run["training"] = training_.json();
  run["links"] = links_json(paths, coordinator.paths().slow(), max_links);
  run["links_left_out"] = paths.size() - run["links"].size();
  run["next_checkpoint"] = to_json(next_checkpoint_of(coordinator, experiment_, step), step, steps);
  auto newest = std::make_shared<const Shown>(Shown{valid_json(run)});
  const std::lock_guard lock(mutex_);
  shown_.swap(newest);
}

}  // namespace isthmus::app
