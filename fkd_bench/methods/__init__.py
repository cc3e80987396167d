"""Federated methods to compare with, one file each with both halves; ``fkd-server --method NAME`` runs any of them.

A method of one's own subclasses :class:`fkd_common.exchange_method.ExchangeMethod`, or
:class:`fkd_bench.methods.averaging.WeightAveraging`, and is named by an entry point of the group ``fkd.methods``.
"""
