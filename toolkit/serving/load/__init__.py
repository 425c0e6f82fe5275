"""Load on a served text model over gRPC streaming: asked by clients, counted, summed up."""
