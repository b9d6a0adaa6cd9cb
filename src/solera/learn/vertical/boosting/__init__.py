"""SecureBoost: trees over columns of several parties, grown from encrypted gradients."""
