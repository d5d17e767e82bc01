#pragma once
// Names of the objects that carry streams between members: RUN/mail/TO/FROM/STREAM-SIDE/NUMBER. A stream has
// two sides, each with consecutively numbered pieces; an empty piece ends its side. Pure. The names in a
// listing are not trusted.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace isthmus::outer_sync::transport {

/// Which end of a stream has written a piece.
enum class MailSide : char { dialler = 'd', acceptor = 'a' };

/// One side of a stream.
struct MailAddress {
  std::string from, to;
  std::uint64_t stream = 0;  ///< random
  MailSide side = MailSide::dialler;
  friend auto operator<=>(const MailAddress&, const MailAddress&) = default;
};

/// RUN/mail/ holds everything, RUN/mail/NAME/ what is addressed to a member.
[[nodiscard]] std::string mail_prefix(const std::string& run, const std::string& to = {});
/// Prefix of the pieces of one side, with a slash at its end.
[[nodiscard]] std::string mail_prefix(const std::string& run, const MailAddress& address);
[[nodiscard]] std::string mail_key(const std::string& run, const MailAddress& address, std::uint64_t number);

struct MailPiece {
  MailAddress address;
  std::uint64_t number = 0;
};
/// nullopt for an object that is no piece.
[[nodiscard]] std::optional<MailPiece> mail_piece(const std::string& run, std::string_view key);

/// The host in the address of a member that is reached through the mailbox: NAME.mailbox.
[[nodiscard]] std::string mailbox_host(const std::string& name);
inline constexpr std::uint16_t mailbox_port = 1;  ///< only so that addresses have one
/// The member's name in such a host; nullopt for another host.
[[nodiscard]] std::optional<std::string> mailbox_name(std::string_view host);

}  // namespace isthmus::outer_sync::transport
