"""The curator: DART's data manager as four Faust agents, thin shells over the reducers of dart_streams.curation.

Kafka, Faust tables and journals live here; what is decided does not.
"""
