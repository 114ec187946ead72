"""Reports on finished runs: one run as a page or as text, or two runs side by side."""
