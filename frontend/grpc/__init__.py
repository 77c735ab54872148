"""The gRPC door: servicers and the interceptors around them."""
