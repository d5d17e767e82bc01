#pragma once
// The checkpoints of a run at one site, over the ssh that `launch` uses (agent/model_messages.h). Used by one
// thread, which blocks. Everything received is untrusted: lengths are limited, and the caller checks the
// files.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "launch/agent/agent_messages.h"
#include "run/experiment/sites.h"
#include "run/process/process.h"

namespace isthmus::app {

/// A checkpoint that a site offers.
struct SiteCheckpoint {
  std::string worker;
  std::uint64_t step = 0;
  std::string agreed;  ///< SHA-256 of the state that all replicas share, in hex
  friend bool operator==(const SiteCheckpoint&, const SiteCheckpoint&) = default;
};

class SiteModels {
 public:
  /// Begins to connect. The site must outlive this.
  SiteModels(const Site& site, const std::string& run);
  ~SiteModels();
  SiteModels(const SiteModels&) = delete;
  SiteModels& operator=(const SiteModels&) = delete;

  [[nodiscard]] const Site& site() const { return site_; }
  /// Blocks until the site has said what it has. Throws Error(network) or Error(data) with the site's name,
  /// as all functions here.
  void connect();
  [[nodiscard]] const std::vector<SiteCheckpoint>& checkpoints() const { return checkpoints_; }
  /// Name of the tokenizer's file there; empty without one.
  [[nodiscard]] const std::string& tokenizer() const { return tokenizer_; }

  /// Receives a file in pieces; `done` and `all` count its bytes.
  using Take = std::function<void(std::span<const std::byte> piece, std::uint64_t done, std::uint64_t all)>;
  /// The part of a checkpoint that holds the global parameters and the config, itself a checkpoint file of at
  /// most `most` bytes.
  void fetch(const SiteCheckpoint& checkpoint, std::uint64_t most, const Take& take);
  [[nodiscard]] std::string fetch_tokenizer();

 private:
  void say(const Message& message);
  [[nodiscard]] Message answer(std::chrono::seconds limit);
  void receive_file(std::uint64_t most, const Take& take);
  void receive(std::chrono::seconds limit);
  void take_errors();
  [[noreturn]] void fail(const std::string& why, bool network) const;
  [[noreturn]] void fail_at_end();

  const Site& site_;
  std::unique_ptr<Process> ssh_;
  int input_ = -1, output_ = -1, errors_ = -1;  ///< our ends of its pipes
  std::string received_;                        ///< and not used yet; at most one message and one piece
  LineBuffer error_lines_;
  std::string last_error_;
  std::vector<SiteCheckpoint> checkpoints_;
  std::string tokenizer_;
};

}  // namespace isthmus::app
