"""Consumer groups with clients of other projects, and with single requests.

`METAQUORUM_TEST_PEER=kafka` runs these tests with a real Apache Kafka instead of metaquorum nodes.
"""
