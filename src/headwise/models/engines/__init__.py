"""Engines that run a model elsewhere: `engine` is their table, `export` writes for one, each other file is one."""
