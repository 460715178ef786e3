"""The rules. Pure: no I/O, no clock, no chance; standard library only. Start reading at `_lifecycle`."""
