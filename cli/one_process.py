"""All nodes of a cluster in one process, joined by the local transport: `twostep up --transport local` runs this."""
