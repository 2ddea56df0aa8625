"""ConCF as the paper has it: objectives, heads, Algorithm 1."""
