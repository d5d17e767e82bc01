#pragma once
// A connected socket between rank 0 of a replica and one of its other ranks: orders one way, answers the
// other. Both ends are processes of one binary on one machine, parent and child, over a pair of sockets that
// nobody else can reach, so structs travel as they lie in memory.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/layout.h"

namespace isthmus::trainer {

/// What rank 0 tells the others to do. Whatever a rank does, it does by one of these: none decides anything.
struct RankOrder {
  enum class What : std::uint32_t {
    meet,          ///< join the group
    train,         ///< forward and backward pass of the ids that follow; answer; average the gradient
    step,          ///< one inner step
    parameters,    ///< take rank 0's values of a range
    give_moments,  ///< answer, with those of a range that are held here: all first ones, then all second ones
    take_moments,  ///< in the same order they follow
    steps,         ///< take over a count of inner steps
    forget,        ///< the moments
    checksum,      ///< answer with that of the parameters
    end
  } what = What::end;
  bool gradient_from_rank_0 = false;  ///< step: it was changed there since it was averaged
  double lr = 0;                      ///< step
  outer_sync::Range range = {};       ///< parameters and moments: of the flat buffer
  std::uint64_t steps = 0;            ///< steps
  // train: rows of seq_len + 1 ids of `width` bytes, one after another.
  std::uint64_t sequences = 0;
  std::int64_t seq_len = 0;
  std::uint32_t width = 0;
};

struct RankAnswer {
  float loss = 0;                ///< train
  std::uint32_t parameters = 0;  ///< checksum: their CRC32C
};

class RankLink {
 public:
  /// Takes the socket over.
  explicit RankLink(int socket) : socket_(socket) {}
  ~RankLink();
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

  // All block until it is done, and throw Error(network) when the other end is gone.

  void send(const RankOrder& order);
  [[nodiscard]] RankOrder order();
  void send(const RankAnswer& answer);
  /// In place of an answer: why there will be none.
  void send_failure(const Error& error);
  /// Throws what `send_failure` sent.
  [[nodiscard]] RankAnswer answer();

  void send_bytes(std::span<const std::byte> bytes);
  void receive_bytes(std::span<std::byte> bytes);
  /// With their length before them.
  void send_text(const std::string& text);
  [[nodiscard]] std::string text();

 private:
  int socket_;
};

}  // namespace isthmus::trainer
