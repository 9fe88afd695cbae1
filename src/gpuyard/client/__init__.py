"""The SDK: `Client` and `AsyncClient` over one core of calls."""
