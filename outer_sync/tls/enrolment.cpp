#include "isthmus/outer_sync/tls/enrolment.h"

#include <algorithm>

#include "isthmus/base/text_file.h"
#include "tls/request.h"

namespace isthmus::outer_sync::tls {

bool GuessLimit::blocks(const std::string& address, Time now) const {
  const auto known = counts_.find(address);
  return known != counts_.end() && known->second.refusals >= most && now < known->second.begin + window;
}

void GuessLimit::refused(const std::string& address, Time now) {
  std::erase_if(counts_, [&](const auto& one) { return now >= one.second.begin + window; });
  if (counts_.size() >= most_addresses && !counts_.contains(address))
    counts_.erase(std::ranges::min_element(counts_, {}, [](const auto& one) { return one.second.begin; }));
  auto& count = counts_.try_emplace(address, Count{.begin = now}).first->second;
  ++count.refusals;
}

EnrolmentDesk::Reply EnrolmentDesk::answer(std::span<const std::byte> request, const std::string& from,
                                           Time now) {
  const auto refuse = [&](const std::string& why) {
    guesses_.refused(from, now);
    return Reply{.answer = {}, .line = "refused a newcomer at " + from + ": " + why};
  };
  if (guesses_.blocks(from, now))
    return {.answer = {}, .line = "refused a newcomer at " + from + ": too many wrong tokens from there"};
  try {
    const auto said = from_bytes<EnrolmentRequest>(request);
    if (said.version != EnrolmentRequest::current) return refuse("its request is of another version");
    auto reply = accept(said, from, now);
    return reply.answer.accepted() ? reply : refuse(reply.line);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::network) throw;
    return refuse(error.what());
  }
}

EnrolmentDesk::Reply EnrolmentDesk::accept(const EnrolmentRequest& request, const std::string& from,
                                           Time now) {
  const auto key = fingerprint_of(key_of_request(request.request).get());
  const auto verdict = invitations_.redeem(request.secret, key, now);
  if (verdict.name.empty()) return {.answer = {}, .line = verdict.why};
  // Used up from here on. If this process ends before the answer is there the newcomer asks again with its
  // key.
  Reply reply;
  reply.answer.certificate = authority_.sign(request.request, verdict.name, verdict.days);
  reply.answer.root = read_text(authority_.folder() / "ca.pem");
  if (std::filesystem::exists(authority_.folder() / "ca.crl"))
    reply.answer.revoked = read_text(authority_.folder() / "ca.crl");
  reply.answer.config = config_;
  reply.answer.seen_as = from;
  reply.line = verdict.name + " has its certificate: it came from " + from + " by an invitation";
  return reply;
}

}  // namespace isthmus::outer_sync::tls
