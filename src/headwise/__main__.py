"""`python -m headwise`, and `accelerate launch -m headwise`."""

from headwise.cli import main

if __name__ == "__main__":
    main()
