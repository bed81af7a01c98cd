"""What the papers found, and what runs of this machine say of it."""
