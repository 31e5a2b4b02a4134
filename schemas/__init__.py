"""What every process agrees on: records, the topic table, settings and errors. Data only: no I/O, no clock.

Read in this order: `task`, `session`, `span`, `trajectory`, `score`, `training`, `node`, `grant`. That is the life of a token.
"""
