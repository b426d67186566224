"""Features of photos from the pretrained network: computed once, kept in Arrow shards, and trained
on where there is no GPU."""
