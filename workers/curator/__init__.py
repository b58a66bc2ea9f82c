"""The curator: DART's data manager as four Faust agents, shells over the reducers of dart_streams.curation."""
