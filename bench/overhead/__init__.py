"""What the simulation costs: real time and processor time of a training step, and of the way to the first one.

Three modes alternate in each round, and medians over the rounds are printed:

* ``core``: the workload under `eidolon run`, with everything;
* ``null``: the same with `--null-core`: shim, emulated memory and framework, but no ring, agent, core or waits. It is
  the baseline of a step;
* ``floor``: stock torch on the CPU that imports what the workload imports, sets up its process group and does nothing.
  It is the baseline of the time until the first step.

Processor time is each process's own, from the end of the last step of the warm-up to the end of the last step: that of
all ranks together, and of the core with the agent. `--parts` also prints how the time to the first step is spent. A
line says so when other processes, or the machine's host, took processor time during a run: the figures then say little.

    python -m bench.overhead [--workloads tiny gpt2 llama1b titan] [--ranks 1 2 8] [--steps 20] [--rounds 3] [--parts]
"""
