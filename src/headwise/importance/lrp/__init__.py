"""Layer-wise relevance propagation: one engine (a tape of the forward pass, walked backwards), and its rules."""
