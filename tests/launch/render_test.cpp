// Output of `launch --render`, checked with bash, stand-ins for Slurm's programs and the Kubernetes schemas.

#include <gmock/gmock.h>
#include <yaml-cpp/yaml.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "command.h"
#include "temporary_folder.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

constexpr const char* rendered_experiment = R"(
run: {name: two_sites}
data: {path: corpus.txt}
network: {coordinator: "third.example:7000", certs: certs/two_sites}
sites:
  eu:
    replicas: 2
    replica.ranks: 4
    inner.batch: 8
    data.path: eu.txt
    launch: {slurm: [--partition=gpu, --time=14-00:00:00], setup: [module load cuda], environment: {A: "it's"}}
  us:
    replicas: 2
    network: {listen: "0.0.0.0:7001", advertise: "us.example:7001"}
    data.path: us.txt
    launch: {image: "registry/isthmus:1", namespace: train, volume: corpus, setup: [ulimit -n 65536]}
  ap: {launch: {ssh: me@ap.example}}
)";

class Render : public ::testing::Test {
 protected:
  Result launch(const std::string& kind, const std::vector<std::string>& more = {},
                const std::string& text = rendered_experiment) {
    std::vector<std::string> words = {coordinator_program,
                                      "launch",
                                      folder_.write("run.yaml", text).string(),
                                      "--render",
                                      kind,
                                      "--out",
                                      (folder_ / kind).string()};
    words.insert(words.end(), more.begin(), more.end());
    return run_command(std::move(words), folder_ / "launch.log");
  }
  [[nodiscard]] std::string written(const std::string& name) const { return read_all(folder_ / name); }
  Result run(std::vector<std::string> words) { return run_command(std::move(words), folder_ / "check.log"); }

  TemporaryFolder folder_;
};

TEST_F(Render, ABatchScriptForEachSiteOfSlurm) {
  const auto result = launch("slurm");
  ASSERT_EQ(result.status, 0) << result.report();
  const auto script = written("slurm/eu.sbatch");
  for (const auto* line : {"#SBATCH --ntasks=2\n", "#SBATCH --partition=gpu\n", "#SBATCH --gpus-per-task=4\n",
                           "#SBATCH --job-name=two_sites-eu\n", "module load cuda\n", "export A='it'\\''s'\n",
                           "names=('eu-1' 'eu-2')\n", "--coordinator 'third.example:7000'"})
    EXPECT_THAT(script, HasSubstr(line));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "slurm/us.sbatch"));
  const auto config = written("slurm/eu.yaml");
  EXPECT_THAT(config, AllOf(HasSubstr("path: ./eu.txt\n"), HasSubstr("certs: ./two_sites/certs\n"),
                            HasSubstr("batch: 8\n"), Not(HasSubstr("example:7001"))));
  EXPECT_THAT(result.output, HasSubstr("sbatch eu.sbatch"));
  const auto file = (folder_ / "slurm/eu.sbatch").string();
  const auto syntax = run({"/bin/bash", "-n", file});
  EXPECT_EQ(syntax.status, 0) << syntax.report();
  if (!std::filesystem::exists("/usr/bin/shellcheck"))
    GTEST_SKIP() << "install shellcheck to check the script";
  const auto checked = run({"/usr/bin/shellcheck", file});
  EXPECT_EQ(checked.status, 0) << checked.report();
}

TEST_F(Render, ItsTasksStartAWorkerEach) {
  // The shell must not interpret any character of a host name.
  const std::string host = R"~(`id`$(id)"$HOME\)~";
  ASSERT_EQ(launch("slurm",
                   {"--set", "sites.eu.launch.program=/bin/echo", "--set", "sites.eu.launch.setup=[\"true\"]",
                    "--set", "sites.eu.network.advertise='" + host + ":7000'"})
                .status,
            0);
  // A stand-in for srun that runs the command of one task.
  folder_.write("bin/srun",
                "#!/bin/sh\nwhile [ \"$1\" != bash ]; do shift; done\nSLURM_PROCID=1 exec \"$@\"\n");
  std::filesystem::permissions(folder_ / "bin/srun", std::filesystem::perms::owner_all);
  const auto path = folder_.path().string();
  const std::vector<std::string> batch = {"/usr/bin/env", "PATH=" + path + "/bin:/usr/bin:/bin",
                                          "SLURM_SUBMIT_DIR=" + path, "/bin/bash", path + "/slurm/eu.sbatch"};
  const auto result = run(batch);
  EXPECT_EQ(result.status, 0) << result.report();
  EXPECT_THAT(result.output,
              HasSubstr("worker --quiet --config eu.yaml --coordinator third.example:7000 --name eu-2 "
                        "--listen 0.0.0.0:7002 --advertise " +
                        host + ":7001"));
  // A requeued job, with a checkpoint of its earlier start.
  std::filesystem::create_directories(folder_ / "two_sites/eu-2/checkpoints");
  EXPECT_THAT(run(batch).output, Not(HasSubstr("--resume"))) << "another job of the same name is another run";
  auto requeued = batch;
  requeued.insert(requeued.begin() + 1, "SLURM_RESTART_COUNT=1");
  EXPECT_THAT(run(requeued).output, HasSubstr("--name eu-2 --resume --listen "));
}

/// A job with one task, which is a program of the test, under stand-ins for Slurm's programs.
class SlurmJob : public Render {
 protected:
  void SetUp() override {
    ASSERT_EQ(launch("slurm", {"--set", "sites.eu.launch.program=" + (folder_ / "bin/worker").string(),
                               "--set", "sites.eu.launch.setup=[\"true\"]"})
                  .status,
              0);
    // Slurm signals the processes of the steps; srun itself would kill its tasks.
    program("srun",
            "while [ \"$1\" != bash ]; do shift; done\nSLURM_PROCID=0 \"$@\" &\necho $! > task\nwait $!\n");
    program("scancel", "echo \"scancel $*\" >> calls\nkill -TERM \"$(cat task)\"\n");
    program("scontrol", "echo \"scontrol $*\" >> calls\n");
  }
  void program(const std::string& name, const std::string& text) {
    folder_.write("bin/" + name, "#!/bin/bash\n" + text);
    std::filesystem::permissions(folder_ / "bin" / name, std::filesystem::perms::owner_all);
  }
  [[nodiscard]] Command start() {
    const auto path = folder_.path().string();
    return {{"/usr/bin/env", "PATH=" + path + "/bin:/usr/bin:/bin", "SLURM_SUBMIT_DIR=" + path,
             "SLURM_JOB_ID=42", "/bin/bash", path + "/slurm/eu.sbatch"},
            folder_ / "job.log"};
  }
  [[nodiscard]] bool works() const {
    return eventually([&] { return read_all(folder_ / "job.log").find("works") != std::string::npos; });
  }
  /// Leaves on SIGTERM like a worker.
  static constexpr auto worker =
      "trap 'echo leaves; exit 143' TERM\necho works\nwhile :; do sleep .05; done\n";
};

TEST_F(SlurmJob, LeavesTheRunAndIsRequeuedWhenItsTimeIsOver) {
  program("worker", worker);
  auto job = start();
  ASSERT_TRUE(works());
  job.signal(SIGUSR1);
  const auto end = job.wait();
  EXPECT_EQ(end.status, 143) << end.report();
  EXPECT_THAT(end.output, HasSubstr("leaves"));
  EXPECT_EQ(written("calls"), "scancel --signal=TERM 42\nscontrol requeue 42\n");
}

TEST_F(SlurmJob, IsNotRequeuedWhereTheRunHasEndedMeanwhile) {
  program("worker", "trap 'echo done; exit 0' TERM\necho works\nwhile :; do sleep .05; done\n");
  auto job = start();
  ASSERT_TRUE(works());
  job.signal(SIGUSR1);
  EXPECT_EQ(job.wait().status, 0);
  EXPECT_EQ(written("calls"), "scancel --signal=TERM 42\n");
}

TEST_F(SlurmJob, WaitsForItsWorkersWhereItIsCancelled) {
  program("worker", worker);
  auto job = start();
  ASSERT_TRUE(works());
  job.signal(SIGTERM);  // Slurm signals the workers itself, so that the script must not signal them again
  const auto told = run(
      {"/usr/bin/env", "--chdir=" + folder_.path().string(), (folder_ / "bin/scancel").string(), "by-slurm"});
  ASSERT_EQ(told.status, 0) << told.report();
  EXPECT_EQ(job.wait().status, 143);
  EXPECT_EQ(written("calls"), "scancel by-slurm\n");
}

TEST_F(Render, ManifestsThatReferToSecrets) {
  const auto result = launch("kubernetes");
  ASSERT_EQ(result.status, 0) << result.report();
  const auto text = written("kubernetes/us.manifests.yaml");
  for (const auto* part :
       {"kind: \"Job\"", "kind: \"Service\"", "terminationGracePeriodSeconds: 120\n",
        "type: \"DisruptionTarget\"", "externalTrafficPolicy: \"Local\"", "action: \"FailJob\"",
        "secretName: \"two-sites-us-2\"", "claimName: \"corpus\"", "nvidia.com/gpu: \"1\"",
        "path: /data/us.txt\n", "'us.example:7002'", "certs: /certs\n"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, Not(HasSubstr("coordinator\", \"--config"))) << "the coordinator is at another site";
  EXPECT_THAT(result.output, HasSubstr("kubectl create secret generic two-sites-us-1 --namespace train "
                                       "--from-file='certs/two_sites/us-1'"));
}

TEST_F(Render, ManifestsOfTheirSchemas) {
  const auto validate = std::string(python_environment) + "/bin/kubernetes-validate";
  if (!std::filesystem::exists(validate))
    GTEST_SKIP() << "there is no " << validate << ": install it with scripts/setup.sh --tests";
  ASSERT_EQ(launch("kubernetes", {"--set", "sites.us.launch.coordinator=true"}).status, 0);
  const auto checked = run({validate, "--strict", (folder_ / "kubernetes/us.manifests.yaml").string()});
  EXPECT_EQ(checked.status, 0) << checked.report();
  EXPECT_THAT(checked.output, HasSubstr("passed for resource job/two-sites-coordinator"));
}

TEST_F(Render, APodThatComesAfterAnotherOfItsJobOffersItsCheckpoints) {
  ASSERT_EQ(launch("kubernetes", {"--set", "sites.us.launch.program=/bin/echo", "--set",
                                  "sites.us.launch.setup=[\"true\"]"})
                .status,
            0);
  std::string script;
  for (const auto& object : YAML::LoadAll(written("kubernetes/us.manifests.yaml"))) {
    if (object["metadata"]["name"].as<std::string>() != "two-sites-us-2" || !object["spec"]["template"])
      continue;
    const auto container = object["spec"]["template"]["spec"]["containers"][0];
    script = container["command"][2].as<std::string>();
    EXPECT_EQ(container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"].as<std::string>(),
              "metadata.labels['batch.kubernetes.io/controller-uid']");
  }
  const std::string volume = "folder='/data/";
  const auto place = script.find(volume);
  ASSERT_NE(place, std::string::npos) << script;
  script.replace(place, volume.size(), "folder='" + folder_.path().string() + "/");
  const auto pod = [&](const std::string& job) {
    return run({"/usr/bin/env", "JOB=" + job, "/bin/sh", "-c", script}).output;
  };
  const auto checkpoints = folder_ / "two_sites/us-2/checkpoints";
  std::filesystem::create_directories(checkpoints);
  const auto write_at = [&](auto later) {
    const auto begin = std::filesystem::last_write_time(folder_ / "two_sites/us-2.job");
    std::filesystem::last_write_time(checkpoints, begin + later);
  };
  EXPECT_THAT(pod("job-1"), AllOf(HasSubstr("--name us-2"), Not(HasSubstr("--resume"))));
  write_at(-1s);
  EXPECT_THAT(pod("job-1"), Not(HasSubstr("--resume"))) << "the checkpoints are of an earlier run";
  write_at(1s);
  EXPECT_THAT(pod("job-1"), HasSubstr("--resume"));
  EXPECT_THAT(pod("job-1"), HasSubstr("--resume"));
  EXPECT_THAT(pod("job-2"), Not(HasSubstr("--resume"))) << "another Job of the same name is another run";
  write_at(-1s);
  EXPECT_THAT(pod("job-2"), Not(HasSubstr("--resume"))) << "the first pod died before its first checkpoint";
  EXPECT_THAT(pod(""), Not(HasSubstr("--resume"))) << "the cluster does not report the Job";
}

TEST_F(Render, EverythingInOneClusterHasItsCoordinatorThere) {
  const auto result = launch("kubernetes", {},
                             "run.name: all\nreplicas: 2\ndata.path: corpus.txt\n"
                             "network: {coordinator: \"all-coordinator:7000\", insecure: true}\n");
  ASSERT_EQ(result.status, 0) << result.report();
  const auto text = written("kubernetes/replica.manifests.yaml");
  EXPECT_THAT(text, AllOf(HasSubstr("name: \"all-coordinator\""), HasSubstr("'--name' 'replica-2'"),
                          HasSubstr("trap 'kill -KILL $child' TERM"), Not(HasSubstr("secretName"))));
}

TEST_F(Render, SaysWhatItWroteAsJson) {
  const auto result = launch("slurm", {"--json"});
  const auto json = nlohmann::json::parse(result.output, nullptr, false);
  ASSERT_TRUE(json.is_object()) << result.report();
  EXPECT_EQ(json["files"].size(), 2U);
  EXPECT_EQ(json["steps"].size(), 2U);
}

TEST_F(Render, RefusesWhatCannotBeWrittenDown) {
  const auto local = launch("slurm", {"--set", "network.coordinator=\"127.0.0.1:0\""});
  EXPECT_EQ(local.status, 2) << local.report();
  EXPECT_THAT(local.output, HasSubstr("network.coordinator is '127.0.0.1:0'; expected a fixed HOST:PORT"));
  const auto none = launch("kubernetes", {},
                           "data.path: x\nnetwork: {coordinator: \"a:7000\", insecure: true}\n"
                           "sites: {a: {launch: {ssh: a}, network.listen: none}}\n");
  EXPECT_EQ(none.status, 2) << none.report();
  EXPECT_THAT(none.output,
              HasSubstr("no site is started by kubernetes; expected a site with launch: {image: NAME}"));
}

}  // namespace
}  // namespace isthmus
