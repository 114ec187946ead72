"""Export: what others read of a run. Nothing here changes the run.

`summary` writes ``summary.json`` and ``progress.jsonl``, `metrics` and `dcgm` are Prometheus pages over a snapshot,
`http` serves them, and `timeline` records the run and turns recordings into traces.
"""
