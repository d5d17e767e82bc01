// `isthmus doctor` on healthy machines, and with each fault that it must find.

#include <unistd.h>

#include <sstream>

#include "doctor/doctor.h"
#include "site.h"
#include "socket.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Doctor : public ::testing::Test {
 protected:
  Result alone(const Words& settings = {}) {
    return site.isthmus(with_settings({"doctor", site.config().string()}, settings));
  }
  /// The JSON on standard output, which follows the text of standard error.
  static nlohmann::json json_of(const std::string& output) {
    const auto begin = output.find("{\n");
    auto json = begin == std::string::npos ? nlohmann::json()
                                           : nlohmann::json::parse(output.substr(begin), nullptr, false);
    EXPECT_TRUE(json.is_object()) << output;
    return json;
  }

  void make_certificates(const Words& names) {
    for (const auto& name : names)
      expect_certs(name.empty() ? Words{"init", "tiny"} : Words{"issue", "tiny", name});
    with_certs = {"--certs", (site / "certs/tiny").string()};
  }
  void expect_certs(Words words) {
    words.insert(words.begin(), "certs");
    words.insert(words.end(), {"--dir", (site / "certs").string()});
    const auto result = site.isthmus(words);
    ASSERT_EQ(result.status, 0) << result.report();
  }

  void start_hub(const Words& flags = {}) {
    Words words = {"doctor", site.config().string(), "--listen", "127.0.0.1:0"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), with_certs.begin(), with_certs.end());
    hub.emplace(site.start(words));
    address = hub->coordinator_address();
    ASSERT_FALSE(address.empty()) << site.logs();
  }
  Command guest(const std::string& name, const Words& flags = {}) {
    Words words = {"doctor", site.config().string(), "--name", name, "--coordinator", address};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), with_certs.begin(), with_certs.end());
    return site.start(words);
  }

  Site site;
  std::optional<Command> hub;
  std::string address;
  Words with_certs;
};

TEST_F(Doctor, AMachineThatIsWell) {
  const auto result = alone();
  EXPECT_EQ(result.status, 0) << result.report();
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("all is well"), HasSubstr("certificates  ok"), Not(HasSubstr("\033["))));
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
}

TEST_F(Doctor, EachFaultIsNamedWithWhatToDo) {
  const BusyPort taken;
  const auto port = "network.listen=\"" + taken.address() + "\"";
  const struct {
    std::string setting, check, says;
    int status;
  } faults[] = {
      {"outer.sync_every=0", "config", "outer.sync_every", 2},
      {"network.coordinator=\"no-such-host.invalid:7000\"", "names", "no-such-host.invalid", 4},
      {port, "ports", "cannot listen at", 4},
      {"network.certs=nowhere", "certificates", "nowhere", 3},
      {"data.path=nowhere.txt", "data", "nowhere.txt", 3},
      {"run.out=/proc/1", "disk", "/proc/1", 3},
      {"model.dim=65536", "memory", "activations", 3},
      {"device=cuda", "device", "NVIDIA", 2},
  };
  for (const auto& fault : faults) {
    Words settings = {fault.setting};
    if (fault.check == "names") settings.emplace_back("network.insecure=true");
    if (fault.check == "device" && fs::exists("/dev/nvidiactl")) continue;
    auto words = with_settings({"doctor", site.config().string(), "--json"}, settings);
    const auto result = site.isthmus(words);
    EXPECT_NE(result.status, 0) << fault.check << result.report();
    const auto json = json_of(result.output);
    ASSERT_TRUE(json.is_object());
    bool found = false;
    for (const auto& finding : json["machines"][0]["checks"]) {
      const bool is_it = finding["check"] == fault.check && finding["level"] == "FAIL";
      found |= is_it && finding["says"].get<std::string>().find(fault.says) != std::string::npos &&
               !finding["todo"].get<std::string>().empty();
    }
    EXPECT_TRUE(found) << fault.check << result.report();
  }
}

TEST_F(Doctor, ACorpusTooSmallForTheRunIsAWarning) {
  const auto data_warnings = [this](const Words& settings) {
    const auto result = site.isthmus(with_settings({"doctor", site.config().string(), "--json"}, settings));
    EXPECT_EQ(result.status, 0) << result.report();
    const auto json = json_of(result.output);
    Words out;
    for (const auto& finding : json["machines"][0]["checks"]) {
      if (finding["check"] == "data" && finding["level"] == "warn") out.push_back(finding["says"]);
    }
    return out;
  };
  // 196,000 bytes to train on and 4,000 held out; a step of both replicas reads 256.
  EXPECT_THAT(data_warnings({"run.steps=3000"}), IsEmpty());
  EXPECT_THAT(data_warnings({"run.steps=4000"}), ElementsAre(HasSubstr("training makes 5.2")));
  EXPECT_THAT(data_warnings({"run.steps=4000", "inner.batch=2"}), IsEmpty());
  EXPECT_THAT(data_warnings({"run.eval_sequences=1000"}),
              ElementsAre(AllOf(HasSubstr(" sequences are held out, and an evaluation reads 1000 "),
                                HasSubstr("corpus.txt: 12"))));
  EXPECT_THAT(data_warnings({"run.eval_sequences=1000", "data.heldout=0"}), IsEmpty());
  // Half of all sequences come from the small data set, which is read more often than the large one.
  site.write("small.txt", std::string(60'000, 'x'));
  const auto mixture = "data.mixture=\"" + (site / "corpus.txt").string() + " = 0.5; " +
                       (site / "small.txt").string() + " = 0.5\"";
  EXPECT_THAT(data_warnings({"run.steps=3000", "data.path=\"\"", mixture}),
              ElementsAre(AllOf(HasSubstr("small.txt: training makes 6.5"), HasSubstr("384.0k tokens"))));
}

TEST_F(Doctor, ThreeMachinesWithCertificates) {
  make_certificates({"", "coordinator", "replica-0", "replica-1"});
  start_hub();
  auto first = guest("replica-0");
  auto second = guest("replica-1", {"--json"});
  for (auto* command : {&*hub, &first, &second}) {
    const auto result = command->wait();
    EXPECT_EQ(result.status, 0) << result.report() << site.logs();
  }
  for (const auto& path : {"replica-0 -> replica-1", "replica-1 -> replica-0"})
    EXPECT_THAT(first.output(), AllOf(HasSubstr(path), HasSubstr("bit/s\n")))
        << "every machine must get the whole table";
  const auto json = json_of(second.output());
  ASSERT_EQ(json["machines"].size(), 3U);
  EXPECT_EQ(json["failures"], 0);
  ASSERT_EQ(json["paths"].size(), 2U);
  for (const auto& path : json["paths"]) {
    EXPECT_EQ(path["problem"], "");
    EXPECT_GT(path["bytes_per_second"], 0);
    EXPECT_GT(path["round_trip_ms"], 0);
  }
  // `plan` accepts the report as measurements of the links.
  const auto links = site.write("doctors.json", second.output());
  const auto planned = site.isthmus(
      {"plan", site.config().string(), "--links", links.string(), "--step-time", "500ms", "--json"});
  ASSERT_EQ(planned.status, 0) << planned.report();
  const auto plan = json_of(planned.output);
  EXPECT_EQ(plan["links"]["source"], links.string());
  ASSERT_EQ(plan["links"]["sites"].size(), 2U);
  for (const auto& line : plan["links"]["sites"]) EXPECT_GT(line["up_bits_per_second"], 0) << line;
  EXPECT_GT(plan["links"]["longest_rtt_seconds"], 0);
  for (const auto* text : {"{}", "no JSON", R"({"machines": [], "paths": []})",
                           R"({"machines": [], "paths": [{"from": "a", "to": "b", "round_trip_ms": 0}]})"}) {
    const auto file = site.write("none.json", text);
    const auto refused = site.isthmus({"plan", site.config().string(), "--links", file.string()});
    EXPECT_EQ(refused.status, 3) << text << refused.report();
    EXPECT_THAT(refused.output, HasSubstr("isthmus doctor CONFIG --listen")) << text;
  }
}

TEST_F(Doctor, WhatDoesNotFitIsFoundBetweenMachines) {
  start_hub({"--wait", "20"});
  // No machine can dial the first one at its address. The second has a different config and data and opens no
  // port.
  site.write("other.txt", std::string(100'000, 'x'));
  auto first = guest("replica-0", {"--advertise", "127.0.0.1:1"});
  auto second = guest("replica-1", {"--listen", "none", "--set", "inner.lr=0.5", "--set",
                                    "data.path=\"" + (site / "other.txt").string() + "\""});
  const auto result = hub->wait();
  EXPECT_EQ(result.status, 2) << result.report() << site.logs();
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("inner.lr"), HasSubstr("127.0.0.1:1: cannot connect: Connection refused"),
                    HasSubstr("its data differ from those of replica-0"),
                    HasSubstr("open or forward the port of one")))
      << result.report();
  EXPECT_EQ(first.wait().status, 2) << first.output();
  EXPECT_EQ(second.wait().status, 2) << second.output();
}

TEST_F(Doctor, WhoIsNotThereIsNamedInTime) {
  start_hub({"--wait", "1"});
  const auto result = hub->wait();
  EXPECT_EQ(result.status, 4) << result.report();
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("FAIL replica-0, here: it has not connected"), HasSubstr("--name replica-1")));
  // The other way round: a machine without a hub.
  address = "127.0.0.1:1";
  const auto lonely = guest("replica-0", {"--wait", "1"}).wait();
  EXPECT_EQ(lonely.status, 4) << lonely.report();
  EXPECT_THAT(lonely.output, HasSubstr("isthmus doctor CONFIG --listen"));
}

TEST_F(Doctor, CertificatesThatAreAnothersOrRevokedAreFound) {
  make_certificates({"", "coordinator", "replica-0", "replica-1"});
  fs::permissions(site / "certs/tiny/replica-0/cert.pem", fs::perms::group_read, fs::perm_options::add);
  const auto read =
      site.isthmus({"doctor", site.config().string(), "--certs", (site / "certs/tiny").string()});
  EXPECT_EQ(read.status, 0) << read.report();
  EXPECT_THAT(read.output, HasSubstr("chmod 600"));
  expect_certs({"revoke", "tiny", "replica-1"});
  const auto revoked =
      site.isthmus({"doctor", site.config().string(), "--certs", (site / "certs/tiny").string()});
  EXPECT_EQ(revoked.status, 3) << revoked.report();
  EXPECT_THAT(revoked.output, AllOf(HasSubstr("revoked"), HasSubstr("isthmus certs issue")));
  const auto another = site.isthmus({"doctor", site.config().string(), "--name", "replica-1", "--wait", "1",
                                     "--certs", (site / "certs/tiny/replica-0").string()});
  EXPECT_THAT(another.output, HasSubstr("issued to 'replica-0', not to 'replica-1'")) << another.report();
}

// ---- parts of the doctor ----

TEST(DoctorParts, WhatTakesTooLongIsGivenUp) {
  EXPECT_EQ(app::within(patience, [] { return std::string(20'000, 'x'); }), std::string(20'000, 'x'));
  EXPECT_FALSE(app::within(50ms, [] {
    for (;;) pause();
    return std::string();
  }));
  EXPECT_FALSE(app::within(patience, []() -> std::string { std::abort(); }));
}

TEST(DoctorParts, ARateHasTheUnitThatFitsIt) {
  const auto table = [](double bytes_per_second) {
    app::Diagnosis diagnosis;
    diagnosis.paths.push_back({.from = "eu",
                               .to = "us",
                               .address = "us.example:7001",
                               .round_trip_ms = 1,
                               .bytes_per_second = bytes_per_second});
    return app::table_of(diagnosis, false);
  };
  EXPECT_THAT(table(247.5e6), HasSubstr("  1.98 Gbit/s\n"));
  EXPECT_THAT(table(5e6), HasSubstr("    40 Mbit/s\n"));
  EXPECT_THAT(table(0), HasSubstr("     -\n"));
}

TEST(DoctorParts, ARelayWithAThinLineIsComparedWithTheMailbox) {
  const auto path = [](const char* from, const char* to, const char* address, double rate) {
    return outer_sync::PathTest{
        .from = from, .to = to, .address = address, .round_trip_ms = 40, .bytes_per_second = rate};
  };
  const std::vector<outer_sync::PreflightGuest> guests = {
      {"eu", "eu.mailbox:1", "", ""}, {"us", "", "", ""}, {"hub", "", "", ""}};
  const auto findings = [&](double rate_of_us) {
    return app::judge({.name = "coordinator"}, {}, guests,
                      {path("eu", "us", "us.mailbox:1", 5e6), path("eu", "hub", "hub.example:7001", 1e7),
                       path("us", "hub", "hub.example:7001", rate_of_us)})
        .between;
  };
  EXPECT_THAT(findings(1e7), IsEmpty());
  const auto thin = findings(1e5);
  ASSERT_EQ(thin.size(), 1U);
  EXPECT_EQ(thin[0].check, "eu -> us");
  EXPECT_EQ(thin[0].level, app::Level::warn);
  EXPECT_EQ(thin[0].says,
            "hub may relay between them, at 800 kbit/s and with a round trip of 80 ms; the mailbox carries "
            "40 Mbit/s "
            "and takes 40 ms");
}

TEST(DoctorParts, AReportOfAnotherMachineIsReadOrRefused) {
  app::MachineReport report{.name = "eu-1"};
  report.add({"disk", app::Level::warn, "nearly\033[2J\nfull", "make room"});
  report.config = {{"outer.codec", "int4"}};
  const auto text = app::to_json(report).dump();
  const auto read = app::machine_report(text);
  EXPECT_EQ(read.findings.at(0).says, "nearly?[2J?full") << "control characters must not reach a terminal";
  EXPECT_EQ(read.config, report.config);
  for (std::size_t size = 0; size < text.size(); ++size)
    EXPECT_THROW((void)app::machine_report(text.substr(0, size)), Error) << size;
  for (const auto* wrong :
       {"[]", "{}", "null", R"({"name": 3})", R"({"name": "a", "checks": 1})",
        R"({"name": "a", "checks": [{"check": "disk", "level": "fine", "says": "", "todo": ""}]})"})
    EXPECT_THROW((void)app::machine_report(wrong), Error) << wrong;
}

}  // namespace
}  // namespace isthmus
