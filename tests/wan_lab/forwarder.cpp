// wan_forwarder: the wide-area network of a lab (see README.md). One thread reads the packets of all sites
// from their TUN devices, lets Link decide which arrive and when, and writes them to the devices of the other
// sites at that time.
//
//     wan_forwarder --control SOCKET --lab NUMBER --seed SEED --nat-timeout NANOSECONDS SITE:NAMESPACE[:nat]
//     ...
//
// makes the device wan0 in every namespace, prints "ready" and runs until it is killed; the devices end with
// it. Each message to the socket (SOCK_SEQPACKET) is a command; the answer has lines and ends with "ok" or
// "error: WHY":
//
//     set FROM TO KEY=VALUE ...
//         keys: rate (bit/s), delay, jitter, queue (ns), queue_bytes, loss, cut (0 or 1)
//     access SITE KEY=VALUE ...
//         gives the site an access line, which all its links share: one line out, before them, and one in
//     status
//         counters, a line for each direction and each site

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <queue>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "descriptors.h"
#include "link.h"
#include "link_text.h"
#include "nat.h"
#include "packet.h"

namespace isthmus::wan_lab {
namespace {

constexpr int reads_at_a_time = 64;  // from one device before the next
constexpr std::size_t message_limit = 64 << 10;

Nanoseconds now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

struct Site {
  std::string name;
  Descriptor device;
  std::optional<Nat> nat;
  std::optional<Link> out, in;  // the access line
  Count unroutable;
  std::uint64_t write_errors = 0;
};

struct InFlight {
  Nanoseconds arrival;
  std::uint64_t order;
  std::size_t from, to;
  std::uint32_t packets;
  std::uint64_t bytes;
  Bytes raw;
  bool is_through = false;  // the access line of `to`
};

/// Packets [first, first + count) of a burst as one.
Burst part_of(const Burst& burst, std::uint32_t first, std::uint32_t count) {
  const bool has_last = first + count == burst.count;
  return {count, burst.bytes, has_last ? burst.last_bytes : burst.bytes};
}

struct Later {
  bool operator()(const InFlight& a, const InFlight& b) const {
    return a.arrival != b.arrival ? a.arrival > b.arrival : a.order > b.order;
  }
};

struct Options {
  std::string control;
  std::uint8_t lab = 0;
  std::uint64_t seed = 0;
  Nanoseconds nat_timeout = 0;
  std::vector<std::string> sites;
};

class Forwarder {
 public:
  explicit Forwarder(const Options& options);
  void run();

 private:
  Link& link(std::size_t from, std::size_t to) { return links_[from * sites_.size() + to]; }
  std::size_t site_named(const std::string& name) const;
  std::optional<std::size_t> route(const Packet& packet) const;

  void wait();
  void watch(int fd, std::size_t tag);
  void read_device(std::size_t from);
  void forward(std::size_t from, std::span<const std::byte> raw);
  void deliver_due();
  void enter(InFlight packet);
  void deliver(const InFlight& packet);

  void accept_client();
  void serve(int client);
  void answer(int client, const std::string& command);
  void set_link(std::istringstream& words);
  void set_access(std::istringstream& words);
  std::string status();

  std::uint8_t lab_;
  std::vector<Site> sites_;
  std::vector<Link> links_;  // from * sites + to
  std::priority_queue<InFlight, std::vector<InFlight>, Later> in_flight_;
  std::uint64_t order_ = 0;
  Bytes buffer_ = Bytes(largest_packet);
  std::vector<Run> leaving_, arriving_;
  Descriptor listener_, epoll_;
  bool real_time_;
  Count late_;  // packets, and their lateness in nanoseconds
  Nanoseconds latest_ = 0;
};

Forwarder::Forwarder(const Options& options)
    : lab_(options.lab),
      listener_(listen_on(options.control)),
      epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll")),
      real_time_(become_punctual()) {
  for (const auto& text : options.sites) {
    std::istringstream parts(text);
    std::string name, name_space, nat;
    std::getline(parts, name, ':') && std::getline(parts, name_space, ':') && std::getline(parts, nat);
    Site site{name, open_device(name_space), {}, {}, {}, {}, 0};
    if (nat == "nat") site.nat.emplace(options.nat_timeout);
    sites_.push_back(std::move(site));
  }
  const auto n = sites_.size();
  for (std::size_t i = 0; i < n * n; ++i) links_.emplace_back(options.seed * 1'000'003 + i);
  for (std::size_t i = 0; i < n; ++i) watch(sites_[i].device.get(), i);
  watch(listener_.get(), n);
}

// Tags: sites first, then the listener, then clients by descriptor.
void Forwarder::watch(int fd, std::size_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  checked(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event), "epoll");
}

void Forwarder::run() {
  for (;;) {
    deliver_due();
    wait();
  }
}

void Forwarder::wait() {
  timespec timeout{};
  if (!in_flight_.empty()) {
    const auto left = std::max<Nanoseconds>(0, in_flight_.top().arrival - now());
    timeout = {left / 1'000'000'000, left % 1'000'000'000};
  }
  std::array<epoll_event, 64> events;
  const int n = epoll_pwait2(epoll_.get(), events.data(), events.size(),
                             in_flight_.empty() ? nullptr : &timeout, nullptr);
  if (n < 0 && errno != EINTR) fail("epoll_pwait2");
  for (int i = 0; i < n; ++i) {
    const auto tag = events[static_cast<std::size_t>(i)].data.u64;
    if (tag < sites_.size()) {
      read_device(tag);
    } else if (tag == sites_.size()) {
      accept_client();
    } else {
      serve(static_cast<int>(tag - sites_.size() - 1));
    }
  }
}

void Forwarder::read_device(std::size_t from) {
  for (int i = 0; i < reads_at_a_time; ++i) {
    const auto size = read(sites_[from].device.get(), buffer_.data(), buffer_.size());
    if (size < 0 && (errno == EAGAIN || errno == EINTR || errno == EIO)) return;  // EIO: the device is down
    if (size < 0) fail("reading the device of " + sites_[from].name);
    forward(from, std::span(buffer_).first(static_cast<std::size_t>(size)));
  }
}

// Addresses are 10.77.LAB.SITE and fd77:c0:ffee:LAB::SITE; sites count from 1.
std::optional<std::size_t> Forwarder::route(const Packet& packet) const {
  Address site{10, 77, lab_};
  std::size_t last = 3;
  if (packet.version == 6) {
    site = {0xfd, 0x77, 0x00, 0xc0, 0xff, 0xee, 0x00, lab_};
    last = 15;
  }
  site[last] = packet.destination[last];
  const std::size_t index = site[last];
  if (packet.destination != site || index < 1 || index > sites_.size()) return {};
  return index - 1;
}

void Forwarder::forward(std::size_t from, std::span<const std::byte> raw) {
  const auto packet = parse(raw);
  const auto to = packet ? route(*packet) : std::nullopt;
  if (!to || *to == from) return sites_[from].unroutable.add(1, raw.size() - device_header);
  const auto time = now();
  if (sites_[from].nat) sites_[from].nat->outbound(time, *packet);
  leaving_.clear(), arriving_.clear();
  if (auto& line = sites_[from].out)
    line->send(time, packet->burst, leaving_);
  else
    leaving_.push_back({0, packet->burst.count, 0, time});
  for (const auto& run : leaving_) {
    if (auto& line = sites_[from].out) line->counters.delivered.add(run.count, run.bytes);
    const auto before = arriving_.size();
    link(from, *to).send(run.arrival, part_of(packet->burst, run.first, run.count), arriving_);
    for (auto& arrived : std::span(arriving_).subspan(before)) arrived.first += run.first;
  }
  for (const auto& run : arriving_) {
    in_flight_.push({run.arrival, order_++, from, *to, run.count, run.bytes,
                     cut_out(raw, *packet, run.first, run.count), false});
  }
}

void Forwarder::deliver_due() {
  while (!in_flight_.empty()) {
    const auto late = now() - in_flight_.top().arrival;
    if (late < 0) return;
    auto packet = std::move(const_cast<InFlight&>(in_flight_.top()));  // its place in the queue stays
    in_flight_.pop();
    if (sites_[packet.to].in && !packet.is_through) {
      enter(std::move(packet));
      continue;
    }
    late_.add(1, static_cast<std::uint64_t>(late));
    latest_ = std::max(latest_, late);
    deliver(packet);
  }
}

/// Sends a packet over the access line of its site.
void Forwarder::enter(InFlight packet) {
  const auto parsed = *parse(packet.raw);
  arriving_.clear();
  sites_[packet.to].in->send(packet.arrival, parsed.burst, arriving_);
  for (const auto& run : arriving_) {
    sites_[packet.to].in->counters.delivered.add(run.count, run.bytes);
    in_flight_.push({run.arrival, order_++, packet.from, packet.to, run.count, run.bytes,
                     cut_out(packet.raw, parsed, run.first, run.count), true});
  }
}

void Forwarder::deliver(const InFlight& packet) {
  auto& site = sites_[packet.to];
  auto& counters = link(packet.from, packet.to).counters;
  if (site.nat && !site.nat->inbound(now(), *parse(packet.raw))) {
    return counters.nat_drops.add(packet.packets, packet.bytes);
  }
  if (write(site.device.get(), packet.raw.data(), packet.raw.size()) < 0) {
    ++site.write_errors;
    return;
  }
  counters.delivered.add(packet.packets, packet.bytes);
}

void Forwarder::accept_client() {
  const int client = accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (client >= 0) watch(client, sites_.size() + 1 + static_cast<std::size_t>(client));
}

void Forwarder::serve(int client) {
  std::string message(message_limit, '\0');
  const auto size = recv(client, message.data(), message.size(), 0);
  if (size <= 0) {
    close(client);  // also removes it from epoll
    return;
  }
  message.resize(static_cast<std::size_t>(size));
  answer(client, message);
}

// Disconnects a client that does not read instead of waiting for it.
void Forwarder::answer(int client, const std::string& command) {
  std::string text;
  try {
    std::istringstream words(command);
    std::string verb;
    words >> verb;
    if (verb == "set") {
      set_link(words);
    } else if (verb == "access") {
      set_access(words);
    } else if (verb == "status") {
      text = status();
    } else {
      throw std::invalid_argument(fmt::format("unknown command '{}'", verb));
    }
    text += "ok\n";
  } catch (const std::invalid_argument& error) {
    text = fmt::format("error: {}\n", error.what());
  }
  for (std::size_t at = 0; at < text.size(); at += message_limit) {
    const auto part = std::string_view(text).substr(at, message_limit);
    if (send(client, part.data(), part.size(), MSG_NOSIGNAL) < 0) {
      close(client);
      return;
    }
  }
}

std::size_t Forwarder::site_named(const std::string& name) const {
  const auto site = std::ranges::find(sites_, name, &Site::name);
  if (site == sites_.end()) throw std::invalid_argument(fmt::format("unknown site '{}'", name));
  return static_cast<std::size_t>(site - sites_.begin());
}

void Forwarder::set_link(std::istringstream& words) {
  std::string from, to;
  words >> from >> to;
  auto& chosen = link(site_named(from), site_named(to));
  chosen.set(changed(chosen.settings(), words));
}

void Forwarder::set_access(std::istringstream& words) {
  std::string name;
  words >> name;
  auto& site = sites_[site_named(name)];
  const auto settings = changed(site.out ? site.out->settings() : LinkSettings(), words);
  for (auto* line : {&site.out, &site.in}) {
    if (!*line) line->emplace(std::uint64_t{0});
    (*line)->set(settings);
  }
}

std::string Forwarder::status() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto microseconds = [](const timeval& t) { return t.tv_sec * 1'000'000 + t.tv_usec; };
  const auto time = now();
  auto text = fmt::format(
      "forwarder pid={} real_time={:d} cpu={} in_flight={} deliveries={} late_total={} late_most={}\n",
      getpid(), real_time_, microseconds(usage.ru_utime) + microseconds(usage.ru_stime), in_flight_.size(),
      late_.packets, late_.bytes, latest_);
  for (const auto& site : sites_) {
    text += fmt::format("site {} nat={:d} unroutable={} write_errors={}\n", site.name, site.nat.has_value(),
                        site.unroutable.packets, site.write_errors);
  }
  for (const auto& site : sites_) {
    if (!site.out) continue;
    text += fmt::format("access {} out {}\n", site.name, link_text(*site.out, time));
    text += fmt::format("access {} in {}\n", site.name, link_text(*site.in, time));
  }
  for (std::size_t from = 0; from < sites_.size(); ++from) {
    for (std::size_t to = 0; to < sites_.size(); ++to) {
      if (from == to) continue;
      text +=
          fmt::format("link {} {} {}\n", sites_[from].name, sites_[to].name, link_text(link(from, to), time));
    }
  }
  return text;
}

Options read_options(int argc, char** argv) {
  Options options;
  std::vector<std::string> words(argv + 1, argv + argc);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto& word = words[i];
    const auto value = [&]() -> const std::string& {
      if (++i == words.size()) throw std::invalid_argument(word + ": needs a value");
      return words[i];
    };
    if (word == "--control") {
      options.control = value();
    } else if (word == "--lab") {
      options.lab = number<std::uint8_t>(value());
    } else if (word == "--seed") {
      options.seed = number<std::uint64_t>(value());
    } else if (word == "--nat-timeout") {
      options.nat_timeout = number<Nanoseconds>(value());
    } else {
      options.sites.push_back(word);
    }
  }
  if (options.sites.empty() || options.sites.size() > 254)
    throw std::invalid_argument("expected 1 to 254 sites");
  return options;
}

}  // namespace
}  // namespace isthmus::wan_lab

int main(int argc, char** argv) {
  try {
    isthmus::wan_lab::Forwarder forwarder(isthmus::wan_lab::read_options(argc, argv));
    std::puts("ready");
    std::fclose(stdout);
    forwarder.run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "wan_forwarder: {}\n", error.what());
    return 1;
  }
}
