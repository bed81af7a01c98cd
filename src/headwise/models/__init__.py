"""Models, and what they answer, whole and without some of their heads."""
