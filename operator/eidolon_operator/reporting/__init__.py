"""What a run left behind, made readable: one run as a page or as text, two runs side by side."""
