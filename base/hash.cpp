#include "isthmus/base/hash.h"

#include <openssl/evp.h>

#include <stdexcept>

namespace isthmus {

namespace {
// This fails only if memory has run out or OpenSSL is broken, which a user cannot fix.
void check(int ok) {
  if (ok != 1) throw std::runtime_error("OpenSSL cannot compute SHA-256");
}
}  // namespace

std::string Digest::hex() const {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const auto b : bytes) {
    text.push_back(digits[b >> 4]);
    text.push_back(digits[b & 15]);
  }
  return text;
}

struct Hasher::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { EVP_MD_CTX_free(context); }
  void start() { check(context == nullptr ? 0 : EVP_DigestInit_ex(context, EVP_sha256(), nullptr)); }
};

Hasher::Hasher() : state_(std::make_unique<State>()) { state_->start(); }
Hasher::~Hasher() = default;

Hasher& Hasher::update(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()));
  return *this;
}

Hasher& Hasher::update(std::string_view text) {
  return update(std::as_bytes(std::span(text.data(), text.size())));
}

Hasher& Hasher::update(std::uint64_t number) {
  std::array<std::byte, 8> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(number >> (8 * i));
  return update(bytes);
}

Digest Hasher::finish() {
  Digest digest;
  check(EVP_DigestFinal_ex(state_->context, digest.bytes.data(), nullptr));
  state_->start();
  return digest;
}

Digest hash_of(std::span<const std::byte> bytes) { return Hasher().update(bytes).finish(); }

}  // namespace isthmus
