// Tokens and invitations: which newcomers get a certificate, and what others learn.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "enrolment_support.h"
#include "isthmus/base/random.h"
#include "tls/request.h"

namespace isthmus::outer_sync {
namespace {

using testing::HasSubstr;
using testing::Not;
using tls::Authority;
using tls::EnrolmentAnswer;
using tls::EnrolmentRequest;
using tls::JoinToken;

std::string random_word(std::uint64_t seed) {
  static constexpr std::string_view letters = "abcXYZ019._-";
  std::string word(1 + random_bits(1, seed, 0) % 64, 'a');
  for (std::size_t i = 1; i < word.size(); ++i) word[i] = letters[random_bits(1, seed, i) % letters.size()];
  return word;
}

JoinToken random_token(std::uint64_t seed) {
  JoinToken token;
  token.run = random_word(2 * seed);
  token.name = random_word(2 * seed + 1);
  token.coordinator = "[::1]:7000";
  if (seed % 2 == 0) token.coordinator += ", third.example:" + std::to_string(seed % 65536);
  for (std::size_t i = 0; i < 32; ++i)
    token.authority.bytes[i] = static_cast<std::uint8_t>(random_bits(2, seed, i));
  for (std::size_t i = 0; i < 16; ++i)
    token.secret.bytes[i] = static_cast<std::uint8_t>(random_bits(3, seed, i));
  return token;
}

// ---- tokens ----

TEST(JoinTokens, AreReadBackAndNothingElseIs) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto token = random_token(seed);
    const auto text = tls::to_text(token);
    ASSERT_EQ(tls::parse_token(text), token) << text;
    // Cut the token, lengthen it, and change any one character.
    const auto at = random_bits(4, seed, 0) % text.size();
    auto changed = text;
    changed[at] = changed[at] == 'A' ? 'B' : 'A';
    for (const auto& wrong : {text.substr(0, at), text + 'A', changed}) {
      EXPECT_THROW((void)tls::parse_token(wrong), Error) << wrong;
    }
  }
}

TEST(JoinTokens, AnyTextIsReadOrRefusedInWords) {
  constexpr std::string_view usual = "isthmus1.ABCabc-_\n\xff\0=/";
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    std::string text = seed % 3 == 0 ? "" : "isthmus1.";
    const auto size = random_bits(5, seed, 0) % 200;
    for (std::size_t i = 0; i < size; ++i) text += usual[random_bits(6, seed, i) % usual.size()];
    EXPECT_THAT(error_text([&] { (void)tls::parse_token(text); }), HasSubstr("the token ")) << text;
  }
  EXPECT_THAT(error_text([&] { (void)tls::parse_token("isthmus1." + std::string(1 << 20, 'A')); }),
              HasSubstr("is too long"));
  auto outside = random_token(1);
  outside.name = "../r0";
  EXPECT_THAT(error_text([&] { (void)tls::parse_token(tls::to_text(outside)); }),
              HasSubstr("expected up to 64"));
}

// ---- invitations ----

TEST_F(Enrolment, GivesACertificateForAKeyThatStaysWhereItIs) {
  const auto token = invite("r9");
  const auto own = folder("r9");
  const auto request = own.request(token);
  const auto key = read_all(files / "r9/key.pem");
  EXPECT_THAT(request.request, Not(HasSubstr("PRIVATE")));
  const auto reply = ask(request);
  EXPECT_THAT(reply.line, HasSubstr("r9 has its certificate"));
  EXPECT_EQ(reply.answer.config, "run: {name: test}\n");
  EXPECT_EQ(reply.answer.seen_as, "192.0.2.1");
  EXPECT_FALSE(own.enrolled());
  own.complete(token, reply.answer);
  EXPECT_TRUE(own.enrolled());
  const tls::Credentials credentials(files / "r9");
  EXPECT_EQ(credentials.name(), "r9");
  EXPECT_EQ(credentials.run(), "test");
  EXPECT_THAT(read_all(files / "r9/cert.pem"), HasSubstr(key));
  EXPECT_FALSE(std::filesystem::exists(files / "r9/key.pem"));
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(files / "r9").permissions(), perms::owner_all);
  EXPECT_EQ(std::filesystem::status(files / "r9/cert.pem").permissions(),
            perms::owner_read | perms::owner_write);
  // The certificate is on record like any other.
  authority.revoke("r9");
  EXPECT_THAT(error_text([&] {
                std::filesystem::copy_file(files / "test/ca.crl", files / "r9/ca.crl");
                const tls::Credentials refused(files / "r9");
              }),
              HasSubstr("revoked"));
}

TEST_F(Enrolment, TheCertificateHasTheInvitationsRole) {
  auto token = invite("watch");
  token.secret = authority.invite("watch", tls::Role::observer, noon, 1h, 10);
  const auto own = folder("watch");
  own.complete(token, ask(own.request(token)).answer);
  EXPECT_EQ(tls::role_of(tls::read_certificate(files / "watch/cert.pem").get()), tls::Role::observer);
}

TEST_F(Enrolment, IsGoodOnceForTheFirstKeyAndInTime) {
  const auto token = invite("r9");
  const auto request = folder("r9").request(token);
  ASSERT_TRUE(ask(request).answer.accepted());
  expect_refusal(ask(folder("thief").request(token)), "the invitation of r9 was used before");
  // Suppose the answer was lost: a request with the same key is from the same newcomer.
  EXPECT_EQ(folder("r9").request(token).secret, request.secret);
  EXPECT_TRUE(ask(folder("r9").request(token)).answer.accepted());
  expect_refusal(ask(request, "192.0.2.1", noon + 1h), "has expired");
  const auto late = invite("r8", 10s);
  EXPECT_TRUE(desk.open(noon + 9s));
  expect_refusal(ask(folder("r8").request(late), "192.0.2.1", noon + 10s),
                 "the invitation of r8 has expired");
  EXPECT_FALSE(desk.open(noon + 2h));
}

TEST_F(Enrolment, AnInvitationIsForOneCertificate) {
  const auto request = folder("r9").request(invite("r9"));
  const auto first = ask(request).answer.certificate;
  for (int i = 1; i < tls::RateLimit::most; ++i) EXPECT_EQ(ask(request).answer.certificate, first);
  expect_refusal(ask(request, "192.0.2.7"), "the invitation of r9 is requested too often");
  EXPECT_EQ(ask(request, "192.0.2.7", noon + 61s).answer.certificate, first);
  EXPECT_EQ(lines_of(files / "test/issued"), 1);
}

TEST_F(Enrolment, RevokingANameEndsItsInvitationsUsedOrNot) {
  const auto used = folder("r9").request(invite("r9"));
  ASSERT_TRUE(ask(used).answer.accepted());
  const auto unused = folder("thief").request(invite("r9"));
  const auto others = folder("r8").request(invite("r8"));
  authority.revoke("r9");
  expect_refusal(ask(used), "there is no such invitation");
  expect_refusal(ask(unused), "there is no such invitation");
  EXPECT_TRUE(ask(others).answer.accepted());
  const auto never_came = folder("r7").request(invite("r7"));
  authority.revoke("r7");
  expect_refusal(ask(never_came), "there is no such invitation");
  EXPECT_THAT(error_text([&] { authority.revoke("r6"); }), HasSubstr("nothing to revoke"));
  // After a new invitation it can join again.
  EXPECT_TRUE(ask(folder("r9 anew").request(invite("r9"))).answer.accepted());
}

TEST_F(Enrolment, TheListOfTheRevokedIsNeverLongerThanProcessesRead) {
  (void)authority.issue("r8", 10);
  authority.revoke("r8");
  const auto before = read_all(files / "test/ca.crl");
  {
    std::ofstream issued(files / "test/issued", std::ios::app);
    for (int i = 0; i < 30'000; ++i) issued << "7" << std::string(26, '0') << 10'000 + i << " r9\n";
  }
  EXPECT_THAT(error_text([&] { authority.revoke("r9"); }), HasSubstr("ca.crl would have "));
  EXPECT_EQ(read_all(files / "test/ca.crl"), before);
  (void)authority.issue("r7", 10);
  authority.revoke("r7");
  EXPECT_EQ(revoked_entries(), 2);
}

TEST_F(Enrolment, WhatHasExpiredLeavesTheListOfTheRevoked) {
  for (const auto* name : {"r7", "r8"}) {
    (void)authority.issue(name, 10);
    authority.revoke(name);
  }
  EXPECT_EQ(revoked_entries(), 2);
  std::istringstream issued(read_all(files / "test/issued"));
  std::ofstream changed(files / "test/issued");
  for (std::string serial, name, end; issued >> serial >> name >> end;)
    changed << serial << " " << name << " " << (name == "r7" ? "1000000000" : end) << "\n";
  changed.close();
  (void)authority.issue("r9", 10);
  authority.revoke("r9");
  EXPECT_EQ(revoked_entries(), 2) << "r7's entry is gone, r9's is new";
  EXPECT_EQ(lines_of(files / "test/issued"), 2);
}

/// Another account may open and lock a folder that it can see, but not the lock file.
TEST_F(Enrolment, NobodyElseCanHoldTheAuthoritysLock) {
  using std::filesystem::perms;
  (void)authority.issue("r8", 10);
  for (const auto* folder : {"test", "test/r8"})
    EXPECT_EQ(std::filesystem::status(files / folder).permissions(), perms::owner_all) << folder;
  EXPECT_EQ(std::filesystem::status(files / "test/lock").permissions(),
            perms::owner_read | perms::owner_write);
  const int seen = ::open((files / "test").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(seen, LOCK_EX), 0);
  EXPECT_TRUE(ask(folder("r9").request(invite("r9"))).answer.accepted());
  authority.revoke("r9");
  ::close(seen);
}

TEST_F(Enrolment, ARefusalTellsNothingAndGuessingIsSlow) {
  const auto token = invite("r9");
  auto guess = folder("r9").request(token);
  guess.secret.bytes[3] ^= 1;
  expect_refusal(ask(guess), "there is no such invitation");
  auto other = folder("r9").request(token);
  other.version = 2;
  expect_refusal(ask(other), "another version");
  for (const char* words :
       {"", "no PEM", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"}) {
    auto wrong = folder("r9").request(token);
    wrong.request = words;
    expect_refusal(ask(wrong), "the request");
  }
  // Only this address has used up its attempts.
  expect_refusal(ask(folder("r9").request(token)), "too many wrong tokens");
  EXPECT_TRUE(ask(folder("r9").request(token), "192.0.2.2").answer.accepted());
  EXPECT_TRUE(ask(folder("r9").request(token), "192.0.2.1", noon + 61s).answer.accepted());
}

/// Damaged requests are refused: bits changed around a good request, and random bytes.
TEST_F(Enrolment, ArbitraryRequestsAreRefused) {
  const auto good = to_bytes(folder("r9").request(invite("r9")));
  const auto key = tls::fingerprint_of(tls::read_key(files / "r9/key.pem").get());
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    auto bytes = good;
    if (seed % 3 == 0) bytes.resize(random_bits(7, seed, 0) % good.size());
    for (std::size_t i = 0; i < (seed % 3 == 1 ? bytes.size() : 1) && !bytes.empty(); ++i)
      bytes[random_bits(8, seed, i) % bytes.size()] ^=
          static_cast<std::byte>(1 + random_bits(9, seed, i) % 255);
    const auto reply = desk.answer(bytes, "stranger " + std::to_string(seed), noon);
    // A change that PEM ignores (the end of a line) leaves the same request.
    if (!reply.answer.accepted()) continue;
    const auto taken = from_bytes<EnrolmentRequest>(bytes);
    EXPECT_EQ(taken.secret, from_bytes<EnrolmentRequest>(good).secret);
    EXPECT_EQ(tls::fingerprint_of(tls::key_of_request(taken.request).get()), key);
  }
}

TEST_F(Enrolment, OtherKeysThanP256AreNotSigned) {
  const tls::Key key(EVP_EC_gen("P-384"));
  auto request = folder("r9").request(invite("r9"));
  request.request = tls::new_request(key.get(), "test", "r9");
  expect_refusal(ask(request), "not a P-256 key");
}

TEST_F(Enrolment, AnAnswerThatIsNotTheTokensIsNotTakenUp) {
  const auto token = invite("r9");
  const auto own = folder("r9");
  const auto answer = ask(own.request(token)).answer;
  const auto refused = [&](const JoinToken& by, const EnrolmentAnswer& changed) {
    const auto why = error_text([&] { own.complete(by, changed); });
    EXPECT_FALSE(own.enrolled());
    return why;
  };
  auto named = token;
  named.name = "r8";
  EXPECT_THAT(refused(named, answer), HasSubstr("not for r8"));
  const auto another = Authority::create(files / "another", "test");
  auto root = answer;
  root.root = read_all(files / "another/ca.pem");
  EXPECT_THAT(refused(token, root), HasSubstr("not that of the token"));
  auto certificate = answer;
  const auto certified_by = [](const Authority& by, const std::string& request) {
    return by.enrol(by.invite("r9", tls::Role::trainer, noon, 1h, 10), request, noon).certificate;
  };
  certificate.certificate = certified_by(another, own.request(token).request);
  EXPECT_THAT(refused(token, certificate), HasSubstr("not of that authority"));
  certificate.certificate = certified_by(authority, folder("r8").request(token).request);
  EXPECT_THAT(refused(token, certificate), HasSubstr("for another key"));
  own.complete(token, answer);
}

}  // namespace
}  // namespace isthmus::outer_sync
