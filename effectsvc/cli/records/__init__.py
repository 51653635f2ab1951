"""What each command prints with `--json`, as types: the published JSON Schemas are made from them.

A record is written in its verb and declared here. Tests hold every line that a command prints against its schema.
"""
