"""What people see and touch: the page of a run, the lab, the command line, the hub."""
