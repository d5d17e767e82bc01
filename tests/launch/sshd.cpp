#include "sshd.h"

#include <pwd.h>
#include <unistd.h>

#include <stdexcept>

namespace isthmus {

namespace {
constexpr const char* server = "/usr/sbin/sshd";
constexpr const char* keygen = "/usr/bin/ssh-keygen";
}  // namespace

Sshd::Sshd() {
  for (const auto* program : {server, keygen}) {
    if (!std::filesystem::exists(program))
      throw NoSshd(std::string("there is no ") + program +
                   "; install openssh-server (scripts/setup.sh --tests)");
  }
  if (geteuid() == 0)
    std::filesystem::create_directories("/run/sshd");  // folder for the server's privilege separation
  const auto* entry = getpwuid(geteuid());
  if (entry == nullptr) throw NoSshd("this user has no name");
  user_ = entry->pw_name;
  for (const auto* key : {"host", "user", "other"}) make_key(key);
  folder_.write("known_hosts", known_line("host"));
  folder_.write("wrong_known_hosts", known_line("other"));
  const auto path = folder_.path().string();
  const auto config =
      folder_.write("sshd_config", "ListenAddress 127.0.0.1:" + std::to_string(port()) +
                                       "\nListenAddress 127.0.0.2:" + std::to_string(port()) + "\nHostKey " +
                                       path + "/host\nAuthorizedKeysFile " + path +
                                       "/user.pub\nPidFile none\nStrictModes no\nUsePAM no\n"
                                       "PasswordAuthentication no\nPermitRootLogin yes\n"
                                       "MaxStartups 100\n");
  server_ = std::make_unique<Command>(std::vector<std::string>{server, "-D", "-e", "-f", config.string()},
                                      folder_ / "sshd.log");
  const bool listens = eventually(
      [&] { return server_->output().find("Server listening") != std::string::npos || !server_->running(); });
  if (!listens || !server_->running()) throw NoSshd("sshd does not start here: " + server_->output());
}

void Sshd::make_key(const std::string& name) {
  const auto made = run_command({keygen, "-q", "-t", "ed25519", "-N", "", "-f", (folder_ / name).string()},
                                folder_ / "keygen.log");
  if (made.status != 0) throw NoSshd("ssh-keygen failed: " + made.output);
}

std::string Sshd::known_line(const std::string& key) const {
  const auto end = "]:" + std::to_string(port());
  return "[127.0.0.1" + end + ",[127.0.0.2" + end + " " + read_all(folder_ / (key + ".pub"));
}

std::string Sshd::launcher(const std::string& program, const std::filesystem::path& folder,
                           const std::string& more) const {
  return "launch: {ssh: " + user_at_host() + ", port: " + std::to_string(port()) +
         ", identity: " + (folder_ / "user").string() +
         ", options: [\"UserKnownHostsFile=" + (folder_ / "known_hosts").string() +
         "\", GlobalKnownHostsFile=/dev/null], program: " + program + ", folder: " + folder.string() +
         (more.empty() ? "" : ", " + more) + "}";
}

std::string Sshd::command() const {
  return "ssh -o GlobalKnownHostsFile=/dev/null -o UserKnownHostsFile=" + (folder_ / "known_hosts").string() +
         " -i " + (folder_ / "user").string() + " -p " + std::to_string(port()) + " " + user_ + "@{machine}";
}

const Sshd* shared_sshd(std::string& why) {
  static std::string reason;
  static const std::unique_ptr<Sshd> one = [] {
    try {
      return std::make_unique<Sshd>();
    } catch (const NoSshd& error) {
      reason = error.what();
      return std::unique_ptr<Sshd>();
    }
  }();
  why = reason;
  return one.get();
}

}  // namespace isthmus
