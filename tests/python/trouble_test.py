"""Failures in a run: they raise clear exceptions, without hangs or crashes, and the other replicas learn of them."""

import signal

import pytest


def start_pair(run, *arguments, least=1, steps=24, **sections):
    """Starts two workers; `us` gets the arguments. One of them may continue alone."""
    sections["outer"] = {"min_replicas": least, **sections.get("outer", {})}
    run.write_config(run={"steps": steps}, **sections)
    run.start_coordinator()
    run.start_worker("eu", "train.py")
    run.start_worker("us", "train.py", *arguments)


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("exception", "ValueError: the user's own mistake"),
        ("frozen", "ConfigError: parameter head.weight was frozen after the loop was made"),
        ("added", "ConfigError: parameter extra was added after the loop was made"),
        ("moved", "ConfigError: parameter head.weight no longer lies in the loop's memory"),
        ("not finite", "DivergenceError: an outer gradient is not finite"),
        ("interrupt", "KeyboardInterrupt"),
    ],
)
def test_trouble_of_one_replica_ends_it_with_its_name_and_the_other_goes_on(run, trouble, said):
    start_pair(run, "--trouble", trouble)
    assert run.wait("us") not in (0, 139, 134), run.log("us")
    assert said in run.log("us")
    run.finish("eu", "coordinator")
    assert "step 24" in run.log("eu")
    # The reason reached the coordinator before the connection ended.
    assert said.split(":")[0].split()[-1] in run.log("coordinator") or trouble == "not finite", run.log("coordinator")


def test_a_worker_that_is_killed_is_lost_and_the_other_goes_on(run):
    start_pair(run, "--trouble", "killed")
    assert run.wait("us") == -9
    run.finish("eu", "coordinator")


def test_a_program_that_ends_early_leaves_the_run(run):
    start_pair(run, "--trouble", "exit")
    run.finish()
    assert "its program ended at step 9, and the run has 24" in run.log("coordinator")


def test_without_a_coordinator_joining_ends_when_its_time_is_over(run):
    run.write_config(network={"join_timeout": "2s"})
    run.start_worker("eu", "train.py")
    assert run.wait("eu") == 1
    assert "NetworkError" in run.log("eu") and "127.0.0.1:1" in run.log("eu"), run.log("eu")


def test_an_interrupt_ends_waiting_for_others(run):
    run.write_config()
    run.start_coordinator()
    run.start_worker("eu", "train.py")
    run.wait_for("coordinator", "eu")  # eu has joined and waits for us
    run.interrupt("eu")
    assert run.wait("eu") in (-2, 130)
    assert "KeyboardInterrupt" in run.log("eu")


def test_sigterm_makes_a_worker_leave_that_asks_for_it(run):
    run.write_config(run={"steps": 120}, outer={"min_replicas": 1})
    run.start_coordinator()
    run.start_worker("eu", "train.py", "--pace", 0.03)
    run.start_worker("us", "train.py", "--pace", 0.03, "--leave-on-sigterm")
    run.wait_for("us", "step 5\n")
    run.processes["us"].send_signal(signal.SIGTERM)
    run.finish()
    assert "left the run at step" in run.log("us") and "step 120" not in run.log("us")
    assert "asked to by a signal" in run.log("coordinator") and "step 120" in run.log("eu")


def test_sigterm_while_it_joins_ends_a_worker_that_asks_for_it(run):
    run.write_config()
    run.start_coordinator()
    run.start_worker("eu", "train.py", "--leave-on-sigterm")
    run.wait_for("coordinator", "eu")  # eu has joined and waits for us
    run.processes["eu"].send_signal(signal.SIGTERM)
    assert run.wait("eu") == 143


def test_sigterm_ends_a_worker_that_asks_for_nothing(run):
    run.write_config(run={"steps": 120}, outer={"min_replicas": 1})
    run.start_coordinator()
    for name in ("eu", "us"):
        run.start_worker(name, "train.py", "--pace", 0.03)
    run.wait_for("us", "step 5\n")
    run.processes["us"].send_signal(signal.SIGTERM)
    assert run.wait("us") == -signal.SIGTERM
    run.finish("eu", "coordinator")


def test_a_model_that_differs_between_workers_is_refused_by_name(run):
    start_pair(run, "--width", "32")
    log = run.log(run.wait_first("eu", "us"))
    assert "ConfigError" in log and "names, shapes or fragments differ" in log


def test_a_setting_that_differs_is_refused_by_its_key(run):
    start_pair(run, "--set", "outer.sync_every=12")
    failed = run.wait_first("eu", "us")
    assert "outer.sync_every" in run.log(failed)


def test_a_stop_ends_all_at_one_step(run):
    start_pair(run, steps=10**9)
    run.wait_for("us", "step 8")
    run.interrupt("coordinator")
    run.finish("eu", "us")
    last = [run.log(name).split("step ")[-1].split()[0] for name in ("eu", "us")]
    assert last[0] == last[1]


def test_a_newcomer_takes_the_state_and_ends_with_the_same_hash(run):
    start_pair(run, steps=10**9)
    run.wait_for("us", "step 30")
    run.start_worker("ap", "train.py")
    run.wait_for("ap", "takes part from step")
    run.wait_for("ap", "\nstep ")
    run.interrupt("coordinator")
    run.finish("eu", "us", "ap")
    hashes = {run.hash_of(name) for name in ("eu", "us", "ap")}
    assert len(hashes) == 1 and len(hashes.pop()) == 64


def test_a_resumed_run_ends_with_the_hash_of_one_that_never_stopped(run):
    def train(*arguments, names=("eu", "us")):
        run.start_coordinator(*(["--resume"] if "--load" in arguments else []))
        for name in names:
            run.start_worker(name, "train.py", *[word.replace("NAME", name) for word in arguments])
        run.finish()
        said = {run.hash_of(name) for name in names}
        run.processes.clear()
        assert len(said) == 1
        return said.pop()

    run.write_config(run={"steps": 30}, outer={"codec": "4bit"})
    whole = train()
    run.write_config(run={"steps": 30, "name": "again", "stop_after": 15}, outer={"codec": "4bit"})
    assert train("--save", "NAME.pt") != whole
    run.write_config(run={"steps": 30, "name": "again"}, outer={"codec": "4bit"})
    assert train("--load", "NAME.pt") == whole


def test_a_replica_with_an_older_state_dict_copies_the_state_and_says_so(run):
    names = ("eu", "us", "ap")

    def start(stop_after, **arguments):
        run.write_config(run={"steps": 10**9, "stop_after": stop_after}, replicas=3)
        run.start_coordinator(*([] if stop_after == 9 else ["--resume"]))
        for name in names:
            run.start_worker(name, "train.py", *arguments[name])

    def finish():
        run.finish()
        assert len({run.hash_of(name) for name in names}) == 1
        run.processes.clear()

    start(9, **{name: ["--save", f"{name}.9"] for name in names})
    finish()
    start(15, **{name: ["--load", f"{name}.9", "--save", f"{name}.15"] for name in names})
    finish()
    start(0, eu=["--load", "eu.15"], us=["--load", "us.15"], ap=["--load", "ap.9"])
    run.wait_for("ap", "the state dict of step 9 is not used")
    run.wait_for("ap", "\nstep ")
    run.interrupt("coordinator")
    run.finish(*names)
    assert len({run.hash_of(name) for name in names}) == 1
    assert "is not used" not in run.log("eu") + run.log("us")


@pytest.mark.parametrize("options", [[], pytest.param(["--bf16"], marks=pytest.mark.long)])
def test_a_run_with_a_synchronous_warm_up_ends_in_agreement(run, options):
    run.write_config(outer={"warmup_steps": 4, "warmup_codec": "fp32", "codec": "4bit"})
    run.start_coordinator()
    for name in ("eu", "us"):
        run.start_worker(name, "train.py", *options)
    run.finish()
    assert run.hash_of("eu") == run.hash_of("us")
    assert run.report("eu")["warmup_rounds"] == 12
    assert run.report("eu")["precision"] == ("bfloat16" if options else "float32")
