"""Checks the package and its stubs with mypy, like a user's editor."""

import pathlib
import subprocess
import sys

import isthmus

HERE = pathlib.Path(__file__).parent
# mypy would spend most of its time in these packages. The package uses only base classes of the first three.
SKIPPED = ["transformers", "lightning", "pytorch_lightning", "sympy", "torch.ao", "torch.distributed", "torch.export"]
SKIPPED += ["torch.fx", "torch.onnx", "torch._dynamo", "torch._export", "torch._functorch", "torch._higher_order_ops"]
SKIPPED += ["torch._inductor", "torch._prims", "torch._refs", "torch._subclasses"]
SETTINGS = f"""[mypy]
check_untyped_defs = True
follow_imports = silent
[mypy-{",".join(f"{name}.*" for name in SKIPPED)}]
follow_imports = skip
"""


def test_the_package_and_a_program_that_uses_it_have_sound_types(tmp_path):
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import isthmus\nisthmus.OuterLoop('a.yaml', 3, name='eu')\nisthmus.NoSuchError\n")
    words = ["--config-file", tmp_path / "mypy.ini", "--cache-dir", "/dev/null", "--no-error-summary"]
    found = subprocess.run(
        [sys.executable, "-m", "mypy", *words, pathlib.Path(isthmus.__file__).parent, HERE / "typed_use.py", wrong],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    errors = [line for line in found.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 2 and all(line.startswith("wrong.py:") for line in errors), found.stdout + found.stderr
