"""Costs: from what a call was to how long it takes, on the device and on the host.

`model` answers for operations of a device. It asks the tables that come with the package (`package_tables`, `copies`,
`published`), interpolates them (`interpolation`) and carries them from one GPU to another (`carrying`). Without them it
falls back to the analytic model (`roofline`). `work` and `volumes` say what an operation does, apart from its time.
`kernel_names` reads what its name tells, and `display_names` makes the name that users see. `sm_clock` slows it down
under a power limit, `interference` beside a collective. `hostcost` answers for calls on the host.

Everything here is a pure function of the signature, the GPU and data files.
"""
