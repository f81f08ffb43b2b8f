"""Videos: files in any form to frames of one size with their true times, decoded once into shards and then mapped."""
