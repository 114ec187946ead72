"""Compares simulated runs with real ones: runs `bench/truth/h100.jsonl` through `eidolon run`, prints the errors.

`bench/truth` is what a user brings (plain scripts that know of no simulator) and what real H100s answered. The
arguments of each line are run unchanged, on as many emulated GPUs as the real run had. Then what the script prints is
compared:

* the caching allocator's peaks, which a real machine repeats to the byte,
* the step time: against the median where the run is bound by the GPU, against [min, max] where it is bound by the host.

    python -m bench.fidelity [--gpu h200] [--only TEXT] [--world N] [--jobs N] [--json FILE] [--check]
                             [--subset] [--regressions]

    python -m bench.fidelity --traces [--only TEXT] [--json FILE]
    python -m bench.fidelity --frameworks [--only TEXT] [--host-memory SIZE] [--json FILE]

``--traces`` compares steps with the profiler traces of the same steps, kernel by kernel (:mod:`.traces`);
``--frameworks`` runs `h100_x4_frameworks.jsonl` (:mod:`.frameworks`). Both need `make setup-frameworks` for the runs of
TorchTitan, DeepSpeed and Megatron.

``python -m bench.fidelity.predictions`` is for runs on eight GPUs, which nobody has measured yet (:mod:`.predictions`).

43 lines of both GPUs took 95 s on 32 cores. ``--gpu h200`` takes the runs of `h200.jsonl` on H200s. ``--subset
--regressions`` is the short report for CI. It runs three lines, and fails only where the error of a step time is
greater than before (`baseline.json`) by more than a percent of the step.
"""
