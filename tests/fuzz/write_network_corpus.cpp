// Writes the seeds of the network's fuzzers with this version's encoders:
//
//     write_network_corpus FOLDER        makes FOLDER/control, FOLDER/frames, FOLDER/coordinator
//                                    and FOLDER/observed

#include <filesystem>
#include <fstream>
#include <limits>

#include "network_support.h"

using namespace isthmus;
using namespace isthmus::outer_sync;

namespace {

namespace fs = std::filesystem;
using protocol::ControlMessage;

Digest digest_of(std::uint8_t value) {
  Digest digest;
  digest.bytes.fill(value);
  return digest;
}

protocol::Hello hello(const std::string& name, protocol::MemberKind kind = protocol::MemberKind::trainer,
                      bool has_port = true) {
  protocol::Hello hello;
  hello.run = "fuzz";
  hello.member = {name, 1, has_port ? name + ":7000" : "", 0, kind};
  hello.build = "fuzz";
  hello.config = {{"outer.codec", "int8"}};
  hello.model = digest_of(1);
  hello.tokenizer = digest_of(2);
  return hello;
}

protocol::Sealed sealed() {
  return {.view = 1,
          .layout = {{0, 20}, {24, 9}},
          .chunk_elements = 16,
          .fragments = std::vector<protocol::FragmentState>(2),
          .history = std::vector<std::vector<protocol::FragmentState>>(2),
          .held = {},
          .parameters = digest_of(3),
          .ledger = protocol::Ledger(2)};
}

protocol::Heartbeat heartbeat() {
  protocol::Heartbeat beat;
  beat.number = 3;
  beat.view = 1;
  beat.step = 9;
  beat.contributed = 2;
  beat.tokens_per_second = 1000;
  beat.fragments = {{1, 2}, {0, 0}};
  beat.health = {{0, 1, 2, 0.5, {{11, 2, 0.5, 0.25}}}};
  beat.paths = {{11, 1000, 900, 1'000'000}};
  beat.unreachable = {12};
  beat.relays = 1;
  beat.relayed = {13};
  return beat;
}

/// One message of each kind, with all optional fields filled.
std::vector<ControlMessage> all_messages() {
  protocol::ChunkSet chunks(3);
  chunks.add(1);
  auto held = sealed();
  held.activated = 1;
  held.history = {{{1, digest_of(4)}}, {}};
  protocol::ChunkSet first(3);
  first.add(0);
  held.held = {{0, 2, chunks}, {0, 3, first, {{17, {0, 8, 12}}, {18, {1, 8, 12}}}, {17, 18}}};
  held.ledger = {protocol::FragmentLedger(1), protocol::FragmentLedger(0)};
  held.ledger[1].add({{0, 0, 4}, {1, 0, 4}});
  held.taken.add({0, 4, 8});
  protocol::NewView view{.view = {2, {{"a", 1, "a:1"}, {"b", 1, "b:1"}}, {0, 1, 0}},
                         .token = digest_of(5),
                         .layout = {{0, 20}, {24, 9}},
                         .chunk_elements = 16,
                         .reference = 1,
                         .step = 7,
                         .chains = {{{1, digest_of(4)}}, {{0, {}}}},
                         .fixed = {{0, 2, {{0, chunks}}}},
                         .applied = {{1, 0}, {1, 0}},
                         .ledger = held.ledger,
                         .taken = held.taken,
                         .reserved = {held.taken, {}},
                         .tracks = 2};
  return {hello("a"),
          protocol::Refused{"no"},
          protocol::Seal{1, 0},
          held,
          view,
          heartbeat(),
          protocol::HeartbeatReply{1, 3, {1, 0}, {1, 0}, 5'000'000, 2.5, 100},
          protocol::EvalReport{10, 25.5, 100},
          protocol::Announce{"127.0.0.1:1"},
          protocol::StopRequest{"enough"},
          protocol::Hold{},
          protocol::Held{9},
          protocol::StopAt{12},
          protocol::Done{"{}", digest_of(6)},
          protocol::Finished{"", digest_of(6)},
          protocol::Leave{"asked to"},
          protocol::Abort{"broken"},
          protocol::Admitted{digest_of(5), {{"a", 1, "a:1"}}},
          protocol::Ready{},
          protocol::Evicted{"too late"},
          protocol::Suspended{"too few"},
          protocol::Relays{7, {{11, 12, 13}, {11, 14, 13}}},
          protocol::Command{
              protocol::protocol_version, "fuzz", "operator", "set", {"outer.sync_every=9"}, 40, "eu"},
          protocol::Answer{"no", "{}"},
          protocol::Adjust{{{"network.rate", "40Mbps"}}},
          protocol::Steered{{{{40, {{"outer.sync_every", "9"}}}}, 50}},
          protocol::Drain{"asked to"},
          protocol::Records{3, {{protocol::RecordKind::log, "words"}, {protocol::RecordKind::metrics, "{}"}}},
          protocol::RecordsTaken{5},
          protocol::CheckpointRequest{"asked to leave"},
          protocol::CheckpointAt{60},
          protocol::CalendarChanged{"utc+1; mon-fri 8:00-18:00 20Mbps"}};
}

void write(const fs::path& folder, const std::string& name, std::span<const std::byte> bytes) {
  fs::create_directories(folder);
  std::ofstream out(folder / name, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  require(out.good(), "cannot write a seed");
}

// ---- frames ----

transport::ReceivedFrame archived(transport::FrameType type, const auto& message) {
  return {type, {}, {}, std::make_shared<const Bytes>(to_bytes(message)), {}};
}
transport::ReceivedFrame chunk(const protocol::ChunkMessage& message) {
  return {transport::FrameType::chunk,
          transport::header_of(message, quant::Lossless::none),
          message.contributors,
          message.bytes,
          message.norms,
          message.trained_on};
}
transport::ReceivedFrame piece(transport::StatePart part, std::size_t elements) {
  const transport::StateDataHeader header{.offset = 0, .fragment = 0, .part = part, .zero = {}};
  auto bytes = transport::bytes_of(header);
  bytes.resize(bytes.size() + elements * sizeof(float));
  return {transport::FrameType::state_data, {}, {}, std::make_shared<const Bytes>(bytes), {}};
}
protocol::SharedBytes encoded(ChunkId k) {
  return std::make_shared<const Bytes>(quant::encoded_size(fuzz_codecs().of(1), fuzz_layout().chunk(k).size));
}

void write_frames(const fs::path& folder, const std::string& name, std::uint8_t listener,
                  const std::vector<transport::ReceivedFrame>& frames) {
  for (const bool checked : {false, true}) {
    Bytes bytes{static_cast<std::byte>(listener | (checked ? 128 : 0))};
    for (const auto& frame : frames) {
      const auto wire = transport::wire_of(frame, checked);
      bytes.insert(bytes.end(), wire.begin(), wire.end());
    }
    write(folder, name + (checked ? "_checked" : ""), bytes);
  }
}

void write_all_frames(const fs::path& folder) {
  using transport::FrameType;
  using transport::StatePart;
  const transport::PeerHello hello{digest_of(5), 11, 12, 0, transport::PeerRole::member};
  const protocol::ChunkKey contribution{1, 0, 0, protocol::ChunkKind::contribution};
  const protocol::ChunkKey result{1, 0, 0, protocol::ChunkKind::result};
  const protocol::ChunkKey exchange{5, 0, 1, protocol::ChunkKind::exchange};
  transport::ReceivedFrame ack{
      FrameType::ack, transport::header_of(1, contribution), {}, std::make_shared<const Bytes>(), {}};
  transport::Arrived arrived;
  arrived.at = 2'060'000'000;
  arrived.lanes = {{1, 500}, {2, 900}};
  write_frames(folder, "peer", 0,
               {archived(FrameType::peer_hello, hello), archived(FrameType::begun, protocol::ViewNumber{1}),
                archived(FrameType::arrived, arrived),
                chunk({1, contribution, encoded(0), 100, {}, {}, {{11, {0, 4, 9}}}}), ack,
                chunk({1, result, encoded(0)}), chunk({1, exchange, encoded(0)}),
                chunk({1,
                       result,
                       encoded(0),
                       0,
                       {11, 12},
                       {{11, 1.5}, {12, 2.5}},
                       {{11, {0, 4, 9}}, {12, {1, 4, 9}}}})});
  const auto by_relay = [](transport::ReceivedFrame frame) {
    frame.relay = transport::RelayHeader{.from = 11, .to = 12, .inner = frame.type, .session = 3};
    return frame;
  };
  auto taken = ack;
  taken.type = FrameType::relay_taken;
  write_frames(folder, "relayed", 0,
               {archived(FrameType::peer_hello, hello),
                by_relay(archived(FrameType::hail, transport::Hail{.session = 1, .heard = 2, .asks = true})),
                by_relay(archived(FrameType::begun, protocol::ViewNumber{1})),
                by_relay(archived(FrameType::begun_heard, protocol::ViewNumber{1})),
                by_relay(chunk({1, contribution, encoded(0), 100})), by_relay(ack), by_relay(taken),
                by_relay(chunk({1, result, encoded(0), 0, {11, 12}, {{11, 1.5}, {12, 2.5}}})),
                by_relay({FrameType::relay_lost, {}, {}, std::make_shared<const Bytes>()})});
  write_frames(folder, "donor", 1,
               {archived(FrameType::state_request, transport::StateRequest{0, transport::agreed_parts, 1}),
                archived(FrameType::round_request, transport::RoundRequest{1, 2})});
  const transport::StateHead head{0, {1, digest_of(4)},          20, transport::agreed_parts,
                                  0, protocol::FragmentLedger(1)};
  const std::vector<transport::ReceivedFrame> state = {
      archived(FrameType::state_head, head), piece(StatePart::theta, 20), piece(StatePart::velocity, 20),
      archived(FrameType::state_done, transport::StateDone{0})};
  transport::StateReceiver state_receiver(fuzz_layout(), {0, transport::agreed_parts, 1});
  for (const auto& frame : state) state_receiver.take(frame);
  require(state_receiver.complete(), "an incomplete state");
  write_frames(folder, "state", 2, state);
  write_frames(folder, "state_gone", 2, {archived(FrameType::state_gone, transport::StateGone{0})});
  std::vector<transport::ReceivedFrame> round;
  for (auto k = fuzz_layout().chunks_of(0).first; k < fuzz_layout().chunks_of(0).last; ++k)
    round.push_back(chunk({0, {1, k, 0, protocol::ChunkKind::result}, encoded(k)}));
  round.push_back(archived(FrameType::state_done, transport::StateDone{0}));
  transport::RoundReceiver round_receiver(fuzz_layout(), fuzz_codecs(), {0, 1});
  for (const auto& frame : round) round_receiver.take(frame);
  require(round_receiver.complete(), "an incomplete round");
  write_frames(folder, "round", 3, round);
}

// ---- messages to a coordinator ----

struct Said {
  std::uint8_t who;
  ControlMessage message;
};
void write_talk(const fs::path& folder, const std::string& name, const std::vector<Said>& talk,
                Bytes bytes = {}) {
  for (const auto& [who, message] : talk) {
    const auto words = protocol::encode(message);
    bytes.push_back(static_cast<std::byte>(who));
    bytes.push_back(static_cast<std::byte>(words.size()));
    bytes.push_back(static_cast<std::byte>(words.size() >> 8));
    bytes.insert(bytes.end(), words.begin(), words.end());
  }
  write(folder, name, bytes);
}

void write_all_talks(const fs::path& folder) {
  const std::vector<Said> begin = {{0, hello("a")}, {1, hello("b")}, {0, sealed()}, {1, sealed()}};
  write_talk(folder, "begin", begin);
  auto on = begin;
  on.insert(on.end(), {{0, heartbeat()}, {1, heartbeat()}, {0, protocol::EvalReport{10, 25.5, 100}}});
  write_talk(folder, "heartbeats", on);
  auto stop = on;
  stop.insert(stop.end(), {{0, protocol::StopRequest{"enough"}},
                           {0, protocol::Held{9}},
                           {1, protocol::Held{10}},
                           {0, protocol::Done{"{}", digest_of(6)}},
                           {1, protocol::Done{"{}", digest_of(6)}}});
  write_talk(folder, "stop", stop);
  auto more = on;
  more.insert(more.end(), {{2, hello("c")},
                           {3, hello("o", protocol::MemberKind::observer)},
                           {4, hello("r", protocol::MemberKind::reducer)},
                           {2, protocol::Ready{}},
                           {1, protocol::Evicted{"too late"}},
                           {0, protocol::Leave{"asked to"}}});
  write_talk(folder, "more", more);
  const auto command = [](const char* verb, std::vector<std::string> arguments) {
    return protocol::Command{
        .run = "fuzz", .by = "operator", .verb = verb, .arguments = std::move(arguments), .member = {}};
  };
  auto steer = on;
  steer.insert(steer.end(), {{5, command("status", {})},
                             {6, command("set", {"outer.sync_every=9"})},
                             {7, command("drain", {"b"})},
                             {5, command("pause", {})},
                             {0, sealed()},
                             {1, sealed()},
                             {0, heartbeat()},
                             {6, command("resume", {})}});
  write_talk(folder, "steer", steer);
  const auto kind = protocol::MemberKind::trainer;
  auto apart = heartbeat(), connected = apart;
  apart.unreachable = {protocol::id_of({"b", 1, ""})};
  apart.relayed = apart.unreachable;
  connected.unreachable.clear();
  connected.relayed.clear();
  protocol::Sealed blank;
  blank.view = 1;
  write_talk(folder, "relays",
             {{4, hello("r", protocol::MemberKind::reducer)},
              {0, hello("a", kind, false)},
              {1, hello("b", kind, false)},
              {0, sealed()},
              {1, sealed()},
              {4, blank},
              {0, apart},
              {0, connected},
              {1, connected}});
}

// ---- messages to an observed coordinator (fuzz_observed.cpp) ----

void write_all_observed(const fs::path& folder) {
  const auto of_run = [&](unsigned choice, const std::string& name, const std::vector<Said>& talk) {
    write_talk(folder, name, talk, {static_cast<std::byte>(choice)});
  };
  constexpr unsigned two_replicas = 1 << 2, with_reducer = 1 << 3, from_disk = 1 << 5, recovers = 1 << 6;
  const std::vector<Said> begin = {{0, hello("a")}, {1, hello("b")}, {0, sealed()}, {1, sealed()}};
  auto beat = heartbeat();
  beat.inner_steps_per_second = 4;
  beat.uplink = 1'000'000;
  auto later = beat;
  later.step = 200;
  later.fragments = {{7, 2}, {6, 0}};
  auto huge = beat;
  huge.step = std::numeric_limits<std::uint64_t>::max();
  for (const unsigned method : {0, 1, 2, 3}) {
    auto on = begin;
    on.insert(on.end(), {{0, beat}, {1, beat}, {0, later}, {1, later}, {0, huge}});
    of_run(method | two_replicas, "steps_" + std::to_string(method), on);
  }
  // The first view has a reducer that reports an earlier view.
  auto odd = sealed();
  odd.activated = 1;
  odd.history.clear();
  of_run(with_reducer, "reducer",
         {{4, hello("r", protocol::MemberKind::reducer)}, {0, hello("a")}, {4, odd}, {0, sealed()}});
  protocol::Settings settings{.changes = {{40, {{"outer.sync_every", "20"}}}}, .pause_after = 900};
  auto back = hello("a");
  back.activated = back.sealed = 1;
  back.settings = settings;
  auto other = back;
  other.member = {"b", 1, "b:7000"};
  auto answer = sealed();
  answer.view = 2;
  answer.activated = 1;
  answer.settings = settings;
  answer.step = 1000;
  const std::vector<Said> again = {{0, back}, {1, other}, {0, answer}, {1, answer}, {0, later}};
  of_run(two_replicas | from_disk, "from_disk", again);
  auto lost = again;
  for (auto& [who, message] : lost) {
    if (auto* sealed = std::get_if<protocol::Sealed>(&message)) sealed->view = 102;
  }
  of_run(two_replicas | recovers, "recovers", lost);
  auto unknown = again;
  settings.changes[0].items[0].first = "outer.no_such_key";
  std::get<protocol::Hello>(unknown[0].message).settings = settings;
  of_run(two_replicas | from_disk, "unknown_key", unknown);
  auto stop = begin;
  stop.insert(stop.end(), {{0, beat},
                           {0, protocol::StopRequest{"enough"}},
                           {0, protocol::Held{std::numeric_limits<std::uint64_t>::max()}},
                           {1, protocol::Held{10}}});
  of_run(two_replicas, "stop", stop);
}

}  // namespace

int main(int argc, char** argv) {
  require(argc == 2, "usage: write_network_corpus FOLDER");
  const fs::path folder = argv[1];
  fs::remove_all(folder);
  for (const auto& message : all_messages())
    write(folder / "control", "tag_" + std::to_string(message.index()), protocol::encode(message));
  write_all_frames(folder / "frames");
  write_all_talks(folder / "coordinator");
  write_all_observed(folder / "observed");
  return 0;
}
