"""How it is learned: the consensus of the heads, and the balance between them."""
