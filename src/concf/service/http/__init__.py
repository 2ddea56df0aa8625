"""HTTP around the routes: what they declare, who may ask, what is observed, and connections."""
