#include "net/mailbox/mail_names.h"

#include <fmt/format.h>

#include <array>

#include "isthmus/base/number.h"

namespace isthmus::outer_sync::transport {
namespace {

constexpr std::string_view host_suffix = ".mailbox";
constexpr int hexadecimal = 16;
constexpr std::size_t stream_digits = 16;

}  // namespace

std::string mail_prefix(const std::string& run, const std::string& to) {
  return to.empty() ? run + "/mail/" : fmt::format("{}/mail/{}/", run, to);
}

std::string mail_prefix(const std::string& run, const MailAddress& address) {
  return fmt::format("{}{}/{:016x}-{}/", mail_prefix(run, address.to), address.from, address.stream,
                     static_cast<char>(address.side));
}

std::string mail_key(const std::string& run, const MailAddress& address, std::uint64_t number) {
  return fmt::format("{}{:012}", mail_prefix(run, address), number);
}

std::optional<MailPiece> mail_piece(const std::string& run, std::string_view key) {
  const auto begin = mail_prefix(run);
  if (!key.starts_with(begin)) return std::nullopt;
  auto rest = key.substr(begin.size());
  std::array<std::string_view, 3> parts;
  for (auto& part : parts) {
    const auto slash = rest.find('/');
    if (slash == std::string_view::npos || slash == 0) return std::nullopt;
    part = rest.substr(0, slash);
    rest.remove_prefix(slash + 1);
  }
  const auto& [to, from, stream] = parts;
  if (stream.size() != stream_digits + 2 || stream[stream_digits] != '-') return std::nullopt;
  const auto number = whole_number(rest);
  const auto id = whole_number(stream.substr(0, stream_digits), hexadecimal);
  const char side = stream.back();
  if (!number || !id || (side != 'd' && side != 'a')) return std::nullopt;
  MailPiece piece{{std::string(from), std::string(to), *id, static_cast<MailSide>(side)}, *number};
  // Another spelling of the same piece would be another object.
  if (mail_key(run, piece.address, piece.number) != key) return std::nullopt;
  return piece;
}

std::string mailbox_host(const std::string& name) { return name + std::string(host_suffix); }

std::optional<std::string> mailbox_name(std::string_view host) {
  if (!host.ends_with(host_suffix) || host.size() == host_suffix.size()) return std::nullopt;
  return std::string(host.substr(0, host.size() - host_suffix.size()));
}

}  // namespace isthmus::outer_sync::transport
