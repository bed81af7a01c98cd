"""`python -m headwise`, and `accelerate launch -m headwise`."""

from headwise.cli import main

main()
