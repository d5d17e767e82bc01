#pragma once
// Messages between a site and a machine that fetches a run's model from it: JSON, one message per line
// (agent_messages.h), with the bytes of a file after the message that announces them. Both sides treat input
// as untrusted.
//
//   site     {"gives": 1, "build": "...", "checkpoints": [{"worker": "eu", "step": 40, "agreed": "4f..."}],
//             "tokenizer": "tokenizer.json"}         "agreed": SHA-256 of the run's state; no tokenizer: ""
//   fetcher  {"give": "checkpoint", "worker": "eu", "step": 40}     {"give": "tokenizer"}
//   site     {"bytes": 1000}, then 1000 bytes        {"failed": "cannot read ..."}
// The fetcher ends the exchange by closing its end.

#include <cstddef>

namespace isthmus::app {

inline constexpr int model_protocol = 1;
/// Checkpoints that a site offers for each worker, the newest ones.
inline constexpr std::size_t max_offered = 32;
/// Limit of a tokenizer's file.
inline constexpr std::size_t max_tokenizer_bytes = std::size_t{64} << 20;

}  // namespace isthmus::app
