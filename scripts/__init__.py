"""The commands, one file each, thin: parse, call, print."""
