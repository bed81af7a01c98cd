"""Writing a model for engines that run it elsewhere: `export` lists them, each other file writes for one."""
