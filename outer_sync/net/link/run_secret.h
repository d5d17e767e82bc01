#pragma once
// The secret of a run that stays on one machine and has no certificates. Who can read its file takes part, so
// another account of the machine is neither member nor operator. Both ends of a connection show that they
// know it, before anything else, and neither sends it. What they show holds for the process that was meant to
// be dialled alone, so that nobody in between can pass it on to another one.

#include <array>
#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "isthmus/outer_sync/config/config.h"

namespace isthmus::outer_sync::transport {

/// Of the io thread.
class RunSecret {
 public:
  using Value = std::array<std::uint8_t, 32>;

  explicit RunSecret(std::filesystem::path file) : file_(std::move(file)) {}
  /// Read once, when it is first asked for: the coordinator may make it after a member has begun. Throws
  /// Error naming the file where it is not there, holds something else, or is open to other accounts.
  [[nodiscard]] const Value& value();
  [[nodiscard]] const std::filesystem::path& file() const { return file_; }
  /// Of this process in the run. Before it is known, nobody who dials gets in.
  void answer_as(std::string name) { name_ = std::move(name); }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  std::filesystem::path file_;
  std::string name_;
  std::optional<Value> value_;
};

/// Null where there are certificates, or `network.secret` names no file.
[[nodiscard]] std::shared_ptr<RunSecret> secret_of(const NetworkConfig& network);

/// Each end shows the other that it knows the secret. `dialled`: the name of the process that was meant,
/// where this end has dialled; else null. Throws Error(network) saying what is wrong.
[[nodiscard]] asio::awaitable<void> show_secret(asio::ip::tcp::socket& socket, RunSecret& secret,
                                                const std::string* dialled);

}  // namespace isthmus::outer_sync::transport
