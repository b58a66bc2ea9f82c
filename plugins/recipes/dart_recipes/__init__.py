"""Methods of other papers, each a folder with settings, rules, a page and tests."""
