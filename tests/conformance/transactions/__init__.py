"""Transactions with unmodified clients of other projects, and Kafka's own tools.

`METAQUORUM_TEST_PEER=kafka` runs these tests with a real Apache Kafka instead of metaquorum nodes.
"""
