"""Sites of several ranks (DistributedDataParallel), each one replica of the run."""


def start(run, *arguments, **outer):
    run.write_config(run={"steps": 24}, outer={"merge_alpha": 0.3, "codec": "lloyd4", **outer})
    run.start_coordinator()
    for name in ("eu", "us"):
        run.start_worker(name, "ddp.py", "--store", run.folder / f"{name}.store", *(arguments if name == "us" else []))


def test_all_ranks_of_all_sites_end_with_the_same_parameters(run):
    start(run, warmup_steps=3, warmup_codec="fp32")
    run.finish()
    hashes = {run.log(name).split("hash ")[-1].split()[0] for name in ("eu", "us")}
    assert len(hashes) == 1
    assert run.report("eu")["rounds"] > 0


def test_no_rank_waits_for_a_first_one_that_has_failed(run):
    start(run, "--fail-at", "9", min_replicas=1)
    assert run.wait("us") == 1
    assert "an outer gradient is not finite" in run.log("us")
    run.finish("eu", "coordinator")
