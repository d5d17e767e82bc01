// A round log with arbitrary damage: replay refuses it or returns parameters that the run has had, and a
// writer refuses or continues it.
//
// Input: a byte that says which hashes are repaired after the damage (bit 0: the checksums of records, bit 1:
// also the header's), then edits of four bytes: the file (low bits; bit 6: cut the file at the place), two
// bytes of place, and a byte to add there.

#include <filesystem>
#include <fstream>
#include <map>

#include "fuzz_folder.h"
#include "fuzz_support.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/log/chain.h"
#include "isthmus/outer_sync/log/replay.h"
#include "isthmus/outer_sync/log/round_log.h"
#include "log/records.h"

using namespace isthmus;
using namespace isthmus::outer_sync;
using quant::require;

namespace {

namespace fs = std::filesystem;
using File = std::vector<std::uint8_t>;
using FloatVector = AlignedVector<float>;

constexpr FragmentId fragments = 2;
constexpr protocol::Round rounds = 3;
constexpr std::uint64_t plenty = 1 << 20;

/// A small undamaged log and the states that it contains.
struct Sound {
  log::LogHeader header;
  std::map<std::string, File> files;
  std::vector<FloatVector> theta[fragments];               ///< by round
  std::vector<protocol::FragmentState> states[fragments];  ///< by round

  explicit Sound(const fs::path& folder) {
    header.run = "fuzz";
    header.fragments = {{0, 20}, {24, 9}};
    header.chunk_elements = 16;
    header.codec = {.kind = quant::CodecKind::int8, .block = 16};
    header.tensors = {{"a", {4, 5}, {0, 20}}};
    {
      log::RoundLog out(folder, header, plenty, std::vector<protocol::FragmentState>(fragments));
      for (FragmentId p = 0; p < fragments; ++p) write(p, out);
    }
    for (const auto& entry : fs::directory_iterator(folder)) {
      std::ifstream in(entry.path(), std::ios::binary);
      files[entry.path().filename().string()] = File(std::istreambuf_iterator<char>(in), {});
    }
    require(files.size() == 1 + fragments, "the log has unexpected files");
  }

  void write(FragmentId p, log::RoundLog& out) {
    const FragmentLayout layout(header.fragments, header.chunk_elements);
    const auto n = layout.fragment(p).size;
    FloatVector values(n, 0.5F), velocity(n, 0.0F), local(n, 0.0F);
    protocol::FragmentState state;
    const quant::OuterStep rule;
    const auto keep = [&] {
      theta[p].push_back(values);
      states[p].push_back(state);
    };
    keep();
    out.snapshot(p, state, std::make_shared<const FloatVector>(values),
                 std::make_shared<const FloatVector>(velocity));
    while (state.round < rounds) {
      std::vector<protocol::SharedBytes> results;
      std::vector<std::span<const std::byte>> spans;
      for (auto k = layout.chunks_of(p).first; k < layout.chunks_of(p).last; ++k) {
        const auto size = layout.chunk(k).size, at = layout.place_in_fragment(k);
        auto bytes = std::make_shared<Bytes>(quant::encoded_size(header.codec, size));
        const auto gradient = quant::some_values(size, 0.1F * static_cast<float>(state.round + 1));
        require(!quant::encode(header.codec, gradient, {}, {}, *bytes), "a value that cannot be encoded");
        const auto part = [&](FloatVector& all) { return std::span(all).subspan(at, size); };
        require(quant::decode_apply(header.codec, *bytes, rule, part(values), part(velocity), part(local)),
                "a result that does not decode");
        spans.emplace_back(*bytes);
        results.push_back(std::move(bytes));
      }
      state = {state.round + 1, log::next_chain(state.chain, p, state.round + 1, spans)};
      keep();
      out.append(p, state, {rule}, results);
    }
  }
};

/// Sets the last 32 bytes of `bytes` to the hash of a seed and the bytes before them.
void make_good(std::span<const std::uint8_t> seed, std::span<std::uint8_t> bytes) {
  if (bytes.size() < sizeof(Digest::bytes)) return;
  const auto covered = bytes.first(bytes.size() - sizeof(Digest::bytes));
  const auto digest = Hasher().update(std::as_bytes(seed)).update(std::as_bytes(covered)).finish();
  std::ranges::copy(digest.bytes, bytes.end() - sizeof(Digest::bytes));
}

/// Assumes the record positions of the undamaged log.
void make_good(const Sound& sound, FragmentId p, std::span<const std::uint8_t> seed, File& file) {
  std::size_t at = 0;
  for (auto kind = log::RecordKind::snapshot;; kind = log::RecordKind::round) {
    const auto size = log::record_size(sound.header, p, kind);
    if (file.size() - at < size) return;
    make_good(seed, std::span(file).subspan(at, size));
    at += size;
  }
}

void damage(File& file, bool cut, std::size_t at, std::uint8_t add) {
  if (file.empty()) return;
  at %= file.size();
  if (cut) {
    file.resize(at);
  } else {
    file[at] = static_cast<std::uint8_t>(file[at] + add);
  }
}

void put(const fs::path& folder, const std::map<std::string, File>& files) {
  for (const auto& entry : fs::directory_iterator(folder)) fs::remove(entry.path());
  for (const auto& [name, bytes] : files) {
    std::ofstream(folder / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
}

/// If no hash was repaired, the replayed state must be one of the run's.
void check(const Sound& sound, const log::Replayed& run) {
  require(run.header == sound.header, "a header that differs from the run's");
  for (FragmentId p = 0; p < fragments; ++p) {
    const auto& state = run.fragments[p].state;
    require(state.round <= rounds && state == sound.states[p][state.round], "a state that the run never had");
    const auto& range = sound.header.fragments[p];
    require(std::memcmp(run.parameters.data() + range.begin, sound.theta[p][state.round].data(),
                        range.size * sizeof(float)) == 0,
            "parameters that the run never had");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  static const Sound sound(folder.path);
  if (size == 0) return 0;
  const bool good_records = (data[0] & 1) != 0, good_header = (data[0] & 2) != 0;
  auto files = sound.files;
  for (std::size_t at = 1; at + 4 <= size; at += 4) {
    auto& file = std::next(files.begin(), data[at] % 64 % static_cast<int>(files.size()))->second;
    damage(file, (data[at] & 64) != 0, static_cast<std::size_t>(data[at + 1] | data[at + 2] << 8),
           data[at + 3]);
  }
  auto& header = files[log::header_name];
  if (good_header) make_good({}, header);
  if (good_records) {
    const auto seed = hash_of(std::as_bytes(std::span(header)));
    for (FragmentId p = 0; p < fragments; ++p)
      make_good(sound, p, seed.bytes, files[log::fragment_file("", p, 0).string()]);
  }
  put(folder.path, files);
  try {
    const auto run = log::replay(folder.path);
    if (!good_records && !good_header) check(sound, run);
  } catch (const Error& error) {
    require(error.kind() != ErrorKind::network, "an error of another kind");
  }
  try {
    const std::vector<protocol::FragmentState> now = {sound.states[0][1], sound.states[1][rounds]};
    const log::RoundLog on(folder.path, sound.header, plenty, now);
  } catch (const Error& error) {
    require(error.kind() != ErrorKind::network, "an error of another kind");
  }
  return 0;
}
