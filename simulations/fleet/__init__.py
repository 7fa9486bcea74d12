"""Several machines: what befalls them and the network between them, and what must hold."""
