#pragma once
// A real ssh server on two addresses of loopback with its own keys and folder. It does not use any ~/.ssh.

#include <cstdint>
#include <memory>
#include <string>

#include "command.h"
#include "reserved_port.h"
#include "temporary_folder.h"

namespace isthmus {

class Sshd {
 public:
  /// Listens once constructed. Throws NoSshd with the reason if no server can run.
  Sshd();

  /// `launch: {...}` for a site on this server, with this program and folder there; adds the entries of
  /// `more`.
  [[nodiscard]] std::string launcher(const std::string& program, const std::filesystem::path& folder,
                                     const std::string& more = {}) const;
  /// `ssh ...` up to {machine}, 127.0.0.1 or 127.0.0.2, in words separated by spaces.
  [[nodiscard]] std::string command() const;
  [[nodiscard]] std::string user_at_host() const { return user_ + "@127.0.0.1"; }
  [[nodiscard]] std::uint16_t port() const { return port_.number(); }
  /// A known_hosts file with a different key for this address.
  [[nodiscard]] std::filesystem::path wrong_known_hosts() const { return folder_ / "wrong_known_hosts"; }

 private:
  void make_key(const std::string& name);
  [[nodiscard]] std::string known_line(const std::string& key) const;

  TemporaryFolder folder_;
  std::string user_;
  ReservedPort port_;
  std::unique_ptr<Command> server_;
};

class NoSshd : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The server shared by all tests of a program. If it cannot run, returns null and sets `why`.
[[nodiscard]] const Sshd* shared_sshd(std::string& why);

}  // namespace isthmus
