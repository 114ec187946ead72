"""The timeline of a run: recorded while it runs, read as a Perfetto trace or Chakra execution traces afterwards."""
