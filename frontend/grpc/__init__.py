"""The gRPC server: servicers and the interceptors around them."""
