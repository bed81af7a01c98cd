"""`python -m headwise`; with several processes `torchrun -m headwise` or `accelerate launch -m headwise`."""

from headwise.faces.cli import main

if __name__ == "__main__":
    main()
