"""Held against real GPUs: runs the lines of `bench/truth/h100.jsonl` through `eidolon run` and prints the errors.

`bench/truth` is what a user brings (plain scripts that know of no simulator) and what real H100s answered. A line's own
arguments are run unchanged on as many emulated GPUs as it had; what the script prints is compared:

* the caching allocator's peaks, which a real machine repeats to the byte,
* the step time: against the median where the run is bound by the GPU, against [min, max] where it is bound by the host.

    python -m bench.fidelity [--only TEXT] [--world N] [--json FILE] [--check]
"""
