#include "observer.h"

#include <unistd.h>

#include <utility>

#include "isthmus/data/tokenizer.h"
#include "isthmus/outer_sync/log/fingerprint.h"
#include "run/experiment/identity.h"
#include "without_signals.h"

namespace isthmus::python {

namespace {

app::Experiment named(app::Experiment experiment, const std::string& name) {
  app::take_replica_name(name, experiment);
  return experiment;
}

}  // namespace

Observer::Observer(ObserverRequest request)
    : config_(named(std::move(request.experiment), request.name)),
      process_(getpid()),
      layout_(std::move(request.fragments), static_cast<std::uint64_t>(config_.outer.chunk_elements),
              request.averaged),
      // The temporary exists until the follower and its threads are created.
      follower_((WithoutSignals(), config_), layout_, std::move(request.while_waiting)) {
  auto hello = app::hello_of(config_, request.name, request.build);
  hello.model = outer_sync::fingerprint_of(request.tensors, layout_);
  hello.tokenizer = data::make_tokenizer(config_.data.tokenizer)->fingerprint();
  follower_.join(std::move(hello));
}

Observer::~Observer() { close(); }

bool Observer::next() {
  const auto moment = follower_.next();
  step_ = moment ? moment->step : std::nullopt;
  return moment.has_value();
}

bool Observer::catch_up() {
  step_.reset();
  return follower_.catch_up();
}

void Observer::close() {
  if (std::exchange(closed_, true) || getpid() != process_) return;
  follower_.leave("it has finished observing");
}

}  // namespace isthmus::python
