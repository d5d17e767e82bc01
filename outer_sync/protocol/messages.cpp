#include "isthmus/outer_sync/protocol/messages.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>

#include "isthmus/outer_sync/core/address.h"

namespace isthmus::outer_sync::protocol {

std::uint64_t prefix_of(const Digest& digest) {
  std::uint64_t prefix = 0;
  std::memcpy(&prefix, digest.bytes.data(), sizeof prefix);
  return prefix;
}

ReplicaId id_of(const MemberInfo& member) {
  Hasher hasher;
  hasher.update(member.name).update(std::string_view("\0", 1)).update(member.incarnation);
  return prefix_of(hasher.finish());
}

bool has_port(const MemberInfo& member) {
  if (!can_be_dialled(member)) return false;
  const auto address = address_in(member.address);
  return !address || !is_mailbox_host(address->host);
}

bool are_sound(std::span<const TrainedOn> rows, std::size_t replicas) {
  return rows.size() <= max_trained_on * replicas &&
         std::ranges::all_of(rows, [](const TrainedOn& row) { return row.samples.sound(); });
}

void keep_common(std::optional<std::vector<ReplicaId>>& in_all, const std::vector<ReplicaId>& contributors) {
  if (!in_all) in_all = contributors;
  std::erase_if(*in_all,
                [&](ReplicaId id) { return std::ranges::find(contributors, id) == contributors.end(); });
}

std::vector<SampleRange> samples_of(std::span<const TrainedOn> rows,
                                    std::span<const ReplicaId> in_all_chunks) {
  std::vector<SampleRange> out;
  for (const auto& [replica, samples] : rows) {
    if (std::ranges::find(in_all_chunks, replica) != in_all_chunks.end()) out.push_back(samples);
  }
  return out;
}

Bytes encode(const ControlMessage& message) {
  BinaryWriter writer;
  writer(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& body) { writer(body); }, message);
  return writer.take();
}

namespace {

constexpr std::uint32_t first_with_oldest = 7;

template <std::size_t I>
ControlMessage decode_as(BoundedReader& reader) {
  std::variant_alternative_t<I, ControlMessage> body;
  reader(body);
  reader.finish();
  return body;
}

template <std::size_t... I>
ControlMessage decode_tag(std::size_t tag, BoundedReader& reader, std::index_sequence<I...>) {
  using Decoder = ControlMessage (*)(BoundedReader&);
  constexpr std::array<Decoder, sizeof...(I)> decoders{decode_as<I>...};
  if (tag >= decoders.size()) {
    throw Error(ErrorKind::network, "control message has tag " + std::to_string(tag) +
                                        "; expected less than " + std::to_string(decoders.size()));
  }
  return decoders[tag](reader);
}

/// Reads only the fields that name another protocol and its build; empty for this build's protocol.
std::optional<Hello> foreign_hello(BoundedReader reader) {
  Hello hello;
  reader(hello.protocol);
  if (hello.protocol == protocol_version) return std::nullopt;
  if (hello.protocol >= first_with_oldest)
    reader(hello.oldest);
  else
    hello.oldest = hello.protocol;
  reader(hello.numerics, hello.run, hello.member, hello.build);
  return hello;
}

/// A newer protocol that still speaks this one may append fields.
ControlMessage decode_hello(std::span<const std::byte> bytes) {
  auto foreign = foreign_hello(BoundedReader(bytes));
  if (foreign && !speaks_with(*foreign)) return *std::move(foreign);
  Hello hello;
  BoundedReader reader(bytes);
  reader(hello);
  if (!foreign) reader.finish();
  return hello;
}

}  // namespace

bool speaks_with(const Hello& hello) {
  return hello.oldest <= protocol_version && hello.protocol >= oldest_protocol;
}

bool is_operator(const std::string& name) {
  return name == operator_name || name.starts_with(std::string(operator_name) + "-");
}

ControlMessage decode_control(std::span<const std::byte> bytes) {
  BoundedReader reader(bytes);
  std::uint8_t tag = 0;
  reader(tag);
  if (tag == 0) return decode_hello(bytes.subspan(sizeof tag));
  return decode_tag(tag, reader, std::make_index_sequence<std::variant_size_v<ControlMessage>>());
}

}  // namespace isthmus::outer_sync::protocol
