"""Replaces the package wandb: writes all calls to $WANDB_CALLS, and behaves as $WANDB_TROUBLE names."""

import json
import os
import time

TROUBLE = os.environ.get("WANDB_TROUBLE", "")
if TROUBLE == "missing":
    raise ImportError("No module named 'wandb'")


def record(call, **arguments):
    with open(os.environ["WANDB_CALLS"], "a") as file:
        file.write(json.dumps({"call": call, **arguments}) + "\n")


class Settings:
    model_fields = {"console": None, "silent": None}

    def __init__(self, **settings):
        assert set(settings) <= set(self.model_fields), settings
        self.settings = settings


class Run:
    url = "https://wandb.test/run"
    dir = "somewhere/files"

    def define_metric(self, name, step_metric=None):
        record("define_metric", name=name, step_metric=step_metric)

    def log(self, row):
        record("log", row=row)
        if TROUBLE == "crash":
            os._exit(7)

    def finish(self, exit_code):
        record("finish", exit_code=exit_code)
        if TROUBLE == "hang":
            time.sleep(10_000)


def init(settings, **arguments):
    if TROUBLE == "refuse":
        raise RuntimeError("No API key configured")
    record("init", settings=settings.settings, **arguments)
    return Run()
