#pragma once
// A connected socket between rank 0 of a replica and one of its other ranks: orders one way, answers the
// other. Both ends are processes of one build: parent and child over a socket pair that no other process can
// reach, which ssh may extend to another machine. So structs are sent as they are in memory.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/layout.h"

namespace isthmus::trainer {

/// An order from rank 0 to the other ranks, which act only on orders and decide nothing themselves.
struct RankOrder {
  enum class What : std::uint32_t {
    meet,              ///< join the group
    train,             ///< forward and backward pass of the ids that follow; answer
    step,              ///< one inner step
    average_gradient,  ///< average the gradient of the last batch
    average,           ///< average the parameters in a range
    average_moments,
    parameters,    ///< receive rank 0's values of a range
    give_moments,  ///< answer, then send the moments of a range that are held here: all first ones, then all
                   ///< second ones
    take_moments,  ///< receive moments of a range: with ZeRO-1 in the same order, else rank 0's
    steps,         ///< set the count of inner steps
    forget,        ///< reset the moments
    checksum,      ///< answer with the checksum of the parameters
    here,          ///< nothing to do: rank 0 is there
    end
  } what = What::end;
  bool average_gradient = false;      ///< train: average the gradient at once
  bool answers = false;               ///< step: answer
  bool gradient_from_rank_0 = false;  ///< step: the gradient was changed on rank 0 since it was averaged
  double lr = 0;                      ///< step
  outer_sync::Range range = {};       ///< average, parameters, moments: a range of the flat buffer
  std::uint64_t steps = 0;            ///< steps
  // train: rows of seq_len + 1 ids of `width` bytes, one after another, follow.
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
  /// Takes ownership of the socket. `other`: the other end, for messages.
  explicit RankLink(int socket, std::string other = "a rank of this replica")
      : socket_(socket), other_(std::move(other)) {}
  ~RankLink();
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

  // All functions block until they are done, and throw Error(network) if the other end is gone.

  /// The payload follows the order. Safe from several threads.
  void send(const RankOrder& order, std::span<const std::span<const std::byte>> payload = {});
  [[nodiscard]] RankOrder order();
  void send(const RankAnswer& answer);
  /// Sends, instead of an answer, why there will not be one.
  void send_failure(const Error& error);
  /// Throws the error that `send_failure` sent.
  [[nodiscard]] RankAnswer answer();

  /// Sends the order `here`, unless another thread sends, or the other end takes nothing at present. Errors
  /// are for the others to notice.
  void show_presence() noexcept;

  /// Ends all calls that wait for the other end. Safe from any thread.
  void abort() noexcept;

  void send_bytes(std::span<const std::byte> bytes);
  void receive_bytes(std::span<std::byte> bytes);
  /// The length is sent before the text.
  void send_text(const std::string& text);
  [[nodiscard]] std::string text();

 private:
  int socket_;
  std::string other_;
  std::mutex sending_;
};

}  // namespace isthmus::trainer
