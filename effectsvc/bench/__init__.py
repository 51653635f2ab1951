"""`effectsvc bench`: how fast, at what price, and how far from what the bare scripts reach on the same server.

`workloads` says what is measured, `tools` what the worker runs, `load` proposes it, `floor` sends the bare scripts,
`meter` reads processes and server, `measure` makes one row of it all.
"""
