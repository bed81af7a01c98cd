"""The steps of a study, a file for each stage."""
