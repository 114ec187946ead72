"""Export: a run for others to read. Nothing here changes it.

`summary` writes ``summary.json`` and ``progress.jsonl``, `metrics` and `dcgm` are Prometheus pages over a snapshot,
`http` serves them, and `timeline` records the run and turns recordings into traces.
"""
