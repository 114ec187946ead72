"""The ledger: what a run adds up, step by step, once it is final.

`books` holds one of each thing that a run adds up. `sinks` is how final spans, marks and calls are told to it;
`accounts` is the sink that books where the time of each step went. `steps`, `memory`, `coverage`, `unknown_reads` and
`tally` count what else the summary states, and `power` tells what the devices draw. `snapshot` is the immutable view
that threads other than the simulation's may read.
"""
