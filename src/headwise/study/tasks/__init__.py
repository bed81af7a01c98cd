"""The tasks of a study, a file for each stage."""
