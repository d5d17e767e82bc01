#pragma once
// A real ssh server on loopback with keys of its own, in a folder of its own: nobody's ~/.ssh is touched.

#include <cstdint>
#include <memory>
#include <string>

#include "command.h"
#include "reserved_port.h"
#include "temporary_folder.h"

namespace isthmus {

class Sshd {
 public:
  /// Listens when this returns. Throws NoSshd with the reason where there can be none.
  Sshd();

  /// `launch: {...}` for a site of this server with that program and folder there; `more` goes inside.
  [[nodiscard]] std::string launcher(const std::string& program, const std::filesystem::path& folder,
                                     const std::string& more = {}) const;
  [[nodiscard]] std::string user_at_host() const { return user_ + "@127.0.0.1"; }
  [[nodiscard]] std::uint16_t port() const { return port_.number(); }
  /// What a client has noted of another server at this address.
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

/// The one that all tests of a program share. Null where there is none, with `why`.
[[nodiscard]] const Sshd* shared_sshd(std::string& why);

}  // namespace isthmus
