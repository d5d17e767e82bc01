#pragma once
// The secret of a run that stays on one machine and has no certificates. Processes that can read its file may
// take part, so other accounts of the machine can be neither members nor operators. Before anything else,
// both ends of a connection prove that they know it, without sending it. A proof names the dialled process,
// so it cannot be relayed to another one.

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

/// Used on the io thread only.
class RunSecret {
 public:
  using Value = std::array<std::uint8_t, 32>;

  explicit RunSecret(std::filesystem::path file) : file_(std::move(file)) {}
  /// Reads the file at the first call: the coordinator may create it after a member has started. Throws Error
  /// with the file's name if it is missing, invalid or accessible to other accounts.
  [[nodiscard]] const Value& value();
  [[nodiscard]] const std::filesystem::path& file() const { return file_; }
  /// Sets this process's name in the run. Until then, no dialling process is accepted.
  void answer_as(std::string name) { name_ = std::move(name); }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  std::filesystem::path file_;
  std::string name_;
  std::optional<Value> value_;
};

/// Null if there are certificates or `network.secret` is empty.
[[nodiscard]] std::shared_ptr<RunSecret> secret_of(const NetworkConfig& network);

/// Each end proves to the other that it knows the secret. `dialled`: name of the process that this end has
/// dialled; null if this end has accepted. Throws Error(network) with what is wrong.
[[nodiscard]] asio::awaitable<void> show_secret(asio::ip::tcp::socket& socket, RunSecret& secret,
                                                const std::string* dialled);

}  // namespace isthmus::outer_sync::transport
