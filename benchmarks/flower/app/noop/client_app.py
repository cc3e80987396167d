"""The app's client half as Flower would deploy it, one process per message; the benchmark's nodes do without."""

from flwr.clientapp import ClientApp

app = ClientApp()
