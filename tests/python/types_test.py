"""The package and its stubs by mypy, as in a user's editor."""

import pathlib
import subprocess
import sys

import isthmus

HERE = pathlib.Path(__file__).parent
# Insides of libraries, most of what mypy would read; nothing of ours has their types.
SETTINGS = """[mypy]
check_untyped_defs = True
follow_imports = silent
[mypy-transformers.models.*,transformers.integrations.*,torch._inductor.*,torch._dynamo.*,torch.ao.*]
follow_imports = skip
"""


def mypy(tmp_path, *words):
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    words = ["--config-file", tmp_path / "mypy.ini", "--cache-dir", tmp_path / "cache", *words]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *map(str, words)], capture_output=True, text=True, cwd=tmp_path
    )


def test_the_package_and_a_program_that_uses_it_have_sound_types(tmp_path):
    package = pathlib.Path(isthmus.__file__).parent
    sound = mypy(tmp_path, package, HERE / "typed_use.py")
    assert sound.returncode == 0, sound.stdout + sound.stderr
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import isthmus\nisthmus.OuterLoop('a.yaml', 3, name='eu')\nisthmus.NoSuchError\n")
    found = mypy(tmp_path, wrong)
    assert found.returncode == 1 and found.stdout.count("error:") == 2, found.stdout + found.stderr
