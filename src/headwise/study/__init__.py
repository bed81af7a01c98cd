"""The whole story on one's own data: a plan, its steps, a store of what they made, and who does them."""
