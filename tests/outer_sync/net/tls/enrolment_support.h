#pragma once
// Invitations of an authority and the newcomers that use them, for tests of enrolment.

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>

#include "isthmus/base/archive.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "isthmus/outer_sync/tls/enrolment.h"
#include "isthmus/outer_sync/tls/invitations.h"
#include "isthmus/outer_sync/tls/join_token.h"
#include "isthmus/outer_sync/tls/newcomer.h"
#include "temporary_folder.h"
#include "tls/credentials.h"
#include "tls/openssl.h"

namespace isthmus::outer_sync {

using namespace std::chrono_literals;

inline const tls::Invitations::Time noon{1'700'000'000s};

/// The text of the error that `work` throws.
template <class Work>
std::string error_text(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// An authority in a folder of its own, and the desk that answers newcomers.
class Enrolment : public testing::Test {
 protected:
  [[nodiscard]] tls::JoinToken invite(const std::string& name, std::chrono::seconds lifetime = 1h,
                                      tls::Invitations::Time now = noon) const {
    return {.run = "test",
            .name = name,
            .coordinator = "127.0.0.1:1",
            .authority = authority.fingerprint(),
            .secret = authority.invite(name, tls::usual_role(name), now, lifetime, 10)};
  }
  [[nodiscard]] tls::NewcomerFolder folder(const std::string& name) const {
    return tls::NewcomerFolder(files / name);
  }
  tls::EnrolmentDesk::Reply ask(const tls::EnrolmentRequest& request, const std::string& from = "192.0.2.1",
                                tls::Invitations::Time now = noon) {
    return desk.answer(to_bytes(request), from, now);
  }
  void expect_refusal(const tls::EnrolmentDesk::Reply& reply, const std::string& why) {
    EXPECT_EQ(to_bytes(reply.answer), to_bytes(tls::EnrolmentAnswer{}))
        << "a stranger must learn nothing more";
    EXPECT_THAT(reply.line, testing::HasSubstr(why));
  }

  [[nodiscard]] static long lines_of(const std::filesystem::path& file) {
    return std::ranges::count(read_all(file), '\n');
  }
  [[nodiscard]] int revoked_entries() const {
    const auto list = tls::read_revocations(files / "test/ca.crl");
    return sk_X509_REVOKED_num(X509_CRL_get_REVOKED(list.get()));
  }

  TemporaryFolder files;
  tls::Authority authority = tls::Authority::create(files / "test", "test");
  tls::EnrolmentDesk desk{authority, "run: {name: test}\n"};
};

}  // namespace isthmus::outer_sync
