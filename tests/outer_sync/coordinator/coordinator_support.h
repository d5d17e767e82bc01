#pragma once
// A coordinator's state machine, with members that a test plays by hand; its actions are sorted by kind.

#include <gmock/gmock.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"

namespace isthmus::outer_sync::protocol {

using namespace std::chrono_literals;

inline Digest digest_of(std::uint8_t value) {
  Digest digest;
  digest.bytes.fill(value);
  return digest;
}

class CoordinatorHarness {
 public:
  explicit CoordinatorHarness(std::size_t replicas) : CoordinatorHarness(default_options(replicas)) {}
  explicit CoordinatorHarness(CoordinatorOptions options) : coordinator(std::move(options), 0s) {}

  static CoordinatorOptions default_options(std::size_t replicas) {
    return {.run = "run-1",
            .replicas = replicas,
            .config = {{"outer.sync_every", "30"}, {"outer.codec", "int4"}},
            .token = digest_of(99),
            .join_timeout = 60s,
            .detect_timeout = 5s,
            .topology = {},
            .last = {},
            .recover = {}};
  }
  /// Options of a run that ends at the first loss.
  static CoordinatorOptions rigid(std::size_t replicas) {
    auto options = default_options(replicas);
    options.elastic = false;
    return options;
  }
  static Hello hello(const std::string& name) {
    Hello hello;
    hello.run = "run-1";
    hello.member = {name, 1, name + ":7000"};
    hello.build = "test";
    hello.config = default_options(1).config;
    hello.model = digest_of(1);
    hello.tokenizer = digest_of(2);
    return hello;
  }
  static Sealed sealed() {
    return {.view = 1,
            .layout = {{0, 100}, {100, 50}},
            .chunk_elements = 32,
            .fragments = {{}, {}},
            .history = {{}, {}},
            .held = {},
            .parameters = digest_of(3),
            .ledger = Ledger(2)};
  }

  void receive(ConnectionId from, const ControlMessage& message) {
    coordinator.receive(from, now, message);
    collect();
  }
  void close(ConnectionId connection) {
    coordinator.closed(connection);
    collect();
  }
  void tick(Time later) {
    now = later;
    coordinator.tick(now);
    collect();
  }
  void propose(const ConfigItems& items) {
    coordinator.propose(items, "outer.auto", "a thin line");
    collect();
  }
  void stop(const std::string& reason) {
    coordinator.request_stop(reason);
    collect();
  }

  /// Lets members with connections 1, 2, ... join, report and enter the first view.
  void run_all(const std::vector<std::string>& names) {
    for (std::size_t i = 0; i < names.size(); ++i) receive(i + 1, hello(names[i]));
    for (std::size_t i = 0; i < names.size(); ++i) receive(i + 1, sealed());
    ASSERT_TRUE(last<NewView>(1)) << "the view must begin once all have sealed";
  }

  /// Lets these connections answer the newest Seal, as replicas at the start.
  void seal_all(const std::vector<ConnectionId>& connections) {
    for (const auto connection : connections) {
      auto answer = sealed();
      answer.view = last<Seal>(connection)->view;
      if (const auto view = last<NewView>(connection)) answer.activated = view->view.number;
      receive(connection, answer);
    }
  }

  /// The newest message of a kind sent to a connection.
  template <class Message>
  std::optional<Message> last(ConnectionId to) const {
    const auto place = sent.find(to);
    if (place == sent.end()) return std::nullopt;
    for (auto at = place->second.rbegin(); at != place->second.rend(); ++at) {
      if (const auto* message = std::get_if<Message>(&*at)) return *message;
    }
    return std::nullopt;
  }
  template <class Message>
  std::size_t count(ConnectionId to) const {
    const auto place = sent.find(to);
    if (place == sent.end()) return 0;
    return static_cast<std::size_t>(std::ranges::count_if(
        place->second, [](const auto& message) { return std::holds_alternative<Message>(message); }));
  }
  /// Why a connection was refused; empty if it was not.
  std::string refusal(ConnectionId to) const {
    const auto refused = last<Refused>(to);
    if (!refused) return {};
    EXPECT_TRUE(closed.contains(to)) << "a refused connection must be closed";
    return refused->reason;
  }

  Coordinator coordinator;
  Time now = 0s;
  std::map<ConnectionId, std::vector<ControlMessage>> sent;
  std::set<ConnectionId> closed;
  std::vector<std::string> said;
  std::vector<Evaluated> evaluated;
  std::vector<Gathered> gathered;
  std::size_t members_changed = 0;
  std::optional<LastView> stored;  ///< what is on the coordinator's disk
  std::optional<Ended> ended;

 private:
  void collect() {
    for (auto& action : coordinator.take_actions()) {
      if (auto* send = std::get_if<SendControl>(&action)) sent[send->to].push_back(std::move(send->message));
      if (auto* close = std::get_if<CloseConnection>(&action)) closed.insert(close->connection);
      if (auto* say = std::get_if<Say>(&action)) said.push_back(say->text);
      if (auto* evaluation = std::get_if<Evaluated>(&action)) evaluated.push_back(*evaluation);
      if (auto* news = std::get_if<Gathered>(&action)) gathered.push_back(*news);
      if (std::holds_alternative<MembersChanged>(action)) ++members_changed;
      if (auto* store = std::get_if<Store>(&action)) {
        stored = store->view;
        if (!store->again) said.push_back(store->line);
      }
      if (auto* end = std::get_if<Ended>(&action)) {
        EXPECT_FALSE(ended) << "a run must end only once";
        ended = *end;
      }
    }
  }
};

}  // namespace isthmus::outer_sync::protocol
