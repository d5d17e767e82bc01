// A chunk store with arbitrary damage: it is refused, or returns the ids that were written. If its checksums
// were repaired, its ids are at least bounded in number and within the vocabulary.
//
// Input: a byte of options (bit 0: repair checksums, bits 1 and 2: the codec), then edits of four bytes: the
// file (bit 0; bit 6: cut it at the place), two bytes of place, and a byte to add there.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "fuzz_folder.h"
#include "fuzz_support.h"
#include "isthmus/base/checksum.h"
#include "isthmus/base/error.h"
#include "store/store_format.h"
#include "store/store_reader.h"
#include "store/store_writer.h"

using namespace isthmus;
using namespace isthmus::data;
using quant::require;

namespace {

namespace fs = std::filesystem;
using File = std::vector<std::uint8_t>;
using Files = std::map<std::string, File>;

constexpr std::uint32_t vocab_size = 300, block_tokens = 32, tokens = 80;

std::uint32_t id_of(std::uint64_t i) {
  return static_cast<std::uint32_t>(i * i % 7 + (i % 5 == 0 ? 290 : 0));
}

/// A small undamaged store.
Files sound_store(StoreCodec codec) {
  const Folder folder;
  StoreSpec spec;
  spec.vocab_size = vocab_size;
  spec.codec = codec;
  spec.level = codec == StoreCodec::none ? 0 : 1;
  spec.block_tokens = block_tokens;
  std::vector<std::uint32_t> ids(tokens);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = id_of(i);
  const std::uint64_t starts[] = {0, 3, 40, 41, 79};
  write_store(folder.path / "s", spec, ids, starts);
  Files files;
  for (const auto& entry : fs::directory_iterator(folder.path / "s")) {
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().filename().string()] = File(std::istreambuf_iterator<char>(in), {});
  }
  require(files.size() == 2, "the store has unexpected files");
  return files;
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

void put(File& file, std::size_t at, const void* from, std::size_t size) {
  std::memcpy(file.data() + at, from, size);
}

/// Recomputes the checksums of the blocks in the entries, and the header's hashes of the entries and of
/// itself.
void make_good(Files& files) {
  auto& index = files[store::index_name];
  const auto& blocks = files[store::blocks_name];
  if (index.size() < store::header_bytes) return;
  std::uint64_t begin = 0;
  for (auto at = store::header_bytes; at + store::entry_bytes <= index.size(); at += store::entry_bytes) {
    store::Entry entry;
    std::memcpy(&entry, index.data() + at, sizeof entry);
    if (entry.end < begin || entry.end > blocks.size()) break;
    entry.checksum = crc32c(std::as_bytes(std::span(blocks)).subspan(begin, entry.end - begin));
    put(index, at, &entry, sizeof entry);
    begin = entry.end;
  }
  const auto entries = hash_of(std::as_bytes(std::span(index).subspan(store::header_bytes)));
  constexpr auto own = store::header_bytes - sizeof(Digest::bytes), theirs = own - sizeof(Digest::bytes);
  put(index, theirs, entries.bytes.data(), entries.bytes.size());
  const auto header = hash_of(std::as_bytes(std::span(index).first(own)));
  put(index, own, header.bytes.data(), header.bytes.size());
}

void check(const StoreReader& store, bool made_good) {
  // A store with repaired checksums can claim any number of tokens; do not allocate memory for very many.
  if (store.tokens() > std::uint64_t{1} << 24) return;
  std::uint64_t documents = 0;
  for (std::uint64_t block = 0; block < store.info().blocks(); ++block) documents += store.verify(block);
  require(documents == store.info().documents, "wrong count of documents");
  require(store.heldout_begin(10) <= store.tokens(), "a held-out part that begins past the end");
  std::vector<std::byte> ids(store.tokens() * store.width());
  store.read(0, store.tokens(), ids.data());
  for (std::uint64_t i = 0; i < store.tokens(); ++i) {
    std::uint32_t id = 0;
    std::memcpy(&id, ids.data() + i * store.width(), store.width());
    require(id < store.info().spec.vocab_size, "an id outside the vocabulary");
    if (!made_good) require(store.tokens() == tokens && id == id_of(i), "an id that was never written");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  static const Files sound[] = {sound_store(StoreCodec::none), sound_store(StoreCodec::zstd),
                                sound_store(StoreCodec::lz4)};
  if (size == 0) return 0;
  const bool made_good = (data[0] & 1) != 0;
  auto files = sound[data[0] / 2 % 4 % 3];
  for (std::size_t at = 1; at + 4 <= size; at += 4) {
    auto& file = files[(data[at] & 1) != 0 ? store::blocks_name : store::index_name];
    damage(file, (data[at] & 64) != 0, static_cast<std::size_t>(data[at + 1] | data[at + 2] << 8),
           data[at + 3]);
  }
  if (made_good) make_good(files);
  for (const auto& [name, bytes] : files) {
    std::ofstream(folder.path / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  try {
    check(StoreReader(folder.path), made_good);
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::data, "an error of another kind");
  }
  return 0;
}
