#include "net/link/run_secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <asio/buffer.hpp>
#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <cstring>
#include <string>
#include <string_view>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/text_file.h"
#include "isthmus/outer_sync/net/link/run_secret.h"

namespace isthmus::outer_sync {

namespace {

namespace fs = std::filesystem;
using asio::use_awaitable;
using transport::RunSecret;

using Block = RunSecret::Value;  // a secret, a nonce or a proof
constexpr std::array<std::uint8_t, 8> greeting = {'I', 'S', 'T', 'H', 'S', 'E', 'C', '2'};
constexpr std::string_view digits = "0123456789abcdef";

Block random_block() {
  Block block{};
  if (RAND_bytes(block.data(), static_cast<int>(block.size())) != 1)
    throw Error(ErrorKind::network, "the system cannot generate random numbers for the run's secret");
  return block;
}

/// Proof that one end knows the secret; valid only in this exchange and for the dialled process of this name.
Block proof_of(const Block& secret, std::string_view end, const Block& dialler, const Block& acceptor,
               const std::string& dialled) {
  std::string text(end);
  for (const auto* nonce : {&dialler, &acceptor}) text.append(nonce->begin(), nonce->end());
  text += dialled;
  Block proof{};
  unsigned size = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), proof.data(), &size);
  return proof;
}

bool same(const Block& a, const Block& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

template <class... Parts>
asio::awaitable<void> read_parts(asio::ip::tcp::socket& socket, const char* what, Parts&... parts) {
  const std::array<asio::mutable_buffer, sizeof...(parts)> buffers{asio::buffer(parts)...};
  asio::error_code error;
  co_await asio::async_read(socket, buffers, asio::redirect_error(use_awaitable, error));
  if (error == asio::error::operation_aborted)
    throw Error(ErrorKind::network, std::string(what) + " in time");
  if (error) throw Error(ErrorKind::network, what);
}

template <class... Parts>
asio::awaitable<void> write_parts(asio::ip::tcp::socket& socket, const Parts&... parts) {
  const std::array<asio::const_buffer, sizeof...(parts)> buffers{asio::buffer(parts)...};
  asio::error_code ignored;  // the next read reports the error
  co_await asio::async_write(socket, buffers, asio::redirect_error(use_awaitable, ignored));
}

asio::awaitable<void> show_as_dialler(asio::ip::tcp::socket& socket, RunSecret& secret,
                                      const std::string& dialled) {
  const auto own = random_block();
  co_await write_parts(socket, greeting, own);
  Block other{}, proof{};
  co_await read_parts(socket, "it has not shown the run's secret", other, proof);
  if (!same(proof, proof_of(secret.value(), "acceptor", own, other, dialled)))
    throw Error(ErrorKind::network, "its secret is not the one in " + secret.file().string() +
                                        ", or it is not " + dialled +
                                        ": it belongs to another run or another account");
  co_await write_parts(socket, proof_of(secret.value(), "dialler", own, other, dialled));
}

asio::awaitable<void> show_as_acceptor(asio::ip::tcp::socket& socket, RunSecret& secret) {
  constexpr const char* not_shown = "it has not shown the run's secret";
  auto began = greeting;
  Block other{}, proof{};
  co_await read_parts(socket, not_shown, began);
  if (began != greeting) throw Error(ErrorKind::network, not_shown);
  co_await read_parts(socket, not_shown, other);
  const auto own = random_block();
  co_await write_parts(socket, own, proof_of(secret.value(), "acceptor", other, own, secret.name()));
  co_await read_parts(socket, not_shown, proof);
  if (!same(proof, proof_of(secret.value(), "dialler", other, own, secret.name())))
    throw Error(ErrorKind::network,
                "its secret is not this run's, or it has dialled another process than this one");
}

/// The secret in the text; nullopt if it is invalid.
std::optional<Block> parsed(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  Block block{};
  if (text.size() != 2 * block.size()) return std::nullopt;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto digit = digits.find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    block[i / 2] = static_cast<std::uint8_t>(block[i / 2] << 4U | digit);
  }
  return block;
}

}  // namespace

std::string new_run_secret() {
  std::string text;
  for (const auto byte : random_block()) {
    text += digits[byte >> 4U];
    text += digits[byte & 15U];
  }
  return text + '\n';
}

void make_run_secret(const fs::path& file) {
  if (!fs::exists(file)) replace_file(file, new_run_secret(), File::Mode::secret);
}

}  // namespace isthmus::outer_sync

namespace isthmus::outer_sync::transport {

const RunSecret::Value& RunSecret::value() {
  if (value_) return *value_;
  constexpr std::size_t max_size = 4096;
  std::string text;
  try {
    text = read_text(file_, max_size);
  } catch (const Error& error) {
    throw Error(ErrorKind::config, std::string(error.what()) +
                                       "; this file holds the run's secret, which its coordinator creates: "
                                       "expected network.secret or --secret to name it");
  }
  using std::filesystem::perms;
  const auto open_to = std::filesystem::status(file_).permissions() & (perms::group_all | perms::others_all);
  if (open_to != perms::none)
    throw Error(ErrorKind::config,
                file_.string() +
                    " can be read or written by other accounts; chmod 600 it, or remove it "
                    "and start the run again");
  value_ = parsed(text);
  if (!value_)
    throw Error(ErrorKind::data, file_.string() +
                                     " holds no secret; expected 64 hexadecimal digits, as the "
                                     "coordinator writes them");
  return *value_;
}

std::shared_ptr<RunSecret> secret_of(const NetworkConfig& network) {
  if (network.secret.empty() || !network.certs.empty()) return nullptr;
  return std::make_shared<RunSecret>(network.secret);
}

asio::awaitable<void> show_secret(asio::ip::tcp::socket& socket, RunSecret& secret,
                                  const std::string* dialled) {
  static_cast<void>(secret.value());  // may throw, so before anything is sent
  return dialled != nullptr ? show_as_dialler(socket, secret, *dialled) : show_as_acceptor(socket, secret);
}

}  // namespace isthmus::outer_sync::transport
