"""What tests share: waiting, real components, fakes."""
