#include "isthmus/outer_sync/tls/enrolment.h"

#include <algorithm>

#include "isthmus/base/text_file.h"
#include "tls/openssl.h"

namespace isthmus::outer_sync::tls {

bool RateLimit::blocks(const std::string& source, Time now) const {
  const auto known = counts_.find(source);
  return known != counts_.end() && known->second.events >= most && now < known->second.begin + window;
}

void RateLimit::count(const std::string& source, Time now) {
  std::erase_if(counts_, [&](const auto& one) { return now >= one.second.begin + window; });
  if (counts_.size() >= max_sources && !counts_.contains(source))
    counts_.erase(std::ranges::min_element(counts_, {}, [](const auto& one) { return one.second.begin; }));
  ++counts_.try_emplace(source, Count{.begin = now}).first->second.events;
}

bool EnrolmentDesk::open(Time now) {
  namespace fs = std::filesystem;
  std::error_code none;
  const auto changed = fs::last_write_time(authority_.folder() / "invitations", none);
  if (none) return false;
  if (changed != changed_) {
    last_end_ = Invitations(authority_.folder()).last_end();
    // Two changes of a folder within one tick of its clock have the same time, so a recent time is not
    // trusted. A time in the future is from before the clock was set back.
    const auto age = fs::file_time_type::clock::now() - changed;
    changed_.reset();
    if (age > std::chrono::seconds(1) || age < std::chrono::seconds(-1)) changed_ = changed;
  }
  return last_end_ && now < *last_end_;
}

EnrolmentDesk::Reply EnrolmentDesk::answer(std::span<const std::byte> request, const std::string& from,
                                           Time now) {
  const auto refuse = [&](const std::string& why) {
    refusals_.count(from, now);
    return Reply{.answer = {}, .line = "refused a newcomer at " + from + ": " + why};
  };
  if (refusals_.blocks(from, now))
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
  const auto verdict = authority_.enrol(request.secret, request.request, now);
  if (verdict.certificate.empty()) return {.answer = {}, .line = verdict.why};
  if (answers_.blocks(verdict.name, now))
    return {.answer = {}, .line = "the invitation of " + verdict.name + " is requested too often"};
  answers_.count(verdict.name, now);
  Reply reply;
  reply.answer.certificate = verdict.certificate;
  reply.answer.root = read_text(authority_.folder() / "ca.pem");
  if (is_there(authority_.folder() / "ca.crl"))
    reply.answer.revoked = read_text(authority_.folder() / "ca.crl");
  reply.answer.config = config_;
  reply.answer.seen_as = from;
  reply.line = verdict.name + " has its certificate: it enrolled from " + from + " by invitation";
  return reply;
}

}  // namespace isthmus::outer_sync::tls
