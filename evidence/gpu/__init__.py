"""What needs a GPU: run by `check gpu` and `bench gpu`."""
