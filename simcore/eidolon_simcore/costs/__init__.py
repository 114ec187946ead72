"""Costs: from what a call was to how long it takes, on the device and on the host.

`model` answers for operations of a device. It asks the tables that come with the package (`package_tables`, `copies`,
`published`), which are interpolated (`interpolation`) and carried from one GPU to another (`carrying`), and falls back
to the analytic model (`roofline`). What an operation does, apart from its time, is in `work` and `volumes`; what it is
called in `kernel_names` and `display_names`. `sm_clock` slows it down under a power limit, `interference` beside a
collective. `hostcost` answers for calls on the host.

Everything here is a pure function of the signature, the GPU and data files.
"""
