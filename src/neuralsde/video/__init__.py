"""Video: an autoencoder of frames, the SDE of their latents, futures of clips."""
