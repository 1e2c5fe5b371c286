"""Where messages are: for each message and each subscription, what became of it, from what is stored.

`Tracer` asks; `Way` decides, without I/O: a message's lane (`orders`), by which definition it was passed
(`eras`), whether that selected it (`selecting`, `deciding`). `traced` has what comes out, `words` says it.
"""
