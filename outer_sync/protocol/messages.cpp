#include "isthmus/outer_sync/protocol/messages.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

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

Bytes encode(const ControlMessage& message) {
  BinaryWriter writer;
  writer(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& body) { writer(body); }, message);
  return writer.take();
}

namespace {

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

}  // namespace

ControlMessage decode_control(std::span<const std::byte> bytes) {
  BoundedReader reader(bytes);
  std::uint8_t tag = 0;
  reader(tag);
  return decode_tag(tag, reader, std::make_index_sequence<std::variant_size_v<ControlMessage>>());
}

}  // namespace isthmus::outer_sync::protocol
