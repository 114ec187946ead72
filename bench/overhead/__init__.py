"""What the simulation costs in real time: wall time per step with the core, divided by the same without it.

The baseline is the do-nothing mode (`eidolon run --null-core`): the same shim, emulated memory and framework, but no
ring, no agent, no core and no waits. The workload is eager data-parallel training of a small transformer, so that launches, not
arithmetic, decide. Both modes alternate in one run, for 1, 2 and 8 ranks:

    python -m bench.overhead [--ranks 1 2 8] [--steps 20] [--rounds 3]
"""
