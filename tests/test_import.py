"""What an import loads."""

import json
import subprocess
import sys

LIGHT = {"neuralsde", "safetensors", "jaxtyping", "wadler_lindig", "tqdm", "yaml", "_yaml", "_safetensors_rust"}
"""Beyond torch and the standard library; together a tenth of the time that torch takes."""


def modules_after(*lines):
    """The packages that are loaded after each of some lines."""
    code = "import json, sys\nfound = []\n"
    code += "".join(f"{line}\nfound.append(sorted({{m.partition('.')[0] for m in sys.modules}}))\n" for line in lines)
    done = subprocess.run(
        [sys.executable, "-c", code + "print(json.dumps(found))"], capture_output=True, text=True, check=True
    )
    return [set(found) for found in json.loads(done.stdout)]


def test_the_import_loads_no_torch_and_training_little_beside_it():
    bare, torch, all_of_it = modules_after(
        "import neuralsde",
        "import torch",
        "neuralsde.NeuralSDE, neuralsde.Trajectories, neuralsde.Stream, neuralsde.fit",
    )
    assert "neuralsde" in bare and not bare & {"torch", "numpy", "accelerate"}
    more = {name for name in all_of_it - torch - set(sys.stdlib_module_names) if "cython" not in name}
    assert more <= LIGHT
