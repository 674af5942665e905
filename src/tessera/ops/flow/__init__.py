"""Control flow: a body that plans run as often, or as seldom, as values say."""
