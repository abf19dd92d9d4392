"""One HTML file that tells a run: read from its directory (`read`), drawn (`charts`), set on a page (`page`)."""
