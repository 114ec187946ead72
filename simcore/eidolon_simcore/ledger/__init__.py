"""The ledger: what a run adds up, step by step, once it is final.

`sinks` says how final spans, marks and calls are told; `accounts` books where the time of each step went. `steps`,
`memory`, `coverage`, `unknown_reads` and `tally` count what else the summary states, `power` what the devices draw.
`snapshot` is the immutable view that threads other than the simulation's may read.
"""
