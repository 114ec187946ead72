"""What to trade memory for: Llama-2-7B on 4 GPUs, gradient accumulation against activation recomputation.

    python examples/frameworks/case_study.py --memory 64GiB

The same global batch in every row; Megatron-core with tensor parallelism over the four GPUs. A micro-batch that is
larger uses the GPU better and needs more memory for activations, unless these are computed again. Each row is a run of
`eidolon run`; what it prints is in the run's summary too.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LLAMA_2_7B = "--llama --layers 32 --width 4096 --ffn 11008 --heads 32 --length 4096 --vocabulary 32000"
GPUS, LENGTH = 4, 4096

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--memory", default="64GiB", help="of each GPU")
parser.add_argument("--gpu", default="h100-sxm")
parser.add_argument("--batch", type=int, default=16, help="sequences in a step")
parser.add_argument("--micro", type=int, nargs="+", default=[1, 2, 4])
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--jobs", type=int, default=1, help="rows that run side by side")
arguments = parser.parse_args()


def run(micro: int, recompute: bool) -> str:
    """One row of the table."""
    script = Path(__file__).with_name("megatron_gpt.py")
    accumulate = arguments.batch // micro
    training = (
        f"--tensor {GPUS} {LLAMA_2_7B} --micro-batch {micro} --micro-batches {accumulate} --steps {arguments.steps}"
    )
    with tempfile.TemporaryDirectory() as out:
        cluster = ["--gpus-per-server", str(GPUS), "--gpu", arguments.gpu, "--gpu-memory", arguments.memory]
        tokens = ["--launcher", "torchrun", "--tokens-per-step", str(arguments.batch * LENGTH), "--out", out]
        pipes = {"capture_output": True, "text": True}
        command = ["--", str(script), *training.split(), *(["--recompute"] if recompute else [])]
        done = subprocess.run(["eidolon", "run", *cluster, *tokens, *command], check=False, **pipes)
        summary = json.loads((Path(out) / "summary.json").read_text())
    row = f"{micro:>5}  {accumulate:>10}  {'full' if recompute else 'none':>13}"
    if summary["oom"]:
        refused = summary["oom"][-1]
        asked_gib = refused["requested_bytes"] / 2**30
        return f"{row}  out of memory in step {refused['step']}: {asked_gib:.1f} GiB more asked for"
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    step = summary["steps"][-1]
    peak_gib = max(step["peak_bytes"].values()) / 2**30
    speed = f"{step['time_ns'] / 1e9:>6.2f} s  {step['tokens_per_s']:>8,.0f}  {step['mfu']:>5.1%}"
    return f"{row}  {speed}  {peak_gib:>5.1f} GiB"


print("micro  accumulate  recomputation    step   tokens/s    MFU   peak memory")
rows = [(micro, recompute) for micro in arguments.micro for recompute in (False, True)]
with ThreadPoolExecutor(arguments.jobs) as pool:
    for line in pool.map(lambda row: run(*row), rows):
        print(line, flush=True)
