#pragma once
// Reports of members for the files of the run: shares of evaluations, metrics, log lines.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace isthmus::outer_sync::protocol {

/// member -> coordinator: this member's share of an evaluation of the global parameters.
struct EvalReport {
  std::uint64_t step = 0;
  double sum_nats = 0;
  std::uint64_t tokens = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step, sum_nats, tokens);
  }
};

/// Destination of a record. The order is that of the wire format: append only.
enum class RecordKind : std::uint8_t {
  log,      ///< a line of the member's log
  metrics,  ///< a JSON object
  audit,    ///< a JSON object for audits of the run (docs/how-to/audit.md)
};
struct Record {
  RecordKind kind = RecordKind::log;
  std::string line;  ///< without a line break
  template <class Archive>
  void serialize(Archive& ar) {
    ar(kind, line);
  }
};
/// The sender cuts longer log lines and drops longer metrics; receivers refuse them.
inline constexpr std::size_t longest_record = 16 * 1024;
/// Maximum number of records of a member.
inline constexpr std::uint64_t max_records = std::uint64_t{1} << 48;
/// In RecordsTaken: send no records, because the coordinator gets them in another way or does not need them.
/// No record has this number.
inline constexpr std::uint64_t no_records_wanted = max_records + 1;

/// member -> coordinator: records in the order in which they were written, counted from 0 at the member's
/// start. Records that are not acknowledged are sent again on the next connection.
struct Records {
  std::uint64_t first = 0;  ///< number of the first record; earlier ones that were never sent are lost
  std::vector<Record> records;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(first, records);
  }
};

/// coordinator -> member: all records before this number are stored.
struct RecordsTaken {
  std::uint64_t next = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(next);
  }
};

}  // namespace isthmus::outer_sync::protocol
